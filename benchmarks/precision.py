"""Which precision, memory format and batch size train fastest on this machine: it differs from one CPU to the next."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.harness import Options, Table, in_turns, milliseconds, significant
from benchmarks.steps import CLASSES, SHAPE, batch_of
from routing_lightning.networks import ResNet9, SimpleConvNet

NETWORKS: dict[str, Callable[..., nn.Module]] = {"ResNet9": ResNet9, "SimpleConvNet": SimpleConvNet}
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
SIZES = (16, 64, 128, 256)


def step_of(network: str, precision: str, size: int, channels_last: bool, device: str) -> Callable[[], None]:
    """A training step of features and a linear layer, at a precision by Lightning's name."""
    features = NETWORKS[network](SHAPE)
    net = nn.Sequential(features, nn.Linear(features.out_features, CLASSES)).to(device)
    net.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    images, _, labels = batch_of(size, 1, device, channels_last)
    if precision == "bf16-true":
        net, images = net.bfloat16(), images.bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    mixed = precision == "bf16-mixed"

    def step() -> None:
        with torch.autocast(device, torch.bfloat16) if mixed else nullcontext():
            loss = cross_entropy(net(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare(network: str, choices: dict[str, tuple[str, int, bool]], title: str, options: Options) -> Table:
    """Times steps of a network in turns; ``choices`` are precision, batch size and whether channels-last, by name."""
    ways = {name: step_of(network, *choice, options.device) for name, choice in choices.items()}
    times = in_turns({name: partial(way) for name, way in ways.items()}, options)
    table = Table(f"{network}, {title}")
    fastest = min(milliseconds(times[name]) / choices[name][1] for name in ways)
    for name in ways:
        each = milliseconds(times[name]) / choices[name][1]
        table.rows.append(
            {"step": name, "ms per image": significant(each), "over the fastest": significant(each / fastest)}
        )
    return table


def run(options: Options) -> list[Table]:
    """Milliseconds per image of a training step, by precision, memory format and batch size."""
    tables = []
    for network in NETWORKS:
        formats = {
            f"{precision}, {'channels-last' if last else 'contiguous'}": (precision, 128, last)
            for precision in PRECISIONS
            for last in (True, False)
        }
        tables.append(compare(network, formats, "batch 128", options))
        sizes = {
            f"{precision}, batch {size}": (precision, size, True)
            for precision in PRECISIONS[:2]
            for size in SIZES[: 2 if options.quick else None]
        }
        tables.append(compare(network, sizes, "channels-last", options))
    return tables
