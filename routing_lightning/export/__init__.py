"""Taking a trained network away: plain networks of single tasks as files; networks without unused blocks."""

from routing_lightning.export.checkpoint import Exported, export_checkpoint
from routing_lightning.export.extend import Extended, extend_network
from routing_lightning.export.files import load, save
from routing_lightning.export.join import extend_checkpoint
from routing_lightning.export.load import Trained, load_trained
from routing_lightning.export.plain import TaskNetwork, plain_network
from routing_lightning.export.prune import prune_checkpoint, prune_network
from routing_lightning.export.whole import whole

__all__ = [
    "Exported",
    "Extended",
    "TaskNetwork",
    "Trained",
    "export_checkpoint",
    "extend_checkpoint",
    "extend_network",
    "load",
    "load_trained",
    "plain_network",
    "prune_checkpoint",
    "prune_network",
    "save",
    "whole",
]
