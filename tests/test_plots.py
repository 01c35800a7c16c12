"""Figures, by what they hold."""

import gc
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html import unescape
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import routing_lightning
from routing_lightning.plots import (
    TASK_COLOURS,
    Curve,
    HeatmapFrame,
    accuracy_curves,
    block_usage,
    cluster_order,
    evolution_panel,
    figure_png,
    fold_links,
    overlap,
    policy_dynamics,
    policy_evolution,
    policy_heatmap,
    private_blocks,
    private_share,
    route_links,
    routing_map,
    save,
    sharing_profile,
    task_colours,
    task_overlap,
    time_edges,
    time_position,
    to_array,
    to_svg,
    usage_evolution,
    usage_heatmap,
)
from routing_lightning.plots.frame import LEVELS
from routing_lightning.plots.routing_map import letters, map_order, spans
from routing_lightning.plots.style import COLOUR_MAP, task_dashes
from routing_lightning.record import action_labels

STEPS = np.array([0, 1, 5, 30, 200])


def policies(*shape: int) -> np.ndarray:
    values = np.random.default_rng(0).random(shape)
    return values / values.sum(-1, keepdims=True)


def texts(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


# -- heat maps ---------------------------------------------------------------------------------------------------------


def test_heatmap_holds_the_policy_and_the_names():
    values = policies(3, 4)
    figure = policy_heatmap(values, ["cats", "dogs", "birds"], action_labels(4, 3), "a title")
    axes, bar = figure.axes
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), values)
    assert image.get_clim() == (0, 1) and image.get_cmap().name == COLOUR_MAP
    assert texts(axes.yaxis) == ["cats", "dogs", "birds"]
    assert texts(axes.xaxis) == ["0", "1", "2", "PASS"]
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("function block", "task", "probability")
    assert axes.get_title("left") == "a title"


def test_evolution_holds_a_panel_per_task():
    values = policies(5, 3, 4)
    figure = policy_evolution(STEPS, values, ["a", "b", "c"], action_labels(4, 4))
    panels = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [panel.get_title() for panel in panels] == ["a", "b", "c"]
    for task, panel in enumerate(panels):
        np.testing.assert_allclose(panel.images[0].get_array(), values[:, task].T)


def test_evolution_panel_holds_the_distribution_over_time():
    values = policies(5, 4)
    figure = evolution_panel(STEPS, values, action_labels(4, 4))
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), values.T)
    assert texts(figure.axes[0].xaxis) == ["0", "10", "100"]


def test_time_axis_shows_the_start_closely():
    assert time_position(np.array([0, 10, 100, 1000])).tolist() == [0, 0.5, 1.5, 2.5]
    positions = time_position(np.arange(2000))
    assert (np.diff(positions) > 0).all()
    edges = time_edges(STEPS)
    assert len(edges) == len(STEPS) + 1
    np.testing.assert_array_equal(edges[:-1], time_position(STEPS))


def test_dynamics_has_a_curve_per_task():
    values = policies(5, 3)
    (axes,) = policy_dynamics(STEPS, values, ["a", "b", "c"]).axes
    for task, line in enumerate(axes.lines):
        np.testing.assert_array_equal(line.get_xdata(), time_position(STEPS))
        np.testing.assert_array_equal(line.get_ydata(), values[:, task])
        assert line.get_label() == "abc"[task] and line.get_color() == TASK_COLOURS[task]


def test_usage_bars_are_the_shares():
    shares = [np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0])]
    figure = block_usage(shares, [action_labels(3, 3), action_labels(2, 1)], num_tasks=4)
    for axes, share in zip(figure.axes, shares, strict=True):
        assert [bar.get_height() for bar in axes.patches] == share.tolist()
    assert "2 of 3 in use (at least 2.5 %), entropy 0.69 of 1.10 nats" in figure.axes[0].get_title("left")
    assert texts(figure.axes[1].xaxis) == ["0", "PASS"]


def test_usage_evolution_has_a_panel_per_depth():
    shares = [policies(5, 3), policies(5, 2)]
    figure = usage_evolution(STEPS, shares, [action_labels(3, 3), action_labels(2, 2)])
    for axes, share in zip(figure.axes[:2], shares, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), share.T)


# -- overlap -----------------------------------------------------------------------------------------------------------


def test_overlap_of_known_routes():
    same, other = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]  # depth x block
    uniform = [[0.5, 0.5], [0.5, 0.5]]
    values = overlap(np.array([same, same, other, uniform]))
    assert values[0, 1] == 1  # one route
    assert values[0, 2] == 0.5  # one depth of two in common
    assert values[3, 3] == values[0, 3] == 0.5  # chance of two blocks


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_overlap_is_symmetric_and_a_chance(tasks, depth, blocks, seed):
    shares = np.random.default_rng(seed).dirichlet(np.ones(blocks), (tasks, depth))
    values = overlap(shares)
    np.testing.assert_allclose(values, values.T)
    assert (values >= 0).all() and (values <= 1 + 1e-12).all()


def test_overlap_figure_holds_the_values_in_an_order_of_clusters():
    values = np.array([[1, 0.0, 0.4, 0.0], [0.0, 1, 0.1, 0.5], [0.4, 0.1, 1, 0.0], [0.0, 0.5, 0.0, 1]])
    order = cluster_order(values)
    figure = task_overlap(values, ["a", "b", "c", "d"])
    axes, (image,) = figure.axes[0], figure.axes[0].images
    np.testing.assert_array_equal(image.get_array(), values[np.ix_(order, order)])
    assert texts(axes.xaxis) == texts(axes.yaxis) == ["abcd"[task] for task in order]
    places = np.argsort(order)
    assert abs(places[0] - places[2]) == abs(places[1] - places[3]) == 1  # those that share stand side by side
    assert image.get_clim() == (0, 0.5)  # the most that two tasks share
    written = {text.get_text() for text in axes.texts}
    assert written == {"100", "40", "50", "10"}


@given(st.integers(1, 12), st.integers(0, 99))
def test_clusters_stand_together(tasks, seed):
    rng = np.random.default_rng(seed)
    cluster = rng.integers(3, size=tasks)
    order = cluster_order((cluster[:, None] == cluster).astype(float))
    assert sorted(order.tolist()) == list(range(tasks))
    if tasks > 2:
        runs = 1 + np.count_nonzero(np.diff(cluster[order]))
        assert runs == len(set(cluster.tolist()))


# -- routing map -------------------------------------------------------------------------------------------------------


def test_links_of_known_routes():
    routes = np.array([[0, 2, 1], [0, 2, 0], [1, 0, 0]])
    assert route_links(routes, np.array([3, 1, 5])) == [
        (0, 0, 0, 1, 2, 1.0),
        (0, 1, 2, 2, 0, 0.25),
        (0, 1, 2, 2, 1, 0.75),
        (1, 0, 1, 1, 0, 1.0),
        (1, 1, 0, 2, 0, 1.0),
    ]


def test_links_pass_over_depths_without_decision():
    assert route_links(np.array([[0, 1, -1, 2]]), np.array([1])) == [(0, 0, 0, 1, 1, 1.0), (0, 1, 1, 3, 2, 1.0)]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 30), st.integers(0, 99))
def test_what_flows_into_a_block_flows_out(tasks, depth, blocks, count, seed):
    rng = np.random.default_rng(seed)
    routes = np.concatenate([rng.integers(tasks, size=(count, 1)), rng.integers(blocks, size=(count, depth))], axis=1)
    links = route_links(routes, rng.integers(1, 9, size=count))
    for task in set(routes[:, 0].tolist()):
        for row in range(depth):
            out = sum(link.share for link in links if link.task == task and link.row == row)
            assert out == pytest.approx(1)
        for row in range(1, depth):
            for block in range(blocks):
                into = sum(x.share for x in links if x.task == task and x.next_row == row and x.target == block)
                out = sum(x.share for x in links if x.task == task and x.row == row and x.source == block)
                assert into == pytest.approx(out)


def links_of(figure: Figure) -> dict[int, LineCollection]:
    """The links of each task on a map (each task also has faint lines through its blocks)."""
    found = {}
    for part in figure.axes[0].collections:
        if isinstance(part, LineCollection) and len(part.get_segments()) and len(part.get_segments()[0]) > 2:
            found[int(part.get_gid().removeprefix("task-"))] = part
    return found


def boxes_of(figure: Figure) -> dict[tuple[int, int], Rectangle]:
    """The box of each depth and block."""
    return {tuple(map(int, box.get_gid().split("-")[1:3])): box for box in figure.axes[0].patches}


def test_map_shows_each_link_and_names_the_tasks_in_blocks():
    routes, counts = np.array([[0, 2, 1], [0, 2, 0], [1, 0, 0]]), np.array([3, 1, 5])
    actions = [action_labels(3, 3), action_labels(2, 1)]
    used = [np.array([True, False, True]), np.array([True, True])]
    figure = routing_map(routes, counts, ["cats", "dogs"], actions, in_use=used)
    for task, lines in links_of(figure).items():
        own = [link for link in route_links(routes, counts) if link.task == task]
        assert len(lines.get_segments()) == len(own)
        assert {to_hex(colour) for colour in lines.get_colors()} == {TASK_COLOURS[task]}
        widths = lines.get_linewidths()
        assert (np.argsort(widths, kind="stable") == np.argsort([x.share for x in own], kind="stable")).all()
    assert boxes_of(figure).keys() == {(1, 0), (1, 2), (2, 0), (2, 1)}  # unused ones are left out
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"A  cats", "B  dogs", "PASS", "A B", "depth 1\n2 of 3\nin use", "depth 2\n2 of 2\nin use"} <= set(words)


def random_routes(tasks: int, depth: int, blocks: int, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    some = np.concatenate([np.arange(tasks), rng.integers(tasks, size=count)])
    return np.column_stack([some, rng.integers(blocks, size=(len(some), depth))])


@pytest.mark.parametrize(("tasks", "depth", "blocks", "count"), [(6, 2, 5, 0), (20, 3, 20, 0), (20, 7, 20, 400)])
def test_links_keep_apart_and_miss_the_text_of_blocks(tasks, depth, blocks, count):
    routes = random_routes(tasks, depth, blocks, count)
    sizes = [blocks - row % 2 for row in range(depth)]  # also of different numbers of blocks
    routes[:, 1:] %= sizes
    figure = routing_map(
        routes, np.ones(len(routes)), [f"t{i}" for i in range(tasks)], [action_labels(k, k) for k in sizes]
    )
    boxes = boxes_of(figure)
    kept = fold_links(route_links(routes, np.ones(len(routes))))
    arrivals: dict[tuple[int, int], dict[int, float]] = {}
    for task, lines in links_of(figure).items():
        own = [link for link in kept if link.task == task]
        for link, curve in zip(own, lines.get_segments(), strict=True):
            box = boxes[link.next_row, link.target]
            assert box.get_x() < curve[-1, 0] < box.get_x() + box.get_width()
            assert curve[-1, 1] == pytest.approx(box.get_y() + box.get_height())  # ends at the upper edge
            arrivals.setdefault((link.next_row, link.target), {})[task] = curve[-1, 0]
            if link.row:  # and goes on at the lower one, at the same place
                source = boxes[link.row, link.source]
                assert curve[0, 1] == pytest.approx(source.get_y())
                assert curve[0, 0] == pytest.approx(arrivals[link.row, link.source][task])
    for places in arrivals.values():  # inches: 7 pixels at 80 per inch
        assert len(places) == 1 or np.diff(sorted(places.values())).min() > 0.085
    for row in range(1, depth + 1):
        row_boxes = sorted((box for (at, _), box in boxes.items() if at == row), key=lambda box: box.get_x())
        for left, right in pairwise(row_boxes):
            assert left.get_x() + left.get_width() < right.get_x()


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(0, 60), st.integers(0, 99))
def test_folded_links_still_lead_from_each_task_to_the_end(tasks, depth, blocks, count, seed):
    routes = random_routes(tasks, depth, blocks, count, seed)
    links = route_links(routes, np.ones(len(routes)))
    kept = fold_links(links)
    assert set(kept) <= set(links)
    ends = {(link.task, link.next_row, link.target) for link in kept} | {(task, 0, task) for task in range(tasks)}
    starts = {(link.task, link.row, link.source) for link in kept}
    assert starts <= ends  # each begins where another one ends
    assert all(end in starts for end in ends if end[1] < depth)
    for link in links:
        if link.share >= 0.1 and (link.task, link.row, link.source) in ends:
            assert link in kept


def test_few_links_cross_where_none_must():
    rng = np.random.default_rng(0)
    blocks = [rng.permutation(8) for _ in range(3)]
    tasks = rng.permutation(8)
    routes = np.array([[task, *(names[task // 2 * 2] for names in blocks)] for task in tasks])  # pairs side by side
    order = map_order(route_links(routes, np.ones(8)), 8, [[]] * 3)
    for row, names in enumerate(blocks, start=1):
        pairs = [names[task // 2 * 2] for task in order[0]]
        assert [block for block, _ in groupby(pairs)] == order[row]


def test_short_names_of_tasks():
    assert [letters(number) for number in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]
    assert spans([0, 1, 2, 5]) == "A-C F" and spans([3, 4]) == "D E" and spans([]) == "" and spans([1]) == "B"


def test_map_in_a_page_tells_its_script_the_tasks():
    routes = np.array([[0, 1], [1, 1], [2, 0]])
    svg = to_svg(routing_map(routes, np.ones(3), ["a", "b", "c"], [action_labels(2, 2)]))
    assert set(re.findall(r'data-tasks="([^"]*)"', svg)) == {"0", "1", "2", "0 1"}


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_switch_from_linear_to_logarithmic_steps_is_marked():
    figures = [
        policy_evolution(STEPS, policies(5, 2, 3), ["a", "b"], action_labels(3, 3)),
        policy_dynamics(STEPS, policies(5, 2), ["a", "b"]),
        usage_evolution(STEPS, [policies(5, 3)], [action_labels(3, 3)]),
        evolution_panel(STEPS, policies(5, 3), action_labels(3, 3)),
    ]
    for figure in figures:
        said = " ".join([figure.axes[0].get_xlabel(), getattr(figure._supxlabel, "_text", "")])
        assert "linear to 10" in said and "then logarithmic" in said
        (mark,) = [part for part in figure.axes[0].collections if isinstance(part, LineCollection)]
        assert mark.get_segments()[0][0, 0] == time_position(np.array(10))
        minor = figure.axes[0].xaxis.get_minorticklocs()
        np.testing.assert_allclose(minor[:9], time_position(np.arange(1, 10)))


def test_use_of_blocks_is_scaled_to_the_most_used_and_marks_equal_use():
    values = np.array([[0.1, 0.2, 0.0, 0.7], [0.5, 0.5, np.nan, np.nan]])
    figure = usage_heatmap(values, ["1", "2"], action_labels(4, 4), 0.7)
    axes, bar = figure.axes
    assert axes.images[0].get_clim() == (0, 0.7)
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("depth", "function block", "share of samples")
    (mark,) = [line for line in bar.lines if len(line.get_ydata()) == 2]
    assert mark.get_ydata()[0] == 0.25 and "equal use" in [text.get_text() for text in bar.texts]


# -- fast pictures -----------------------------------------------------------------------------------------------------


def test_frame_paints_each_cell_in_its_colour():
    values = policies(3, 4)
    figure = policy_heatmap(np.zeros((3, 4)), ["a", "b", "c"], action_labels(4, 4))
    frame = HeatmapFrame(figure, np.arange(5) - 0.5, np.arange(4) - 0.5)
    picture = frame.paint(values)
    for task in range(3):
        for block in range(4):
            x, y = figure.axes[0].transData.transform((block, task))
            level = picture[len(picture) - 1 - int(y), int(x)]
            assert level == round(values[task, block] * (LEVELS - 1))
    # what is outside of the axes stays
    other = frame.paint(1 - values)
    box = figure.axes[0].get_window_extent()
    assert (picture == other)[:, : int(box.x0) - 1].all() and (picture == other)[:, int(box.x1) + 2 :].all()


def test_frame_agrees_with_the_figure():
    values = policies(5, 4)
    figure = evolution_panel(STEPS, values, action_labels(4, 4))
    frame = HeatmapFrame(figure, time_edges(STEPS), np.arange(5) - 0.5)
    painted = frame.palette[frame.paint(values.T)].astype(int)
    difference = np.abs(painted - to_array(figure).astype(int)).max(-1)
    assert np.mean(difference > 24) < 0.02  # but for pixels on the edge of two cells


def test_png_is_a_picture(tmp_path):
    from PIL import Image

    frame = HeatmapFrame(
        policy_heatmap(np.zeros((2, 2)), ["a", "b"], ["0", "1"]), np.arange(3) - 0.5, np.arange(3) - 0.5
    )
    for number, content in enumerate(
        (frame.png(np.eye(2)), figure_png(policy_heatmap(np.eye(2), ["a", "b"], ["0", "1"])))
    ):
        (tmp_path / f"{number}.png").write_bytes(content)
        assert Image.open(tmp_path / f"{number}.png").convert("RGB").size[0] > 100


# -- look --------------------------------------------------------------------------------------------------------------


def simulated(colours, matrix) -> np.ndarray:
    """Colours (N, 3) in OKLab, as seen with a kind of colour blindness."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.array(matrix).T, 0, 1)
    cones = linear @ np.array(
        [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    ).T  # fmt: skip
    return np.cbrt(cones) @ np.array(
        [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    ).T  # fmt: skip


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(3).tolist(),
        # Machado, Oliveira and Fernandes (2009), severity 1: protanopia, deuteranopia
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ],
)
def test_task_colours_differ_for_colour_blind_eyes(matrix):
    seen = simulated(TASK_COLOURS, matrix)
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(20)
    assert distance.min() > 0.07  # a just noticeable difference is about 0.02
    assert distance[:10, :10].min() > 0.09


def test_colour_and_dashes_tell_forty_tasks_apart():
    assert len(set(TASK_COLOURS)) == 20
    pairs = set(zip(task_colours(40), map(str, task_dashes(40)), strict=True))
    assert len(pairs) == 40


def every_figure(tasks: int, blocks: int) -> list[Figure]:
    names = [f"class number {task}" for task in range(tasks)]
    values = policies(5, tasks, blocks)
    actions = action_labels(blocks, blocks)
    routes = np.stack([np.arange(tasks), np.arange(tasks) % blocks, np.arange(tasks) * 3 % blocks], 1)
    return [
        policy_heatmap(values[-1], names, actions),
        policy_evolution(STEPS, values[:, : min(tasks, 20)], names[:20], actions),
        policy_dynamics(STEPS, values[:, :, 0], names),
        routing_map(routes, np.ones(tasks), names, [actions, actions]),
        block_usage([values[-1].mean(0)] * 2, [actions, actions], tasks),
        usage_evolution(STEPS, [values.mean(1)] * 2, [actions, actions]),
        task_overlap(overlap(values[-1][:, None]), names),
        accuracy_curves([Curve(name, np.arange(5), values[:, i, 0], values[:, i, 1]) for i, name in enumerate(names)]),
    ]


@pytest.mark.parametrize(("tasks", "blocks"), [(2, 2), (20, 20), (100, 100)])
def test_names_of_cells_do_not_run_into_each_other(tasks, blocks):
    for figure in every_figure(tasks, blocks):
        assert max(figure.get_size_inches()) <= 40
        to_array(figure, dpi=60)
        for axes in figure.axes:
            labels = [label for label in axes.get_yticklabels() if label.get_text() and label.get_visible()]
            boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.y0)
            for low, high in zip(boxes, boxes[1:], strict=False):
                assert high.y0 - low.y0 >= 0.5 * low.height
            upright = [label for label in axes.get_xticklabels() if label.get_text() and not label.get_rotation()]
            boxes = sorted((label.get_window_extent() for label in upright), key=lambda box: box.x0)
            for left, right in zip(boxes, boxes[1:], strict=False):
                assert right.x0 >= left.x1 - 1


def test_accuracy_curves_have_a_band_of_the_spread():
    epochs = np.array([1, 2, 3])
    ours = Curve("ours", epochs, np.array([0.3, 0.4, 0.5]), np.array([0.1, 0.1, 0.2]))
    paper = Curve("paper", epochs, np.array([0.2, 0.3, 0.4]), np.zeros(3), dashed=True, colour="#123456")
    (axes,) = accuracy_curves([ours, paper]).axes
    assert [line.get_label() for line in axes.lines] == ["ours", "paper"]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), ours.mean)
    assert axes.lines[1].get_color() == "#123456" and axes.lines[1].get_linestyle() == ":"
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.2) and heights.max() == pytest.approx(0.7)


def test_accuracy_of_one_epoch_is_drawn_on_axes_that_make_sense():
    curve = Curve("one", np.array([1]), np.array([0.997]), np.zeros(1))
    (axes,) = accuracy_curves([curve], what="accuracy on the test set").axes
    to_array(axes.figure)
    assert axes.get_xlim() == (0.5, 1.5)
    ticks = [tick for tick in axes.get_xticks() if 0.5 <= tick <= 1.5]
    assert ticks == [1]
    low, high = axes.get_ylim()
    assert high <= 1.01 and low > 0.8 and high - low > 0.05
    assert axes.get_ylabel() == "accuracy on the test set"


# -- files -------------------------------------------------------------------------------------------------------------


def test_svg_follows_the_page_and_asks_for_nothing():
    svg = to_svg(policy_heatmap(policies(2, 2), ["a <b>", "c & d"], ["0", "1"], "title"))
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "a &lt;b&gt;" in svg and "c &amp; d" in svg
    assert "currentColor" in svg and "#303234" not in svg
    links = re.findall(r'(?:href|src)="([^"]*)"', svg)
    assert all(link.startswith(("#", "data:")) for link in links)


def test_files_are_the_same_each_time(tmp_path):
    for name in ("a.png", "b.png"):
        save(policy_heatmap(policies(2, 2), ["a", "b"], ["0", "1"]), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("name", ["天气和能见度", "cost $5 and $6", "a_b^c", "Straße", "<b>&amp;</b>", "x\\y{z"])
def test_names_of_any_script_are_drawn_as_they_are(name, tmp_path, recwarn):
    for _ in range(3):
        figure = policy_heatmap(np.array([[0.5, 0.5], [1.0, 0.0]]), [name, "b"], action_labels(2, 2))
        save(figure, tmp_path / "a.png"), to_array(figure)
        assert name in unescape(to_svg(figure))
    glyphs = [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)]
    sentences = [str(warning.message) for warning in recwarn if "install a font" in str(warning.message)]
    assert not glyphs and len(sentences) <= 1


def test_no_figure_stays_alive():
    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, Figure) for thing in gc.get_objects())

    before = alive()
    for _ in range(200):
        policy_heatmap(np.zeros((2, 2)), ["a", "b"], ["0", "1"])
    assert alive() <= before + 1


def test_pyplot_is_never_imported():
    root = Path(routing_lightning.__file__).parent
    assert not [path for path in root.rglob("*.py") if re.search(r"import.*pyplot", path.read_text())]
    # the plots alone, without the libraries that training needs
    code = "import sys, routing_lightning.plots; print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root.parent)
    assert done.stdout.split() == ["False", "False"], done.stderr


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6))
def test_any_number_of_tasks_and_blocks_can_be_drawn(tasks, blocks):
    values = policies(1, tasks, blocks)
    names, actions = [str(task) for task in range(tasks)], action_labels(blocks, blocks)
    policy_heatmap(values[0], names, actions)
    policy_dynamics(np.array([0]), values[:, :, 0], names)
    evolution_panel(np.array([0]), values[:, 0], actions)


def test_private_blocks_serve_one_task():
    assert private_blocks(np.zeros((4, 2), np.int64)).sum() == 0
    assert private_blocks(np.arange(4)[:, None]).sum() == 4


def test_private_share_counts_tasks_that_are_alone_on_their_block():
    routes = np.array([[0, 4, 1], [0, 1, 2], [0, 4, 3], [0, 2, 0]])
    assert private_share(routes).tolist() == [0.0, 0.5, 1.0]
    assert private_share(np.zeros((1, 2), np.int64)).tolist() == [1.0, 1.0]


def test_sharing_profile_shows_the_shares_and_their_range():
    runs = np.array([[0.0, 0.5, 1.0], [0.2, 0.5, 0.8]])
    figure = sharing_profile({"learned": runs, "drawn": np.array([0.3, 0.4, 0.3])}, "where")
    axes = figure.axes[0]
    learned, drawn = axes.lines
    assert learned.get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(learned.get_ydata(), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(drawn.get_ydata(), [0.3, 0.4, 0.3])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (0.0, 1.0)
    assert axes.get_title("left") == "where" and [text.get_text() for text in figure.legends[0].texts] == [
        "learned",
        "drawn",
    ]


def test_sharing_profile_names_the_layers_where_there_is_room():
    figure = sharing_profile({"": np.array([0.0, 1.0])}, layers=["conv 1", "fc 1"])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["conv 1", "fc 1"]
    figure = sharing_profile({"": np.zeros(13)}, layers=[f"conv {n}" for n in range(13)])
    assert figure.axes[0].get_xlabel() == "depth"


def test_rows_of_the_routing_map_have_the_names_of_their_layers():
    """Of long ones the end; without names, or where a name is the number, the number alone."""
    routes, counts, actions = np.array([[0, 0, 1, 0], [1, 1, 1, 1]]), np.array([3, 4]), [["0", "1"]] * 3
    names = ["fc 1", "features.stage4.conv2", "depth 3"]
    for layers, middle in ((names, ["fc 1\n", "…es.stage4.conv2\n", ""]), (None, ["", "", ""])):
        texts = [
            text.get_text() for text in routing_map(routes, counts, ["a", "b"], actions, layers=layers).axes[0].texts
        ]
        for row, (name, used) in enumerate(zip(middle, (2, 1, 2), strict=True), start=1):
            assert f"depth {row}\n{name}{used} of 2\nin use" in texts
