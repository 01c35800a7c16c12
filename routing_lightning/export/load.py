"""A trained model from its checkpoint alone."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from routing_lightning.cli.checkpoints import CONFIG_KEY, SIZES, config_of, load, saved_names
from routing_lightning.datamodules import MultiTaskDataModule
from routing_lightning.errors import UsageError
from routing_lightning.modules import TaskClassifier
from routing_lightning.parser import SentenceParser, one_sentence
from routing_lightning.targets import Targets


@dataclass
class Trained:
    """What a checkpoint holds, made again.

    Attributes:
        path: the checkpoint's file.
        model: the model with its weights, in evaluation mode, on the host.
        data: the datamodule of the run, not set up: its files need not be there.
        image_shape: channels, height and width of the images.
        config: the run's config as the checkpoint holds it.
        checkpoint: all else in the file.
    """

    path: Path
    model: TaskClassifier
    data: MultiTaskDataModule
    image_shape: tuple[int, int, int]
    config: dict[str, Any]
    checkpoint: dict[str, Any]


def load_trained(path: str | Path, trust: Sequence[str] = ()) -> Trained:
    """Makes model and datamodule again from a checkpoint of the command line.

    Args:
        path: the checkpoint; read with ``weights_only=True``.
        trust: modules of yours that it may name, beside this package and the libraries it is made of.

    Raises:
        UsageError: if it cannot be read, or holds no config to make the model from.
    """
    config = config_of(Path(path), trust, set())  # the one door through which a file may name classes to make
    if config is None:
        raise UsageError(
            f"{path} holds no config (key {CONFIG_KEY}), from which the model would be made; give a checkpoint that "
            "the command line wrote, or use the functions of routing_lightning.export in Python."
        )
    checkpoint = load(Path(path))
    model, data, sizes = make(config, checkpoint.get("hyper_parameters", {}))
    model.load_state_dict(checkpoint["state_dict"])
    targets = checkpoint.get("targets")
    model.take_targets(None if targets is None else Targets(**targets))
    shape = tuple(sizes["image_shape"])  # given or asked of the data
    whole = yaml.safe_load(checkpoint[CONFIG_KEY])
    return Trained(Path(path), model.eval(), data, (shape[0], shape[1], shape[2]), whole, checkpoint)


def make(config: dict[str, Any], given: dict[str, Any]) -> tuple[TaskClassifier, MultiTaskDataModule, dict[str, Any]]:
    """Makes model and datamodule of a config.

    Args:
        config: ``model`` and ``data`` of a run; all else is ignored.
        given: values that the run had from elsewhere: the sizes, which the data tell.

    Returns:
        Model, datamodule and sizes; the model with fresh weights.

    Raises:
        UsageError: if it cannot be made.
    """
    sizes = {size: given[size] for size in SIZES if given.get(size) is not None}
    try:
        data = _instance("data", MultiTaskDataModule, config["data"])
        assert isinstance(data, MultiTaskDataModule)
        for size in SIZES:
            if size not in sizes:  # else not asked for: files of the data need not be there
                sizes[size] = getattr(data, size)
        of_model = {**config["model"], "init_args": {**(config["model"].get("init_args") or {}), **sizes}}
        model = _instance("model", TaskClassifier, of_model)
        assert isinstance(model, TaskClassifier)
    except KeyError as error:
        raise UsageError(f"the checkpoint's config has no {error}; give a checkpoint of the command line.") from error
    return model, data, sizes


def _instance(name: str, kind: type, values: Any) -> object:
    parser = SentenceParser(exit_on_error=False)
    parser.add_lightning_class_args(kind, name, subclass_mode=True)
    try:
        return parser.instantiate_classes(parser.parse_object({name: values}))[name]
    except argparse.ArgumentError as error:
        raise UsageError(f"the {name} of the checkpoint's config cannot be made: {one_sentence(str(error))}") from error


def names_of(trained: Trained) -> tuple[list[str], list[list[str]]]:
    """Names of the tasks, and of each task's classes or labels; of a task of values it is "value".

    They are in the checkpoint; in those from before the names of the data, or numbers where these are not there.
    """
    model = trained.model
    found = saved_names(trained.checkpoint)
    if found is not None:
        return found
    if has_data(trained):
        return list(trained.data.task_names), [list(names) for names in trained.data.class_names]
    objective = model.objective
    sizes = [model.num_classes] * model.num_tasks if objective is None else objective.targets.sizes
    return [str(task) for task in range(model.num_tasks)], [[str(number) for number in range(size)] for size in sizes]


def has_data(trained: Trained) -> bool:
    """Whether the data of the run are there; sets them up."""
    try:
        state = trained.checkpoint.get(type(trained.data).__qualname__)  # as Lightning names it
        if state:
            trained.data.restore(state)  # its split and normalisation, and not new ones
        trained.data.setup("test")
    except (UsageError, OSError):
        return False
    return True


def kind_of(model: TaskClassifier, task: int) -> tuple[str, tuple[float, float] | None]:
    """Kind of a task, and mean and standard deviation of its values, if it has some."""
    if model.objective is None:
        return "classes", None
    targets = model.objective.targets
    kind = targets.kinds[task]
    return kind, (targets.means[task], targets.stds[task]) if kind == "value" else None


def moments_of(model: TaskClassifier) -> tuple[Tensor, Tensor] | None:
    """Factor and summand, (C, 1, 1) each, by which grey values 0..255 are normalised; None where only the data know."""
    known = model.normalise
    return (known.scale.clone(), known.shift.clone()) if known.known else None


def statistics_of(trained: Trained) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in units of [0, 1], by which a model normalises.

    As the run's data had them where they tell, so that they give the same to the bit; else from the model's own
    numbers.
    """
    data = trained.data
    state = trained.checkpoint.get(type(data).__qualname__) or {}
    mean, std = state.get("mean", getattr(data, "mean", None)), state.get("std", getattr(data, "std", None))
    if mean is None or std is None:
        own = trained.model.normalise
        spread = 1 / (255 * own.scale.double())
        mean, std = (-own.shift.double() * spread).flatten().tolist(), spread.flatten().tolist()
    return list(mean), list(std)
