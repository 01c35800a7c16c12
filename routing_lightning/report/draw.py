"""The figures of one run, as files."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from routing_lightning.errors import UsageError
from routing_lightning.plots import (
    block_usage,
    overlap,
    policy_dynamics,
    policy_evolution,
    policy_heatmap,
    private_share,
    routing_map,
    save,
    sharing_profile,
    task_overlap,
    usage_evolution,
)
from routing_lightning.record import FILE_NAME, RouteRecord, shares, usage


def figures(record: RouteRecord, block: int | None = None) -> Iterator[tuple[str, Figure]]:
    """All figures of a record, one at a time, each with a name for its file.

    Args:
        record: what the router did.
        block: block of the curves over time; None: at each depth the one that the tasks want most in the end.

    Raises:
        UsageError: if no depth has such a block.
    """
    policy, names, tasks, measure = record.policy(), record.action_names(), record.task_names, record.measure
    if block is not None and not 0 <= block < record.num_actions.max():
        raise UsageError(f"--block is {block}, but the run has blocks 0 to {record.num_actions.max() - 1}.")
    step, what = record.steps[-1], measure.capitalize()
    layers = record.layers()
    for depth, actions in enumerate(names):
        here, title = policy[:, :, depth, : len(actions)], f"{layers[depth].capitalize()}, step {step}"
        yield f"policy_depth_{depth + 1}", policy_heatmap(here[-1], tasks, actions, title, measure)
        title = f"{what} of the blocks at {layers[depth]}"
        yield (
            f"policy_evolution_depth_{depth + 1}",
            policy_evolution(record.steps, here, tasks, actions, title, measure),
        )
        chosen = int(here[-1].sum(0).argmax()) if block is None else block
        if chosen < len(actions):
            title = f"{what} of block {actions[chosen]} at {layers[depth]}"
            figure = policy_dynamics(record.steps, here[:, :, chosen], tasks, title, measure)
            yield f"policy_dynamics_depth_{depth + 1}_block_{actions[chosen]}", figure
    routes, counts, route_step = record.map_routes()
    if len(routes):
        title = f"Routing map, step {route_step}"
        yield "routing_map", routing_map(routes, counts, tasks, names, title, record.in_use(), record.layers())
    if len(routes) == len(set(routes[:, 0].tolist())) == len(tasks) > 1:  # each task has one route
        title = f"Tasks with a block of their own, step {route_step}"
        yield "sharing_profile", sharing_profile({"": private_share(routes[:, 1:])}, title, record.layers())
    recent = record.recent_counts()
    if recent.sum():
        share = usage(recent)
        samples = int(recent[:, 0].sum())
        by_depth = [share[depth, : len(actions)] for depth, actions in enumerate(names)]
        title = f"Use of the blocks by the last {samples} training samples"
        yield "block_usage", block_usage(by_depth, names, len(tasks), title)
        over_time = [record.usage()[1:, depth, : len(actions)] for depth, actions in enumerate(names)]
        if len(record.steps) > 1:
            yield "block_usage_evolution", usage_evolution(record.steps[1:], over_time, names, "Use of the blocks")
        title = f"Shared blocks, last {samples} training samples"
        yield "task_overlap", task_overlap(overlap(shares(recent)), tasks, title)


def draw_run(folder: Path, out: Path, block: int | None = None) -> list[Path]:
    """Draws a finished or running run.

    Args:
        folder: the run's folder.
        out: where the figures go, as PNG and SVG; made if missing.
        block: see :func:`figures`.

    Returns:
        The files.

    Raises:
        UsageError: if the run has no record, or no such block.
    """
    record = RouteRecord.load(folder / FILE_NAME)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(record, block):
        for ending in (".png", ".svg"):
            save(figure, out / f"{name}{ending}")
            figure.set_layout_engine("none")  # the places are found; no need to look for them again
            written.append(out / f"{name}{ending}")
    return written
