"""The report: one HTML file that needs nothing else."""

import base64
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from routing_lightning.plots import (
    TASK_COLOURS,
    Curve,
    accuracy_curves,
    draw_tested,
    fold_links,
    route_links,
    routing_map,
    task_colours,
)
from routing_lightning.plots.style import COLOUR_MAP, INK
from routing_lightning.record import TEST_FILE, RouteRecord
from routing_lightning.report import markup
from routing_lightning.report.methods import (
    EPOCHS,
    SAME,
    Group,
    control_of,
    dataset_name,
    difference,
    group_runs,
    mean_and_spread,
    method_name,
    paper_values,
    unlike,
    validation_data,
)
from routing_lightning.report.runs import Run, join_resumed, read_run
from routing_lightning.report.sharing import record_of, routes_title, sharing, title

MOST_ROUTED = 24  # groups whose routes are shown
MOST_FRAMES = 40  # pictures of a policy evolution
MOST_CELLS = 200_000  # numbers of a policy evolution
MOST_TESTED = 24  # tasks of a test that are drawn


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Writes ``report.html`` about runs.

    Args:
        folders: folders of the runs, at least one.
        out: where it goes; made if missing.

    Returns:
        The file.

    Raises:
        UsageError: if a run cannot be read.
    """
    runs = [read_run(folder) for folder in folders]
    groups = group_runs(join_resumed(runs))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    path.write_text(page(groups, evaluated(runs)), encoding="utf-8")
    return path


def page(groups: Sequence[Group], evaluations: Sequence[Run] = ()) -> str:
    """The whole page: about groups of trainings, and runs that evaluated a checkpoint."""
    datasets = list(dict.fromkeys(group.dataset for group in groups))
    runs = sum(len(group.runs) for group in groups)
    parts = [f"<h1>Routing networks: {markup.count(runs, 'run')}</h1>", _overview(datasets, groups)]
    for dataset in datasets:
        members = [group for group in groups if group.dataset == dataset]
        parts += [f"<h2>{markup.text(dataset)}</h2>", _accuracy(dataset, members), _per_task(members)]
    routed = [group for group in groups if record_of(group) is not None]
    parts += [sharing(routed[:MOST_ROUTED]), _maps(routed[:MOST_ROUTED]), _evolution(routed[:MOST_ROUTED])]
    if len(routed) > MOST_ROUTED:
        parts.append(
            f"<p>Routes of {len(routed) - MOST_ROUTED} more groups are left out; <code>train.py plot RUN</code> draws "
            "them.</p>"
        )
    parts += [_cost(groups), _evaluations(evaluations), _tested(evaluations)]
    assets = files("routing_lightning.report")
    return (
        assets.joinpath("page.html")
        .read_text()
        .replace("/*style*/", assets.joinpath("page.css").read_text() + _colours())
        .replace("/*script*/", assets.joinpath("page.js").read_text())
        .replace("<!--body-->", "\n".join(part for part in parts if part))
    )


def _colours() -> str:
    """The colours of the tasks, lighter on a dark page."""
    light = "".join(f"--task-{number}:{colour};" for number, colour in enumerate(TASK_COLOURS))
    dark = "".join(
        f"--task-{number}:color-mix(in oklab, {colour} 60%, white);" for number, colour in enumerate(TASK_COLOURS)
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


# -- small parts -------------------------------------------------------------------------------------------------------


def _overview(datasets: Sequence[str], groups: Sequence[Group]) -> str:
    if not groups:
        return "<p>No training is among these runs.</p>"
    seeds = sorted({str(run.config.get("seed_everything")) for group in groups for run in group.runs if run.config})
    return (
        f"<p>{markup.count(len(groups), 'group')} of runs that differ in the seed only, on "
        f"{markup.text(', '.join(datasets))}{'; seeds ' + markup.text(', '.join(seeds)) if seeds else ''}. Accuracy is "
        f"the mean over tasks, measured on the {markup.text(_measured(groups))}; "
        "± is the standard deviation over seeds.</p>"
    )


def _measured(groups: Sequence[Group]) -> str:
    """What the accuracies of groups were measured on, in words."""
    return " or ".join(dict.fromkeys(group.data for group in groups))


# -- accuracy ----------------------------------------------------------------------------------------------------------


def _accuracy(dataset: str, groups: Sequence[Group]) -> str:
    paper = {method: values for (data, method), values in paper_values().items() if data == dataset}
    curves: list[Curve] = []
    colours = task_colours(len(groups))
    drawn = set()
    mixed = len({group.data for group in groups}) > 1
    for group, colour in zip(groups, colours, strict=True):
        curve = group.curve()
        if not len(curve.epochs):
            continue
        curves.append(replace(curve, colour=colour, name=f"{curve.name}, {group.data}" if mixed else curve.name))
        if group.method in paper and group.method not in drawn:
            drawn.add(group.method)
            last = max(int(curve.epochs[-1]), 5)
            epochs = [epoch for epoch in EPOCHS if epoch <= last]
            values = np.array([paper[group.method][epoch] for epoch in epochs])
            name = f"{group.method} (paper, test set)"
            curves.append(Curve(name, np.array(epochs), values, np.zeros(len(values)), dashed=True, colour=colour))
    if not curves:
        scores = any(run.task_scores for group in groups for run in group.runs)
        return "" if scores else "<p>No accuracy was logged yet.</p>" + _unlogged(groups)
    where = _measured(groups)
    caption = "The band is one standard deviation over seeds." * any(np.any(curve.spread > 0) for curve in curves)
    figure = accuracy_curves(
        curves, f"Accuracy on {dataset}, {where}", f"accuracy on the {where} (mean over tasks)", False
    )
    plot = markup.figure(figure, _legend(curves) + caption, f"accuracy curves on {dataset}, {where}")
    return plot + _against_paper(groups, paper) + _unlogged(groups) + _against_control(groups)


def _unlogged(groups: Sequence[Group]) -> str:
    """Which runs have no figure of their own, and why."""
    folders = [run.folder for group in groups for run in group.runs if run.is_unlogged]
    if not folders:
        return ""
    names = ", ".join(f"<code>{markup.text(folder)}</code>" for folder in folders)
    return (
        f"<p>Not logged: {names}. No epoch of its own was validated and logged there (as with <code>--trainer.logger "
        "false</code>, or before the first validation), so it is in no mean, curve or difference; what it went on from "
        "stands for itself. <code>train.py validate --ckpt_path</code> with its checkpoint gives its accuracy.</p>"
    )


def _at(group: Group, epoch: int) -> str:
    """Accuracy at an epoch, with the number of seeds that reached it where not all did."""
    seeds, there = len(group.seeds()), len(group.over_seeds(lambda run: run.accuracy.get(epoch)))
    few = f' <span class="paper">({there} of {markup.count(seeds, "seed")})</span>' if 0 < there < seeds else ""
    return _ours(group.at(epoch)) + few


def _seeds(group: Group) -> str:
    """How many seeds a group has, how many runs where that is another number, and how many of these logged nothing."""
    seeds, runs, silent = len(group.seeds()), len(group.logged), len(group.runs) - len(group.logged)
    parts = [markup.count(runs, "run")] * (seeds != runs)
    parts += [f"{markup.count(silent, 'run')} not logged"] * (silent > 0)
    return f"{seeds} ({', '.join(parts)})" if parts else str(seeds)


def _legend(curves: Sequence[Curve]) -> str:
    """Names of curves, as text of the page, which keeps its size on a narrow screen."""
    numbers = {colour: f"var(--task-{number})" for number, colour in enumerate(TASK_COLOURS)}
    names = "".join(
        f'<li><span class="line{" dotted" * curve.dashed}" style="color:{numbers.get(curve.colour or "", INK)}"></span>'
        f"{markup.text(curve.name)}</li>"
        for curve in curves
    )
    return f'<ul class="names">{names}</ul>'


def _against_paper(groups: Sequence[Group], paper: dict[str, dict[int, float]]) -> str:
    reached = max((group.last_epoch for group in groups), default=0)
    epochs = [epoch for epoch in EPOCHS if epoch <= reached]
    mixed = len({group.data for group in groups}) > 1
    head = ["method", "last", *(f"epoch {epoch}" for epoch in epochs), "epochs", "seeds", *["measured on"] * mixed]
    rows = []
    for group in groups:
        lengths = [max(run.accuracy, default=0) for run in group.logged] or [0]
        least, most = min(lengths), max(lengths)
        cells = [_at(group, epoch) + _paper(paper.get(group.method), epoch) for epoch in epochs]
        last, span = _at(group, most), str(most) if least == most else f"{least} to {most}"
        if not group.logged:
            last, span = "not logged", "-"
        own = [span, _seeds(group), *[group.data] * mixed]
        rows.append([markup.text(group.name), last, *cells, *own])
    caption = f"Accuracy in % on the {_measured(groups)}, mean ± standard deviation over seeds" + (
        "; in brackets the paper's table of results (test set, mean of 3 runs)" if paper else ""
    )
    ran = {group.method for group in groups}
    others = [method for method in paper if method not in ran and SAME.get(method) not in {*ran, *paper}]
    folded = [[markup.text(method), *(f"{100 * paper[method][epoch]:.0f}" for epoch in EPOCHS)] for method in others]
    if not folded:
        return markup.table(head, rows, caption)
    table = markup.table(
        ["method", *(f"epoch {epoch}" for epoch in EPOCHS)], folded, "The paper's accuracy in %, test set"
    )
    summary = f"<summary>{markup.count(len(folded), 'method')} of the paper not among these runs</summary>"
    return markup.table(head, rows, caption) + f"<details>{summary}{table}</details>"


def _against_control(groups: Sequence[Group]) -> str:
    """Each group against its control, seed by seed."""
    pairs = [(group, control_of(groups, group)) for group in groups]
    names = {control.name for _, control in pairs if control is not None}
    lone = [group.name for group, control in pairs if control is None]
    whose = "" if len(lone) == len(groups) else f" for {markup.text('; '.join(lone))}"
    note = (
        f"<p>No control is among these runs{whose}. With runs of <code>configs/methods/fixed_random.yaml</code> on the "
        "same data and seeds, the paired differences would stand here. Routes that were learned and then kept, as "
        "<code>prune</code> leaves them, or given by hand, or stitched, are no control, nor is a run that began with "
        "weights, but of those that began with the same.</p>"
    ) * bool(lone)
    rows = []
    for group, control in pairs:
        found = None if control is None or group is control else difference(group, control)
        if control is None or found is None:
            continue
        low, high = found.mean - found.half, found.mean + found.half
        interval = "one seed: none" if found.seeds == 1 else f"{markup.points(low)} to {markup.points(high)}"
        named = [markup.text(control.name)] * (len(names) > 1)
        points = f"<b>{markup.points(found.mean)}</b>"
        apart = markup.text("; ".join(unlike(group, control)))
        rows.append([markup.text(group.name), *named, str(found.epoch), str(found.seeds), points, interval, apart])
    differ = any(row[-1] for row in rows)
    rows = rows if differ else [row[:-1] for row in rows]
    if not rows:
        return note
    against = "a control of the same network, where there is one," if len(names) > 1 else markup.text(*names)
    caption = f"Difference of accuracy to {against} in percentage points, paired by seed"
    head = ["method", *["control"] * (len(names) > 1), "epoch", "common seeds", "difference", "95 % interval"]
    if differ:
        head.append("trained otherwise")
        note = (
            "<p>Where the trainings differ in more than the method, so may the difference: compare runs with the same "
            "settings.</p>"
        ) + note
    return "<h3>Compared with the control</h3>" + markup.table(head, rows, caption) + note


def evaluated(runs: Sequence[Run]) -> list[Run]:
    """The runs that evaluated a checkpoint, and trainings that were tested as well."""
    return [
        run
        for run in runs
        if run.test_accuracy is not None or run.tested or (run.command == "validate" and run.accuracy)
    ]


def _evaluations(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        checkpoint = run.config.get("ckpt_path")
        source = f"{run.source.name}, {Path(checkpoint).name}" if run.source and checkpoint else "its own"
        first = [
            markup.text(f"{method_name(run.config)}, {dataset_name(run.config)}"),
            run.command,
            markup.text(source),
        ]
        if run.test_accuracy is not None:
            rows.append([*first, "test set", f"<b>{markup.percent(run.test_accuracy)}</b>"])
        elif run.accuracy:
            rows.append(
                [*first, validation_data(run.config), f"<b>{markup.percent(run.accuracy[max(run.accuracy)])}</b>"]
            )
    if not rows:
        return ""
    head = ["method", "command", "checkpoint", "measured on", "accuracy"]
    return "<h2>Evaluated checkpoints</h2>" + markup.table(head, rows, "Accuracy in %, mean over tasks")


def _tested(runs: Sequence[Run]) -> str:
    """Of each test a table of its tasks, and a figure of each."""
    shown: list[str] = []
    for run in runs:
        if not run.tested:
            continue
        rows = []
        for task in run.tested:
            macro = "" if task.kind == "value" else f"{task.f1_macro():.3f}"
            right = markup.percent(task.matrix().trace() / task.samples) if task.kind == "classes" else ""
            error = "" if task.mae is None else f"{task.mae:.4g}"
            rows.append([markup.text(task.name), task.kind, str(task.samples), right, macro, error])
        head = ["task", "kind", "samples", "accuracy in %", "macro-F1", "mean absolute error"]
        name = markup.text(f"{method_name(run.config)}, {dataset_name(run.config)}: {run.folder.name}")
        figures = "".join(
            markup.figure(draw_tested(task), "", f"test of {task.name}") for task in run.tested[:MOST_TESTED]
        )
        rest = len(run.tested) - MOST_TESTED
        more = f"<p>{markup.count(rest, 'more task')} in {markup.text(run.folder / TEST_FILE)}.</p>" if rest > 0 else ""
        table = markup.table(head, rows, f"Test of {name}")
        shown.append(
            f"<details{' open' if not shown else ''}><summary>{name}</summary>{table}{figures}{more}</details>"
        )
    if not shown:
        return ""
    text = (
        "<p>Of tasks of classes which are taken for which: a row per class, brighter where more of its samples go; of "
        "many classes those with most mistakes. Of labels the F1 of each, of values the predictions over them.</p>"
    )
    return "<h2>Tests, task by task</h2>" + text + "".join(shown)


def _ours(value: tuple[float, float] | None) -> str:
    if value is None:
        return "-"
    mean, spread = value
    return f"<b>{markup.percent(mean)}</b>" + ("" if math.isnan(spread) else f" ± {markup.percent(spread)}")


def _paper(values: dict[int, float] | None, epoch: int) -> str:
    return f' <span class="paper">[{100 * values[epoch]:.0f}]</span>' if values else ""


def _per_task(groups: Sequence[Group]) -> str:
    return _accuracies(groups) + _scores(groups)


def _at_the_end(group: Group, task: str, run: Run, measure: str | None = None) -> float | None:
    """Accuracy of a task, or another measure, at the group's last epoch; None of a run that did not get there."""
    values = run.task_accuracy if measure is None else run.task_scores.get(measure, {})
    return values.get(task) if group.furthest(run) else None


def _scores(groups: Sequence[Group]) -> str:
    """What tasks of labels and of values are measured by."""
    names = {"f1": "F1", "mae": "MAE", "r2": "R²"}
    rows = []
    for measure, name in names.items():
        for task in dict.fromkeys(
            task for group in groups for run in group.runs for task in run.task_scores.get(measure, ())
        ):
            cells = []
            for group in groups:
                found = group.over_seeds(partial(_at_the_end, group, task, measure=measure))
                value = mean_and_spread(found)
                spread = "" if value is None or math.isnan(value[1]) else f" ± {value[1]:.3g}"
                cells.append("-" if value is None else f"<b>{value[0]:.4g}</b>{spread}")
            rows.append([markup.text(task), name, *cells])
    if not rows:
        return ""
    caption = (
        f"Tasks of labels (F1, mean over labels) and of values (mean absolute error in their own units, and R²) at the "
        f"last epoch, {_measured(groups)}, mean ± standard deviation over seeds"
    )
    head = ["task", "measure", *(markup.text(group.name) for group in groups)]
    return "<h3>Tasks of labels and of values</h3>" + markup.table(head, rows, caption)


def _accuracies(groups: Sequence[Group]) -> str:
    tasks = list(dict.fromkeys(task for group in groups for run in group.runs for task in run.task_accuracy))
    if not tasks:
        return ""
    means = {}
    for number, group in enumerate(groups):
        for task in tasks:
            found = mean_and_spread(group.over_seeds(partial(_at_the_end, group, task)))
            if found:
                means[number, task] = found
    values = [mean for mean, _ in means.values()]
    least, most = min(values), max(values)
    over_groups = {task: statistics.fmean(mean for (_, of), (mean, _) in means.items() if of == task) for task in tasks}

    def cell(value: tuple[float, float] | None) -> str:
        if value is None:
            return "-"
        strength = 0.45 * (value[0] - least) / (most - least) if most > least else 0.0
        return f'<td style="background:rgb(49 104 142 / {strength:.2f})">{_ours(value)}</td>'

    ordered = sorted(tasks, key=lambda task: (-over_groups[task], task))
    rows = [
        [markup.text(task), *(cell(means.get((number, task))) for number in range(len(groups)))] for task in ordered
    ]
    caption = (
        f"Accuracy per task in % at the last epoch, {_measured(groups)}, mean ± standard deviation over seeds; best "
        "task first, darker is better"
    )
    return "<h3>Accuracy per task</h3>" + markup.table(
        ["task", *(markup.text(group.name) for group in groups)], rows, caption
    )


# -- routes ------------------------------------------------------------------------------------------------------------


def _maps(groups: Sequence[Group]) -> str:
    shown: list[str] = []
    for group in groups:
        record = record_of(group)
        assert record is not None
        routes, counts, step = record.map_routes()
        if not len(routes):
            continue
        names = record.action_names()
        figure = routing_map(routes, counts, record.task_names, names, in_use=record.in_use(), layers=record.layers())
        heading = routes_title(group)
        inner = markup.figure(figure, f"{markup.text(heading)}, step {step}", f"routing map of {heading}")
        inner = inner.replace("<figure>", '<figure class="map">', 1) + _who_shares(routes, counts, record)
        name = f"<summary>{markup.text(heading)}</summary>"
        shown.append(f"<details{' open' if len(shown) < 2 else ''}>{name}{inner}</details>")
    if not shown:
        return ""
    text = (
        "<p>Tasks on top, a row of blocks per depth, in an order in which few links cross. A block shows its number "
        "and its tasks' letters; a link is wider where more of the task's samples go. Links of less than a tenth of "
        "a task's samples and blocks not in use are left out. Point at a task or a block to see its routes alone; a "
        "click keeps them. For each group the first recorded run of those that got furthest.</p>"
    )
    return "<h2>Routing maps</h2>" + text + "".join(shown)


def _who_shares(routes: np.ndarray, counts: np.ndarray, record: RouteRecord) -> str:
    """The map as text: the tasks of each block that several share."""
    tasks: dict[tuple[int, int], list[int]] = {}
    for link in fold_links(route_links(routes, counts)):
        here = tasks.setdefault((link.next_row, link.target), [])
        if link.task not in here:
            here.append(link.task)
    names, layers = record.action_names(), record.layers()
    rows = [
        [
            f"{markup.text(layers[depth - 1])}, {names[depth - 1][block]}",
            markup.text(", ".join(record.task_names[task] for task in sorted(here))),
        ]
        for (depth, block), here in sorted(tasks.items())
        if len(here) > 1
    ]
    if not rows:
        return ""
    cells = [[first, f'<td class="words">{words}</td>'] for first, words in rows]
    table = markup.table(["block", "tasks"], cells, "Shared blocks")
    return f"<details><summary>Who shares what</summary>{table}</details>"


def _frames(record: RouteRecord) -> dict[str, Any]:
    """A policy evolution for the page's script: levels 0..255 in the order snapshot, depth, task, action."""
    policy = record.policy()
    count = min(MOST_FRAMES, max(2, MOST_CELLS // policy[0].size), len(record.steps))
    picked = np.unique(np.linspace(0, len(record.steps) - 1, count).round().astype(int))
    levels = (policy[picked].transpose(0, 2, 1, 3) * 255).round().astype(np.uint8)
    return {
        "steps": record.steps[picked].tolist(),
        "tasks": record.task_names,
        "actions": record.action_names(),
        "layers": record.layers(),
        "measure": record.measure,
        "width": policy.shape[-1],
        "levels": base64.b64encode(levels.tobytes()).decode(),
    }


def _evolution(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    runs = []
    for group in groups:
        record = record_of(group)
        assert record is not None
        runs.append({"name": routes_title(group), **_frames(record)})
    palette = (matplotlib.colormaps[COLOUR_MAP](np.arange(256))[:, :3] * 255).round().astype(int).tolist()
    data = json.dumps({"palette": palette, "runs": runs}).replace("</", "<\\/")
    options = "".join(
        f'<option value="{number}">{markup.text(run["name"])}</option>' for number, run in enumerate(runs)
    )
    return (
        "<h2>Policy evolution</h2><p>How probably each task takes each block, or which share of its samples did, where "
        "the router looks at activations. Move the slider, also with the arrow keys, Home and End.</p>"
        f'<div class="controls"><label>Run <select id="run">{options}</select></label>'
        '<label>Time <input id="time" type="range" min="0" value="0" step="1"></label>'
        '<button id="play" type="button">Play</button><output id="step" for="time"></output></div>'
        '<div id="depths"></div><div class="legend"><span>0</span><canvas id="scale" width="256" height="12" '
        'role="img" aria-label="colour scale from 0 to 1"></canvas><span>1 (<span id="measure"></span>)</span></div>'
        f'<script type="application/json" id="policies">{data}</script>'
    )


# -- cost --------------------------------------------------------------------------------------------------------------


def _cost(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        seconds = [run.epoch_seconds for run in group.logged if run.epoch_seconds is not None]
        epochs = statistics.fmean(run.epochs for run in group.logged) if group.logged else 0.0
        weights = next((run.parameters for run in group.runs if run.parameters is not None), None)
        median = statistics.median(seconds) if seconds else None
        rows.append(
            [
                markup.text(title(group)),
                "-" if median is None else f"{median:.1f}",
                "-" if median is None else f"{median * epochs / 60:.1f}",
                "-" if weights is None else f"{weights:,}".replace(",", " "),
            ]
        )
    head = ["method", "seconds per epoch", "minutes in all", "trained weights"]
    caption = "Training cost: median wall time of an epoch with its validation; weights of features and blocks"
    return "<h2>Training cost</h2>" + markup.table(head, rows, caption)
