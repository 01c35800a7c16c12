"""What the runs of the matrix say: accuracy, regret, and who parted where."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Table
from routing_lightning.plots import policy_heatmap

Row = Mapping[str, Any]
GROUPS = 4
"""Groups into which tasks of unequal size are put, the smallest ones in the first."""


def accuracies(rows: Iterable[Row]) -> dict[str, dict[str, list[float]]]:
    """Accuracies in %, by regime, method and seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["regime"], {}).setdefault(row["method"], []).append(row["accuracy"])
    return found


def regrets(means: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By how many points each method is behind the best of its regime."""
    return {
        regime: {method: max(of_regime.values()) - mean for method, mean in of_regime.items()}
        for regime, of_regime in means.items()
    }


def tables(rows: Sequence[Row], methods: Sequence[str]) -> list[Table]:
    """Accuracy and regret, a line per regime, a column per method; below them the largest regret of each method.

    What was not run is "-". The largest regret of a method that was not run in all regimes has a "≥".
    """
    found = accuracies(rows)
    means = {
        regime: {method: statistics.fmean(values) for method, values in of_regime.items()}
        for regime, of_regime in found.items()
    }
    accuracy = Table("test accuracy in % (mean over tasks; mean and, of several seeds, half the range)")
    regret = Table("regret: points behind the best of the regime")
    behind = regrets(means)
    for regime, of_regime in found.items():
        seeds = sorted({len(values) for values in of_regime.values()})
        accuracy.rows.append(
            {
                "regime": regime,
                **{method: _with_range(of_regime.get(method, [])) for method in methods},
                "seeds": "-".join(map(str, sorted({seeds[0], seeds[-1]}))),
            }
        )
        regret.rows.append({"regime": regime, **{method: _points(behind[regime].get(method)) for method in methods}})
    largest = {}
    for method in methods:
        own = [of_regime[method] for of_regime in behind.values() if method in of_regime]
        largest[method] = "-" if not own else ("" if len(own) == len(behind) else "≥ ") + _points(max(own))
    regret.rows.append({"regime": "**largest**", **largest})
    return [accuracy, regret]


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _with_range(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {(max(values) - min(values)) / 2:.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def private_shares(rows: Iterable[Row]) -> list[tuple[str, float, np.ndarray]]:
    """Share of tasks whose block is their own, by depth, for each regime and group of tasks.

    Tasks of one regime are one group where the largest has at most twice the images of the smallest, else
    :data:`GROUPS`.

    Returns:
        For each group the regime, the mean number of training images of a task, and the shares (D,), a mean over seeds.
    """
    by_regime: dict[str, list[Row]] = {}
    for row in rows:
        if row["private"] is not None:
            by_regime.setdefault(row["regime"], []).append(row)
    found = []
    for regime, of_regime in by_regime.items():
        images = np.array(of_regime[0]["images"])
        private = np.mean([row["private"] for row in of_regime], axis=0)
        order = np.argsort(images, kind="stable")
        groups = [order] if images.max() <= 2 * images.min() else np.array_split(order, GROUPS)
        found += [(regime, float(images[group].mean()), private[group].mean(0)) for group in groups]
    return found


def picture(rows: Iterable[Row], title: str) -> Figure:
    """Share of private tasks per depth: a row per regime and group of tasks, those with the fewest images first."""
    groups = sorted(private_shares(rows), key=lambda group: group[1])
    names = [f"{regime}: {images:,.0f}" for regime, images, _ in groups]
    shares = np.stack([share for _, _, share in groups])
    layers = [str(depth + 1) for depth in range(shares.shape[1])]
    figure = policy_heatmap(shares, names, layers, title, "tasks with a block of their own")
    axes = figure.axes[0]
    axes.set(xlabel="layer", ylabel="regime: training images of a task")
    axes.set_yticks(range(len(names)), names)  # in full
    figure.set_figwidth(figure.get_figwidth() + 1)
    return figure
