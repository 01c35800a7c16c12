"""A training step in which all seven layers are routed, convolutions too, against the same step without routing."""

from functools import partial

from benchmarks.harness import Options, Table, Way, in_turns, milliseconds, ratio, significant
from benchmarks.steps import CLASSES, HIDDEN, SHAPE, RoutedStep, batch_of, fully_connected, plain_step
from routing_lightning.networks import RoutingAllLayers, SimpleConvNet
from routing_lightning.nn.conv import NORMS, Norm

TASKS = BLOCKS = 20
# How many of the tasks share one block in each layer; samples of the others draw theirs evenly, each for itself.
ROUTES = {"random": 0, "all share": TASKS, "half share": TASKS // 2}


def routed(sharing: int, norm: Norm, device: str) -> RoutedStep:
    """A step through seven routed layers in which so many tasks share one block per layer."""
    body = RoutingAllLayers(SHAPE, TASKS, CLASSES, hidden=HIDDEN, num_blocks=BLOCKS, norm=norm)
    step = RoutedStep(TASKS, BLOCKS, device, body)
    table = step.router.policy.table
    table[:sharing] = 0
    table[:sharing, :, 0] = 1
    step.router.learner.policy_lr = 1e-9  # and so it stays, though the step learns
    return step


def compare(size: int, routes: dict[str, int], norms: tuple[Norm, ...], options: Options) -> Table:
    """Times a plain step and routed ones at one batch size, in turns."""
    device = options.device
    batch = batch_of(size, TASKS, device)
    features = SimpleConvNet()
    plain = plain_step(features, fully_connected(features.out_features), device)
    ways: dict[str, Way] = {"plain": partial(plain, batch)}
    for norm in norms:
        for name, sharing in routes.items():
            ways[f"{name}, {norm}"] = partial(routed(sharing, norm, device), batch)
    times = in_turns(ways, options, turn_seconds=0.1)
    table = Table(f"batch {size}, {BLOCKS} blocks in each of 7 layers, {TASKS} tasks, float32")
    for name in ways:
        over = significant(ratio(times, name, "plain"))
        table.rows.append({"step": name, "ms": milliseconds(times[name]), "routed / plain": over})
    return table


def run(options: Options) -> list[Table]:
    """Ratio of a routed to an unrouted step by batch size and route, and by normalisation at batch 64."""
    tables = [compare(size, ROUTES, ("shared",), options) for size in (16, 64, 256)]
    drawn = {name: ROUTES[name] for name in ("random", "all share")}
    by_norm = compare(64, drawn, NORMS, options)
    by_norm.title += ", by normalisation of the convolutions"
    return [*tables, by_norm]
