"""From a checkpoint to one file per task, each checked against the model that it came from."""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from routing_lightning import __version__
from routing_lightning.errors import UsageError
from routing_lightning.export.files import SUFFIXES, Format, load, save
from routing_lightning.export.load import (
    Trained,
    has_data,
    kind_of,
    load_trained,
    moments_of,
    names_of,
    statistics_of,
)
from routing_lightning.export.plain import Input, TaskNetwork, in_units, plain_network
from routing_lightning.modules import RoutedClassifier

MANIFEST = "manifest.json"
SAMPLES = 200  # on which a file is checked
TOLERANCE = 1e-5


@dataclass
class Exported:
    """One task's file, and what it is beside the model.

    Attributes:
        task: name of the task.
        path: the file.
        parameters: numbers of parameters before, of the model without what only training needs, and after.
        megabytes: size before, parameters and buffers alone, and after, the file.
        milliseconds: median time of one image before and after, on the host, in this process.
        difference: largest difference of a logit, or a value in the user's units, to the model's.
        agreement: share of the samples with the model's prediction, in [0, 1].
    """

    task: str
    path: Path
    parameters: tuple[int, int]
    megabytes: tuple[float, float]
    milliseconds: tuple[float, float]
    difference: float
    agreement: float


def export_checkpoint(
    checkpoint: str | Path,
    out: str | Path,
    task: str = "all",
    kind: Format = "torch",
    int8: bool = False,
    given: Input = "uint8",
    trust: Sequence[str] = (),
) -> list[Exported]:
    """Writes the plain network of one task, or of each, and a manifest.

    Each file is read again and compared with the model on images of the task's test part, or on noise where the data
    are not there.

    Args:
        checkpoint: a checkpoint of the command line.
        out: folder for the files.
        task: name or number of a task, or ``"all"``.
        kind: ``"torch"`` or ``"onnx"``.
        int8: store weights as 8-bit integers, with ONNX only; logits then differ.
        given: what the network takes: ``"uint8"`` images, 0 to 255, or ``"float"``, the same divided by 255.
        trust: modules of yours that the checkpoint may name.

    Returns:
        What was written, task by task.

    Raises:
        UsageError: if the checkpoint cannot be read, there is no such task, the network cannot be written so, or a file
            does not give what the model gives.
    """
    trained = load_trained(checkpoint, trust)
    names, classes = names_of(trained)
    has_data(trained)  # so that files are checked on its images
    chosen = range(len(names)) if task == "all" else [task_number(task, names)]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    before = cost_of(trained)
    files = file_names(names)
    written, entries = [], []
    for number in chosen:
        network = TaskNetwork(
            plain_network(trained.model, number),
            len(classes[number]),
            moments_of(trained.model),
            given,
            kind_of(trained.model, number)[1],
        )
        metadata = metadata_of(trained, number, names[number], classes[number], network, given)
        path = folder / f"{files[number]}{SUFFIXES[kind]}"
        save(network.eval(), example_of(trained, network, 2), path, metadata, kind, int8)
        found = compared(trained, network, number, names[number], path, before, int8)
        written.append(found)
        entries.append({"file": path.name, "parameters": found.parameters[1], **metadata})
    manifest = {"format": kind, "int8": int8, "networks": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return written


def task_number(task: str, names: list[str]) -> int:
    """The number of a task given by name or number.

    Raises:
        UsageError: if there is none.
    """
    if task in names:
        return names.index(task)
    if task.isdecimal() and int(task) < len(names):
        return int(task)
    raise UsageError(f"task is {task!r}; give one of {', '.join(names)}, or all.")


def file_names(names: list[str]) -> list[str]:
    """Names of files for tasks: letters, digits, dots and dashes of the name, and its number where two would be one."""
    made = [re.sub(r"[^\w.-]+", "_", name).strip("._") or "task" for name in names]
    lower = [name.lower() for name in made]
    return [name if lower.count(name.lower()) == 1 else f"{name}_{number}" for number, name in enumerate(made)]


def metadata_of(
    trained: Trained, number: int, name: str, classes: list[str], network: TaskNetwork, given: Input
) -> dict[str, Any]:
    """What a user of the file must know, as plain values; docs/export.md explains each."""
    model = trained.model
    normalised = network.scale is not None
    kind = given if normalised else "float"
    route = None
    if isinstance(model, RoutedClassifier) and not model.router.uses_state:
        route = model.router.routes()[number].tolist()
    of, value = kind_of(model, number)
    mean, std = statistics_of(trained) if normalised else (None, None)
    values = {"uint8": [0, 255], "float": [0.0, 1.0]}[kind] if normalised else None
    return {
        "task": {"name": name, "number": number, "kind": of},
        "classes": classes,
        "input": {
            "name": "images",
            "type": "uint8" if kind == "uint8" else "float32",
            "shape": ["batch", *trained.image_shape],
            "values": values,
            "normalised_inside": normalised,
            "mean": mean,
            "std": std,
        },
        "output": {
            "name": "logits" if value is None else "value",
            "shape": ["batch", len(classes)],
            "mean": None if value is None else value[0],
            "std": None if value is None else value[1],
        },
        "route": route,
        "source": trained.path.name,
        "software": {"routing_lightning": __version__, "torch": torch.__version__},
    }


def example_of(trained: Trained, network: TaskNetwork, count: int) -> Tensor:
    """Noise of the shape and type that a network takes: (count, C, H, W), in the datamodules' memory format."""
    channels, height, width = trained.image_shape
    grey = torch.randint(256, (count, height, width, channels), dtype=torch.uint8).permute(0, 3, 1, 2)
    if network.scale is None:
        return grey / 255 - 0.5
    return grey / 255 if network.grey else grey


def reference(trained: Trained, network: TaskNetwork) -> Callable[[Tensor, int], Tensor]:
    """What the model itself gives for images as a file takes them, and a task."""

    @torch.no_grad()
    def run(images: Tensor, task: int) -> Tensor:
        x = images
        if network.scale is not None and network.shift is not None:
            x = (images * 255).round() if network.grey else images.to(torch.float32)
            x = x * network.scale + network.shift
        logits: Tensor = trained.model(x, torch.full((len(x),), task))
        return logits

    return run


def samples_of(trained: Trained, network: TaskNetwork, task: int) -> Tensor:
    """Images of a task's test part, or noise where the data are not there or come in a way of their own."""
    data = getattr(trained.data, "test_dataset", None)
    if data is None or network.scale is None:
        return example_of(trained, network, 32)
    positions = torch.nonzero(data.tasks == task).flatten()[:SAMPLES]
    if not len(positions):
        return example_of(trained, network, 32)
    images: Tensor = data[positions][0]
    return images / 255 if network.grey else images


def compared(
    trained: Trained,
    network: TaskNetwork,
    number: int,
    name: str,
    path: Path,
    before: tuple[int, float],
    int8: bool,
) -> Exported:
    """A file beside the model that it came from.

    Raises:
        UsageError: if it gives something else; never with ``int8``.
    """
    run, _ = load(path)
    model = reference(trained, network)
    images = samples_of(trained, network, number)
    ours, theirs = in_units(model(images, number)[:, : network.classes], network.value), run(images)
    difference = float((ours - theirs).abs().max())
    agreement = float(same_predictions(ours, theirs, *kind_of(trained.model, number)).float().mean())
    scale = max(1.0 if network.value is None else network.value[1], float(ours.abs().max()))
    if not int8 and not difference <= TOLERANCE * scale:
        raise UsageError(
            f"{path} differs from the model by up to {difference:.2g} in an output; do not use it, and report the "
            "versions of torch and onnxruntime."
        )
    one = images[:1]
    return Exported(
        name,
        path,
        (before[0], count_parameters(network)),
        (before[1], path.stat().st_size / 1e6),
        (milliseconds(lambda: model(one, number)), milliseconds(lambda: run(one))),
        difference,
        agreement,
    )


def same_predictions(ours: Tensor, theirs: Tensor, kind: str, value: tuple[float, float] | None) -> Tensor:
    """Whether outputs (N, K) say the same, (N,) bool: class, labels, or value to a hundredth of its spread."""
    if value is not None:
        return ((ours - theirs).abs() <= 0.01 * value[1]).all(1)
    if kind == "labels":
        return ((ours > 0) == (theirs > 0)).all(1)
    return ours.argmax(1) == theirs.argmax(1)


def cost_of(trained: Trained) -> tuple[int, float]:
    """Number of the model's parameters and megabytes of its parameters and buffers, without metrics."""
    parts = [part for name, part in trained.model.named_children() if name not in ("metrics", "aggregator", "joint")]
    tensors = [tensor for part in parts for tensor in part.state_dict().values()]
    return sum(map(count_parameters, parts)), sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6


def count_parameters(module: nn.Module) -> int:
    """Number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def milliseconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """Median time of a call, after a few to warm up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * sorted(times)[repeats // 2]
