"""Where tasks share and where they part, as a table for each group of the report."""

import math
from collections.abc import Sequence

from routing_lightning.plots import private_blocks
from routing_lightning.record import RouteRecord, Trial
from routing_lightning.report import markup
from routing_lightning.report.methods import Group
from routing_lightning.report.runs import Run

CERTAIN = 0.95  # how sure a task must be to be counted as certain


def _routed_run(group: Group) -> Run | None:
    """The first run that has routes, of those that got furthest if there is one; one with routes of its own first."""
    runs = [run for run in group.runs if run.record is not None and len(run.record.steps)]
    return min(runs, key=lambda run: (not run.has_own_record, not group.furthest(run)), default=None)


def record_of(group: Group) -> RouteRecord | None:
    """The routes that stand for a group; None if none of its runs has any."""
    run = _routed_run(group)
    return None if run is None else run.record


def title(group: Group) -> str:
    """Name of a group and its data."""
    return f"{group.name}, {group.dataset}"


def routes_title(group: Group) -> str:
    """The same, above its routes: says where these are older than the run."""
    run = _routed_run(group)
    older = run is not None and not run.has_own_record
    return title(group) + (" (routes of the run before; it recorded none of its own)" if older else "")


def sharing(groups: Sequence[Group]) -> str:
    """The section: at each layer how many tasks have a block of their own, and what a search found there."""
    shown: list[str] = []
    searched = False
    for group in groups:
        record = record_of(group)
        table = None if record is None else _profile(record)
        if record is None or table is None:
            continue
        searched = searched or bool(record.trials())
        name = markup.text(routes_title(group))
        shown.append(f"<details{' open' if len(shown) < 2 else ''}><summary>{name}</summary>{table}</details>")
    if not shown:
        return ""
    words = (
        "<p>How many tasks have a block that no other task takes, layer by layer from the input, by the routes at the "
        "end of the run that the maps below show.</p>"
    )
    if searched:
        words += (
            "<p>Of a search: the optimizer steps between which a layer was asked, what another block than the common "
            "one brought on average, in units of the reward (± its standard error; above 0: parting pays), and how "
            f"many of the tasks that were asked were certain ({100 * CERTAIN:g} %) of their choice when last asked.</p>"
        )
    return "<h2>Sharing</h2>" + words + "".join(shown)


def _profile(record: RouteRecord) -> str | None:
    """The table of a record; None if a task has several routes, or there is one task."""
    routes, _, _ = record.map_routes()
    tasks = len(record.task_names)
    if tasks < 2 or not len(routes) == len(set(routes[:, 0].tolist())) == tasks:
        return None
    own, trials = private_blocks(routes[:, 1:]).sum(0), record.trials()
    rows = []
    for depth, layer in enumerate(record.layers()):
        blocks = len(set(routes[:, 1 + depth].tolist()))
        share = 100 * own[depth] / tasks
        bar = f"background:linear-gradient(90deg,rgb(49 104 142 / .35) {share:.1f}%,transparent {share:.1f}%)"
        own_blocks = f'<td style="{bar}">{own[depth]} of {tasks}</td>'
        rows.append([markup.text(layer), own_blocks, *(_trial(trials[depth]) if trials else []), str(blocks)])
    head = ["layer", "own block", *(["gain of parting", "certain tasks", "asked"] if trials else []), "blocks taken"]
    return markup.table(
        head, rows, f"Tasks with a block of their own, and blocks that are taken, step {record.steps[-1]}"
    )


def _trial(trial: Trial | None) -> list[str]:
    if trial is None:
        return ["-", "-", "not asked"]
    when = f"{trial.first} to {'the end' if trial.is_open else trial.last}"
    gain = "-" if math.isnan(trial.gain) else f"{trial.gain:+.3g} ± {trial.error:.1g}"
    return [gain, f"{int((trial.sure > CERTAIN).sum())} of {len(trial.sure)}", when]
