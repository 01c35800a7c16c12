"""What becomes of a model's options that differ from those of the checkpoint that a run goes on from, or starts with.

What a router has learned is read by some of its options, and others were settled when its training began, as those of
optimizers and schedules are: with other values they would do nothing, or give what is saved another meaning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from routing_lightning.routers import BranchingRouter, Router
from routing_lightning.routers.rules import Rule
from routing_lightning.trust import imported

ANEW = "start a new run from the weights (--weights in place of --ckpt_path)"
"""What to do to change what a resumed run has from its checkpoint."""

OF_MODEL = {"optimizer": Rule.OPTIMIZER, "lr_scheduler": Rule.OPTIMIZER, "lr_interval": Rule.COUNTS}
"""Options of a model beside its router; all others are free."""

SIZES = ("num_tasks", "num_classes", "image_shape")
"""Options of a model that come from its data, which are looked at apart."""


@dataclass(frozen=True)
class Change:
    """An option that is another one than in the checkpoint.

    Attributes:
        owner: name of the class that has it; "the model" for those of the model.
        option: its name.
        saved: its value in the checkpoint; of a class its name.
        own: its value now.
        rule: what it has to do with what is saved.
        is_class: whether it is a part, of another class.
        of_router: whether it is the router, or within it.
    """

    owner: str
    option: str
    saved: Any
    own: Any
    rule: Rule
    is_class: bool = False
    of_router: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether a run cannot go on with it."""
        return self.rule in (Rule.READS, Rule.PARTS, Rule.COUNTS) or (self.rule == Rule.OPTIMIZER and self.is_class)

    @property
    def is_of_policies(self) -> bool:
        """Whether what was learned cannot be taken over, or would hide the new value."""
        return self.rule in (Rule.READS, Rule.SETTLED)

    def refusal(self) -> str:
        """Why a run cannot go on so, in a sentence."""
        return (
            f"{self.option} of {self.owner} is {self.own}, but the checkpoint's state is that of {self.saved}; give "
            f"that, or {ANEW}."
        )

    def is_past(self, router: Router | None) -> bool:
        """Whether it is of a search that is over."""
        over = self.of_router and isinstance(router, BranchingRouter) and router.is_over
        return over and self.rule not in (Rule.OPTIMIZER, Rule.PARTS)

    def is_free(self, router: Router | None) -> bool:
        """Whether it holds from here on."""
        if self.is_past(router):
            return False
        if self.option == "begin" and isinstance(router, BranchingRouter):  # reckoned anew until a depth is open
            return router.stage is not None and not router.opened and router.begin > 0
        return self.rule == Rule.FREE

    def told(self, router: Router | None) -> str:
        """What a run that goes on makes of it, in a sentence."""
        if self.is_past(router):
            return (
                f"{self.option} of {self.owner} is {self.own}, not {self.saved} of the checkpoint, which changes "
                f"nothing, since the search for routes is over; to search anew, {ANEW}."
            )
        if self.is_free(router):
            stays = "; what the router has learned stays" if self.of_router else ""
            return (
                f"{self.option} of {self.owner} is {self.own} from here on, not {self.saved} of the checkpoint{stays}."
            )
        return (
            f"{self.owner} goes on with {self.option} {self.saved} of the checkpoint, not {self.own} of the config; "
            f"to change it, {ANEW}."
        )


def changes(saved: Any, own: Any) -> list[Change]:
    """Options of a router that differ.

    Args:
        saved: the router's config in a checkpoint, with ``class_path`` and ``init_args``; None where it is not known,
            as of routers that were made in Python.
        own: the same of the model.
    """
    if not _is_part(saved) or not _is_part(own):
        return []
    found = _of_option("the model", "router", saved, own, Rule.READS, None)
    return [replace(change, of_router=True) for change in found]


def model_changes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[Change]:
    """Options of a model that differ, those of its router included, where both runs say which.

    Args:
        saved: hyperparameters of the model in a checkpoint.
        own: those of the model.
    """
    found = changes(saved.get("router"), own.get("router"))
    for option in (key for key in own if key in saved and key not in ("router", *SIZES) and key[0] != "_"):
        found += _of_option("the model", option, saved[option], own[option], OF_MODEL.get(option, Rule.FREE), None)
    schedules = [of.get("lr_scheduler", "made in Python") for of in (saved, own)]
    return [change for change in found if change.rule != Rule.COUNTS or None not in schedules]


def _of_option(owner: str, option: str, saved: Any, own: Any, rule: Rule, meant: str | None) -> Iterator[Change]:
    if not (_is_part(saved) or _is_part(own)):
        if _plain(saved) != _plain(own):
            yield Change(owner, option, saved, own, rule)
        return
    before, now = _name(saved) or meant, _name(own) or meant
    if before != now:
        added = rule == Rule.OPTIMIZER and (before is None or now is None)  # a schedule that there was not, or is not
        yield Change(owner, option, before, now, Rule.FREE if added else rule, is_class=True)
    elif not (_is_part(saved) and _is_part(own)):
        if rule == Rule.OPTIMIZER:  # the same kind of optimizer with values of its own
            yield Change(owner, option, _name(saved), _name(own), rule)
    else:
        yield from _within(saved, own, rule)


def _within(saved: dict[str, Any], own: dict[str, Any], rule: Rule) -> Iterator[Change]:
    """Changes of the options of two parts of one class."""
    kind, name = _kind(own), _name(own)
    before, now = saved.get("init_args"), own.get("init_args")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return
    for option in (key for key in now if key in before):
        inner: Rule = rule if rule == Rule.OPTIMIZER else Rule.FREE
        meant = None
        for base in () if kind is None else kind.__mro__:
            if option in vars(base).get("option_rules", {}):
                inner, meant = vars(base)["option_rules"][option], vars(base).get("null_means", {}).get(option)
                break
        yield from _of_option(str(name), option, before[option], now[option], inner, meant)


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("class_path"), str)


def _name(part: Any) -> str | None:
    """Name of a part's class, without its module, which has more than one way to be said."""
    return str(part["class_path"]).rpartition(".")[2] if _is_part(part) else part


def _kind(part: dict[str, Any]) -> type | None:
    """The class of a part of the model, which is imported already."""
    try:
        kind = imported(part["class_path"])
    except ImportError:
        return None
    return kind if isinstance(kind, type) else None


def _plain(value: Any) -> Any:
    """A value in which lists and tuples are alike."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
