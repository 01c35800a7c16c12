"""Names for runs, groups of runs, and the paper's values to compare with."""

import csv
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from routing_lightning.plots import Curve
from routing_lightning.report.runs import BEFORE, LENGTH, Run, seed_of, settings_of

ALL_FC = "routing-all-fc"
SAME = {"MARL-WPL: table": ALL_FC}  # two names of the paper for one method
EPOCHS = (1, 5, 10, 20, 50, 100)  # of the paper's table
# What any method may have besides, and what its name then ends with.
EXTRAS = {"joint_loss": "joint loss", "label_smoothing": "label smoothing", "flip_test": "flip"}


def paper_values() -> dict[tuple[str, str], dict[int, float]]:
    """The paper's table of numeric results (appendix): accuracy in [0, 1] by (data set, method) and epoch."""
    text = files("routing_lightning.report").joinpath("paper_table4.csv").read_text()
    return {
        (row["dataset"], row["method"]): {epoch: float(row[f"epoch_{epoch}"]) / 100 for epoch in EPOCHS}
        for row in csv.DictReader(text.splitlines())
    }


def dataset_name(config: dict[str, Any]) -> str:
    """The paper's name of the data set, or the class of the datamodule; and how the data differ from the whole."""
    name, options = _whole_dataset(config), _args(config.get("data"))
    changes = []
    if name == "CIFAR-MTL" and options.get("num_tasks", 20) != 20:
        name = f"CIFAR-100 as {options['num_tasks']} tasks"
    if options.get("two_modalities"):
        changes.append("two modalities")
    if options.get("train_fraction", 1) != 1:
        changes.append(f"{100 * options['train_fraction']:g} % of the training data")
    if options.get("train_per_task") is not None:
        changes.append(f"{sum(options['train_per_task']):,} training images")
    return ", ".join([name, *changes])


def _whole_dataset(config: dict[str, Any]) -> str:
    parts = _args(config.get("data")).get("datamodules")
    if parts:
        return " and ".join(dataset_name({"data": part}) for part in parts)
    name = _class(config.get("data")) or "unknown data"
    known = {"CIFARMTL": "CIFAR-MTL", "MNISTMTL": "MNIST-MTL", "MINMTL": "MIN-MTL", "DigitsMTL": "Digits-MTL"}
    name = name.removesuffix("DataModule")
    if name.startswith("MiniImageNet"):
        return "MIN-MTL"
    return known.get(name, name)


def validation_data(config: dict[str, Any]) -> str:
    """What ``val/*`` was measured on, in words, as far as a config tells.

    Of our datamodules ``val_fraction`` says it; another one may hold out a part of its own, or none.
    """
    data = config.get("data")
    fraction = _args(data).get("val_fraction")
    path = data.get("class_path", "") if isinstance(data, dict) else ""
    if fraction:
        return "validation part"
    ours = fraction == 0 and path.startswith("routing_lightning.")
    return "test set" if ours or (fraction is None and "." not in path and path) else "validation data"


def method_name(config: dict[str, Any]) -> str:
    """What the paper calls the method of a config, or a name from its parts where the paper has none."""
    model = config.get("model") or {}
    args = _args(model)
    name = _routing_name(args) if "router" in args else _network_name(model)
    features = _class(args.get("features")) or _class(_args(args.get("network")).get("features"))
    if features not in (None, "SimpleConvNet"):  # the paper's
        name = f"{name}, {features}"
    aggregator = _class(args.get("aggregator"))
    extra = [aggregator, *(words for option, words in EXTRAS.items() if args.get(option))]
    return " + ".join([name, *filter(None, extra)])


def _network_name(model: dict[str, Any]) -> str:
    args = _args(model)
    network = args.get("network")
    name = _class(network) or _class(model) or "unknown method"
    if name == "TaskSpecific":
        own = _args(network).get("own_layers")
        if own == 0:
            return "shared"
        if args.get("shared_features") is False:
            return "separate networks"
        return "task specific-all-fc" if own in (None, _args(network).get("depth", 3)) else f"task specific-{own}-fc"
    return {"CrossStitch": "cross stitch-all-fc", "SoftMixture": "soft mixture-all-fc"}.get(name, name)


OTHER_ROUTERS = {
    "GumbelRouter": "Gumbel-softmax routing",
    "Top1Router": "top-1 routing",
    "BranchingRouter": "branching",
}


def _routing_name(args: dict[str, Any]) -> str:
    """Name of a routed network: by its router, and by its body where that is not the paper's."""
    network = args.get("network")
    kind, options = _class(network) or "RoutingAllFC", _args(network)
    name = _router_name(args["router"])
    if options.get("recurrent_steps"):
        return f"{name} recursive" if name == ALL_FC else f"{name}, recursive"
    if kind == "RoutingAllFC":
        return name
    body = options.get("name", "resnet18") if kind == "RoutedBackbone" else kind
    body = "all layers" if kind == "RoutingAllLayers" else body
    if name.startswith(ALL_FC):  # all-fc names what is routed
        return name.replace(ALL_FC, f"routing-{body.replace(' ', '-')}")
    return f"{name}, {body}"


def _stitched(name: str, router: dict[str, Any]) -> str:
    return f"{name}, stitched" if router.get("stitch") else name


def _router_name(part: Any) -> str:
    kind, router = _class(part) or "router", _args(part)
    if kind == "FixedRoutes":
        routes, shared = router.get("routes", "random"), router.get("shared_depths")
        name = f"fixed {routes} routing" if isinstance(routes, str) else "given routes"
        return _stitched(f"{name} after {shared} shared" if shared else name, router)
    if kind != "RewardRouter":
        name, learner = OTHER_ROUTERS.get(kind, kind), _class(router.get("learner"))
        return _stitched(name if learner in (None, "PairedDifference") else f"{name} by {learner}", router)
    learner, policy = _class(router.get("learner")) or "router", _class(router.get("policy")) or ""
    agents = router.get("agents", "per_task")
    if agents == "dispatched":
        return f"{ALL_FC} dispatched"
    if agents == "single" and learner in ("REINFORCE", "WPL"):
        return f"{ALL_FC} single agent"
    if learner == "WPL":
        return ALL_FC  # the paper's MARL-WPL: table is the same
    known = {"QLearning": "Qlearning", "WPL": "MARL-WPL"}
    learner = learner.removeprefix("Approximate")
    name = f"{known.get(learner, learner)}: {'table' if policy.startswith('Tabular') else 'approx'}"
    return f"{name}, single agent" if agents == "single" else name


def _class(part: Any) -> str | None:
    """Last part of a class path, of a config section or a plain path."""
    path = part.get("class_path") if isinstance(part, dict) else part
    return path.rpartition(".")[2] if isinstance(path, str) else None


def _args(part: Any) -> dict[str, Any]:
    found = part.get("init_args") if isinstance(part, dict) else None
    return found if isinstance(found, dict) else {}


@dataclass
class Group:
    """Runs that differ in the seed only.

    Attributes:
        name: what it is called; tells it apart from the other groups of its data set.
        dataset: name of the data set.
        method: name of the method, as in the paper.
        runs: its runs, at least one.
    """

    name: str
    dataset: str
    method: str
    runs: list[Run]

    @property
    def data(self) -> str:
        """What its accuracy was measured on, in words."""
        return validation_data(self.runs[0].config)

    @property
    def logged(self) -> list[Run]:
        """Its runs that logged a validation of their own: of the others nothing but routes and cost is known."""
        return [run for run in self.runs if not run.is_unlogged]

    def seeds(self) -> dict[Any, list[Run]]:
        """Its logged runs by their seed: repeats of a seed are one sample. A run without a seed stands for itself."""
        found: dict[Any, list[Run]] = {}
        for run in self.logged:
            seed = seed_of(run)
            found.setdefault(run.folder if seed is None else seed, []).append(run)
        return found

    def over_seeds(self, value: Callable[[Run], float | None]) -> list[float]:
        """What the logged runs have of something, a number for each seed: the mean of its repeats."""
        return list(self._by_seed(value).values())

    def _by_seed(self, value: Callable[[Run], float | None]) -> dict[Any, float]:
        found = {
            seed: [number for number in map(value, runs) if number is not None] for seed, runs in self.seeds().items()
        }
        return {seed: statistics.fmean(numbers) for seed, numbers in found.items() if numbers}

    def _at(self, epoch: int) -> dict[Any, float]:
        return self._by_seed(lambda run: run.accuracy.get(epoch))

    @property
    def last_epoch(self) -> int:
        """The last epoch that one of its runs reached; 0 if none has ended an epoch."""
        return max((epoch for run in self.runs for epoch in run.accuracy), default=0)

    def furthest(self, run: Run) -> bool:
        """Whether a run got as far as any of the group: of the others the last values are of another epoch."""
        return max(run.accuracy, default=0) == self.last_epoch

    def curve(self) -> Curve:
        """Mean and spread of the accuracy at each epoch that a run reached."""
        epochs = sorted({epoch for run in self.runs for epoch in run.accuracy})
        values = [list(self._at(epoch).values()) for epoch in epochs]
        counts = sorted({len(row) for row in values})
        words = "" if counts in ([], [1]) else f" (n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))})"
        return Curve(
            self.name + words,
            np.array(epochs),
            np.array([statistics.fmean(row) for row in values]),
            np.array([statistics.stdev(row) if len(row) > 1 else 0.0 for row in values]),
        )

    def at(self, epoch: int) -> tuple[float, float] | None:
        """Mean and standard deviation of the accuracy at an epoch, over the seeds that reached it."""
        return mean_and_spread(list(self._at(epoch).values()))

    def seeds_at(self, epoch: int) -> dict[Any, float]:
        """The accuracy of each seed at an epoch that it reached; without runs that have no seed."""
        return {seed: value for seed, value in self._at(epoch).items() if not isinstance(seed, Path)}


def mean_and_spread(values: Sequence[float]) -> tuple[float, float] | None:
    """Mean and standard deviation: None of no value, and no deviation (NaN) of a single one."""
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


# How names of methods begin that do not learn where to route, the nearest to routing first: what a learned route must
# beat. Not given routes: where they come from no config tells, and those that prune leaves were learned.
CONTROLS = (
    "fixed random routing",
    "fixed own routing",
    "fixed shared routing",
    "shared",
    "task specific-all-fc",
    "task specific-1-fc",
    "separate networks",
)
# Quantiles of Student's t for 95 %, by degrees of freedom from 1.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def body_of(config: dict[str, Any]) -> tuple[Any, ...] | None:
    """What is routed, whoever routes: class, name and recurrence of the network; None without a router."""
    args = _args(config.get("model"))
    if "router" not in args:
        return None
    options = _args(args.get("network"))
    return _class(args.get("network")) or "RoutingAllFC", options.get("name"), options.get("recurrent_steps") or 0


def control_of(groups: Sequence[Group], group: Group) -> Group | None:
    """What a group is compared with: a control of the same network, or, without one, of another.

    Of several the one whose training has the fewest other settings, then that nearest to routing.

    Args:
        groups: the groups of a data set.
        group: one of them.

    Returns:
        The control, which may be the group itself; None if there is none among them.
    """
    controls = [
        other
        for name in CONTROLS
        for other in groups
        if other.method.startswith(name) and len(other.curve().epochs) and _is_untaught(other, group)
    ]
    body = body_of(group.runs[0].config)
    return min(  # the first of equals
        controls,
        key=lambda other: (body_of(other.runs[0].config) != body, len(_training_apart(group, other))),
        default=None,
    )


# What makes a method; all other settings are those of a training, which are to be equal where methods are compared.
OF_METHOD = tuple(f"model.init_args.{part}" for part in ("router", "network", "features", "final_reward"))


def _training_apart(group: Group, control: Group) -> dict[str, tuple[Any, Any]]:
    """Settings of the trainings of two groups that differ, with both values; its length apart, as epochs are paired."""
    ours, theirs = settings_of(group.runs[0]), settings_of(control.runs[0])
    return {
        name: (ours[name], theirs[name])
        for name in sorted({*ours} & {*theirs})
        if not name.startswith(OF_METHOD) and name != "model.class_path" and name not in LENGTH
        if not name.endswith(BEFORE) and _exact(ours[name]) != _exact(theirs[name])
    }


def unlike(group: Group, control: Group) -> list[str]:
    """In which settings the training of a group differs from that of a control, each with both values."""
    found = _training_apart(group, control)
    words = {name: _words(name, list(values)) for name, values in found.items()}
    return [f"{_label(name, found)} {own}, of the control {other}" for name, (own, other) in words.items()]


def _is_untaught(control: Group, group: Group) -> bool:
    """Whether a control learned nothing of other tasks' routes: by stitches, or by weights that the group had not."""
    if _args(_args(control.runs[0].config.get("model")).get("router")).get("stitch"):
        return False
    ours, theirs = settings_of(control.runs[0]), settings_of(group.runs[0])
    before = [name for name in ours if name.startswith("model.") and name.endswith(f"class_path{BEFORE}")]
    weights = [(ours.get(name), theirs.get(name)) for name in ("weights", f"weights{BEFORE}")]
    return not before and all(own is None or own == other for own, other in weights)


@dataclass
class Difference:
    """How much better a group is than a control, seed by seed.

    Attributes:
        epoch: the last epoch that both reached with a common seed.
        seeds: number of common seeds.
        mean: mean difference of the accuracies.
        half: half the width of its 95 % interval (Student's t); NaN for a single seed.
    """

    epoch: int
    seeds: int
    mean: float
    half: float


def difference(group: Group, control: Group) -> Difference | None:
    """The paired difference; None if the two have no seed, or no epoch, in common, or were measured on other data."""
    if group.data != control.data:
        return None
    epochs = sorted({epoch for run in group.runs for epoch in run.accuracy}, reverse=True)
    best: list[float] = []
    for epoch in epochs:  # the latest of those with the most seeds
        ours, theirs = group.seeds_at(epoch), control.seeds_at(epoch)
        pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if len(pairs) > len(best):
            best, last = pairs, epoch
    if not best:
        return None
    mean, spread = statistics.fmean(best), statistics.stdev(best) if len(best) > 1 else math.nan
    freedom = len(best) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96 + 2.5 / freedom
    return Difference(last, len(best), mean, quantile * spread / math.sqrt(len(best)))


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Groups runs that differ in the seed only, in the order of their first runs."""
    members: dict[str, list[Run]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        flat = settings_of(run)
        key = _exact(flat) if run.config else str(run.folder)
        members.setdefault(key, []).append(run)
        settings[key] = flat
    groups = []
    for key, found in members.items():
        config = found[0].config
        dataset, method = dataset_name(config), method_name(config) if config else found[0].folder.name
        groups.append((key, Group(method, dataset, method, found)))
    for key, group in groups:
        rivals = [other for other, twin in groups if (twin.dataset, twin.method) == (group.dataset, group.method)]
        if len(rivals) > 1:
            group.name = f"{group.method} ({_differences(key, rivals, settings) or group.runs[0].folder})"
    for _, group in groups:  # without a config, or where a method is called as another with its settings
        namesakes = [other for _, other in groups if (other.dataset, other.name) == (group.dataset, group.name)]
        if len(namesakes) > 1:
            for other in namesakes:
                other.name = f"{other.name}, {other.runs[0].folder}"
    return [group for _, group in groups]


UNSET = object()
LONGEST = 60  # characters of a value in a name


def _exact(value: Any) -> str:
    """A value, or settings, as text that no other one has."""
    return "unset" if value is UNSET else json.dumps(value, sort_keys=True, default=str)


def _differences(key: str, rivals: list[str], settings: dict[str, dict[str, Any]]) -> str:
    """All settings in which some of the groups of a method differ, with the values of one of them."""
    names = sorted({name for rival in rivals for name in settings[rival]})
    shown = []
    of_all = {name: [settings[rival].get(name, UNSET) for rival in rivals] for name in names}
    differing = {name: values for name, values in of_all.items() if len(set(map(_exact, values))) > 1}
    for name, values in differing.items():
        words = [
            "as now" if name.endswith(BEFORE) and value is UNSET else word
            for word, value in zip(_words(name, values), values, strict=True)
        ]
        shown.append(f"{_label(name, differing)} {words[rivals.index(key)]}")
    return ", ".join(shown)


def _label(name: str, others: Iterable[str]) -> str:
    """The last part of a setting's name, or as many as tell it from the others; of a class the name of its place."""
    parts = _place(name).split(".")
    rest = [_place(other).split(".") for other in others if other != name]
    for number in range(1, len(parts)):
        if all(other[-number:] != parts[-number:] for other in rest):
            return ".".join(parts[-number:])
    return ".".join(parts)


def _place(name: str) -> str:
    name = name.replace(".init_args.", ".")
    return name.removesuffix(".class_path") if BEFORE not in name else name.replace(f".class_path{BEFORE}", BEFORE)


def _words(name: str, values: list[Any]) -> list[str]:
    """The values that groups have of a setting, each different one in other words: short ones where that will do."""
    is_class = name.removesuffix(BEFORE).endswith("class_path")
    exact = [_exact(value) for value in values]
    for words in (
        [_brief(value, is_class) for value in values],
        [_brief(value, is_class, whole=True) for value in values],
    ):
        words = [_clipped(word, own) for word, own in zip(words, exact, strict=True)]
        if len(set(words)) == len(set(exact)):
            return words
    return [f"{word} #{_digest(own)}" for word, own in zip(words, exact, strict=True)]


def _clipped(word: str, exact: str) -> str:
    """A value's words, of long ones their beginning, or of a path its end, and what tells it from others."""
    if len(word) <= LONGEST:
        return word
    is_path = "/" in word and not word.startswith("[")
    return (f"…{word[-LONGEST:]}" if is_path else f"{word[:LONGEST]}…") + f" #{_digest(exact)}"


def _digest(text: str) -> str:
    """A few digits that tell long texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _brief(value: Any, is_class: bool = False, whole: bool = False) -> str:
    """A value of a config, of classes their names alone, or with what they are made of."""
    if value is UNSET:
        return "unset"
    if isinstance(value, list):
        return f"[{', '.join(_brief(one, is_class, whole) for one in value)}]"
    name = _class(value) if is_class or (isinstance(value, dict) and "class_path" in value) else None
    if name is None:
        return repr(value) if whole else str(value)
    if whole and isinstance(value, str):
        return value
    options = ", ".join(f"{option}={_brief(one, whole=True)}" for option, one in _args(value).items()) if whole else ""
    return f"{name}({options})" if options else name
