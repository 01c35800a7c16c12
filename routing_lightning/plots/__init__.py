"""Figures as pure functions of arrays: no files, no training, no pyplot."""

from routing_lightning.plots.curves import Curve, accuracy_curves, policy_dynamics
from routing_lightning.plots.frame import HeatmapFrame, figure_png
from routing_lightning.plots.heatmaps import (
    block_usage,
    evolution_panel,
    policy_evolution,
    policy_heatmap,
    time_edges,
    time_position,
    usage_evolution,
    usage_heatmap,
)
from routing_lightning.plots.overlap import cluster_order, overlap, task_overlap
from routing_lightning.plots.routing_map import Link, fold_links, route_links, routing_map
from routing_lightning.plots.sharing import private_blocks, private_share, sharing_profile
from routing_lightning.plots.style import TASK_COLOURS, save, task_colours, to_array, to_svg
from routing_lightning.plots.tested import confusion_matrix, draw_tested, folded, label_scores, value_scatter

__all__ = [
    "TASK_COLOURS",
    "Curve",
    "HeatmapFrame",
    "Link",
    "accuracy_curves",
    "block_usage",
    "cluster_order",
    "confusion_matrix",
    "draw_tested",
    "evolution_panel",
    "figure_png",
    "fold_links",
    "folded",
    "label_scores",
    "overlap",
    "policy_dynamics",
    "policy_evolution",
    "policy_heatmap",
    "private_blocks",
    "private_share",
    "route_links",
    "routing_map",
    "save",
    "sharing_profile",
    "task_colours",
    "task_overlap",
    "time_edges",
    "time_position",
    "to_array",
    "to_svg",
    "usage_evolution",
    "usage_heatmap",
    "value_scatter",
]
