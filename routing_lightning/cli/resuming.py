"""A training that goes on: what it takes from the config of its run, and what is said where it takes something else."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

from routing_lightning.cli.checkpoints import PLACES
from routing_lightning.trust import imported

FINDERS = (BatchSizeFinder, LearningRateFinder)
"""Callbacks that look for a value before the first step, from weights that nothing was done with."""


def without_finders(config: dict[str, Any]) -> dict[str, Any]:
    """A run's config without the callbacks that have done their work when it began; what they found it has."""
    callbacks = config.get("trainer", {}).get("callbacks")
    if not isinstance(callbacks, list):
        return config
    kinds = [imported(one["class_path"] if isinstance(one, dict) else one) for one in callbacks]
    kept = [one for one, kind in zip(callbacks, kinds, strict=True) if kind not in FINDERS]
    return {**config, "trainer": {**config["trainer"], "callbacks": kept}}


def drop_repeated(trainer: Any) -> None:
    """Leaves out callbacks that are added to those of the run, which has the very same; changed in place.

    Args:
        trainer: the Trainer's options, as they are parsed.
    """
    callbacks = trainer.get("callbacks")
    if isinstance(callbacks, list):
        trainer["callbacks"] = [one for place, one in enumerate(callbacks) if one not in callbacks[:place]]


def differences(saved: dict[str, Any], own: dict[str, Any]) -> Iterator[str]:
    """Says of the seed, of what is recorded and of each option of the Trainer that it is another one than so far.

    Args:
        saved: the config of the run so far; parts of it may be missing.
        own: that of the run that goes on.
    """
    if "seed_everything" in saved and saved["seed_everything"] != own.get("seed_everything"):
        yield f"seed_everything is {own.get('seed_everything')}, no longer {saved['seed_everything']}"
    if "record" in saved and saved["record"] != own.get("record"):
        yield _difference("record", saved["record"], own.get("record"))
    before, now = saved.get("trainer", {}), own.get("trainer", {})
    for option in now:
        if option not in before or option in PLACES or before[option] == now[option]:
            continue
        yield _difference(f"trainer.{option}", before[option], now[option])


def _difference(option: str, before: Any, now: Any) -> str:
    was, has = _described(before), _described(now)
    return f"{option} " + (f"has other values, still {has}" if was == has else f"is {has}, no longer {was}")


def _described(value: Any) -> str:
    """A value in short: of parts the names of their classes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_described, value))}]"
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        return str(value["class_path"]).rpartition(".")[2]
    return "null" if value is None else str(value)
