"""LightningModules."""

from routing_lightning.modules.classifier import TaskClassifier
from routing_lightning.modules.gradients import combine_gradients
from routing_lightning.modules.multitask import MultiTaskClassifier
from routing_lightning.modules.routed import RoutedClassifier

__all__ = ["MultiTaskClassifier", "RoutedClassifier", "TaskClassifier", "combine_gradients"]
