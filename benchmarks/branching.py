"""A training step of staged counterfactual branching by where the open depth is, against one without search."""

from functools import partial

from benchmarks.harness import Options, Table, Way, in_turns, milliseconds, ratio, significant
from benchmarks.steps import CLASSES, HIDDEN, SHAPE, RoutedStep, batch_of, fully_connected, plain_step
from routing_lightning.networks import RoutingAllLayers, SimpleConvNet
from routing_lightning.routers import BranchingRouter, PairedDifference

TASKS = 20
DEPTHS = 7
LONG = 10**9  # batches that a depth stays open


def branching(device: str, depth: int | None, stitch: bool = False) -> RoutedStep:
    """A step whose router keeps a depth open, from 0, half of the tasks parted above it; None: all is over."""
    router = BranchingRouter(PairedDifference(normalised=False, lr=1e-9), begin=0, stage=LONG, stitch=stitch)
    body = RoutingAllLayers(SHAPE, TASKS, CLASSES, hidden=HIDDEN, num_blocks=TASKS + 1)
    step = RoutedStep(TASKS, TASKS + 1, device, body, router)
    parted = 0 if depth is None else depth + 1
    router.routes_so_far[::2, parted:] = 1
    router.opened.fill_(DEPTHS - (depth or 0))
    router.closed.fill_(DEPTHS if depth is None else DEPTHS - depth - 1)
    router.waited.fill_(LONG // 2)  # the copies have settled
    return step


def parted(device: str, stitch: bool) -> RoutedStep:
    """A step in which each task has fully connected layers of its own, which cross-stitch units may mix."""
    step = branching(device, None, stitch)
    assert isinstance(step.router, BranchingRouter)
    step.router.routes_so_far[:, -3:] = 1
    return step


def compare(size: int, options: Options) -> Table:
    """Times a plain step and those of a search at one batch size, in turns."""
    device = options.device
    batch = batch_of(size, TASKS, device)
    features = SimpleConvNet()
    plain = plain_step(features, fully_connected(features.out_features), device)
    ways: dict[str, Way] = {
        "plain": partial(plain, batch),
        "after the search": partial(branching(device, None), batch),
        "after the search, layers 5 to 7 private": partial(parted(device, stitch=False), batch),
        "the same, stitched": partial(parted(device, stitch=True), batch),
    }
    for depth in (DEPTHS - 1, 3, 0):
        ways[f"search at layer {depth + 1} of {DEPTHS}"] = partial(branching(device, depth), batch)
    times = in_turns(ways, options, turn_seconds=0.1)
    table = Table(f"batch {size}, {TASKS + 1} blocks in each of {DEPTHS} layers, {TASKS} tasks, float32")
    for name in ways:
        row = {"step": name, "ms": milliseconds(times[name]), "over plain": significant(ratio(times, name, "plain"))}
        table.rows.append(row | {"over after the search": significant(ratio(times, name, "after the search"))})
    return table


def run(options: Options) -> list[Table]:
    """What the second run of the part above the open depth costs, by batch size."""
    return [compare(size, options) for size in (16, 64)]
