"""A training step in which all seven layers are routed, convolutions too, against the same step without routing."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.harness import Options, Table, in_turns, milliseconds, ratio, significant
from benchmarks.steps import CLASSES, HIDDEN, batch_of, fully_connected, plain_step, sgd
from routing_lightning.nn import Blocks, ConvBlocks, LinearBlocks, SimpleConvNet
from routing_lightning.nn.conv import NORMS, Norm

BLOCKS = 20
DEPTH = 7
ROUTES = {
    "each sample's drawn": lambda size: torch.randint(BLOCKS, (size, DEPTH)),
    "one for all": lambda size: torch.randint(BLOCKS, (1, DEPTH)).expand(size, DEPTH),
    "one for half, drawn for half": lambda size: torch.where(
        (torch.arange(size) < size // 2)[:, None],
        torch.randint(BLOCKS, (1, DEPTH)),
        torch.randint(BLOCKS, (size, DEPTH)),
    )[torch.randperm(size)],
}
"""What makes the blocks of each sample (N,) and layer, (N, DEPTH) int64."""


class ConvStep:
    """A step of four convolutional and three fully connected layers, the blocks of each sample given.

    Args:
        num_blocks: K, of each layer.
        device: where the blocks are.
        norm: normalisation of the convolutional layers.
    """

    def __init__(self, num_blocks: int, device: str, norm: Norm = "shared") -> None:
        layers: list[Blocks] = [ConvBlocks(num_blocks, channels, 32, norm=norm) for channels in (3, 32, 32, 32)]
        layers += [LinearBlocks(num_blocks, 128, HIDDEN), LinearBlocks(num_blocks, HIDDEN, HIDDEN)]
        layers.append(LinearBlocks(num_blocks, HIDDEN, CLASSES, relu=False))
        self.layers = nn.ModuleList(layers).to(device)
        owned = {id(p) for layer in layers for block in range(num_blocks) for p in layer.block_parameters(block)}
        self.shared = [parameter for parameter in self.layers.parameters() if id(parameter) not in owned]
        self.optimizer = sgd(self.layers.parameters())

    def __call__(self, images: Tensor, labels: Tensor, actions: Tensor) -> None:
        x = images
        for depth, layer in enumerate(self.layers):
            x = layer(x.flatten(1) if depth == 4 else x, actions[:, depth])
        cross_entropy(x, labels).backward()
        group = self.optimizer.param_groups[0]
        everything = group["params"]
        group["params"] = [*self.shared, *(p for layer in self.layers for p in layer.active_parameters())]
        self.optimizer.step()
        for parameter in group["params"]:
            parameter.grad = None
        group["params"] = everything
        for layer in self.layers:
            layer.reset_active()


def compare(size: int, routes: dict[str, Callable[[int], Tensor]], norms: tuple[Norm, ...], options: Options) -> Table:
    """Times a plain step and routed ones at one batch size, in turns."""
    device = options.device
    images, tasks, labels = batch_of(size, BLOCKS, device)
    features = SimpleConvNet()
    plain = plain_step(features, fully_connected(features.out_features), device)
    ways: dict[str, Callable[[], object]] = {"plain": partial(plain, (images, tasks, labels))}
    for norm in norms:
        step = ConvStep(BLOCKS, device, norm)
        for name, make in routes.items():
            ways[f"{name}, {norm}"] = partial(step, images, labels, make(size))
    times = in_turns(ways, options, turn_seconds=0.1)
    table = Table(f"batch {size}, {BLOCKS} blocks in each of {DEPTH} layers, float32")
    for name in ways:
        over = significant(ratio(times, name, "plain"))
        table.rows.append({"step": name, "ms": milliseconds(times[name]), "routed / plain": over})
    return table


def run(options: Options) -> list[Table]:
    """Ratio of a routed to an unrouted step by batch size and route, and by normalisation at batch 64."""
    tables = [compare(size, ROUTES, ("shared",), options) for size in (16, 64, 256)]
    drawn = {name: ROUTES[name] for name in ("each sample's drawn", "one for all")}
    by_norm = compare(64, drawn, NORMS, options)
    by_norm.title += ", by normalisation of the convolutions"
    return [*tables, by_norm]
