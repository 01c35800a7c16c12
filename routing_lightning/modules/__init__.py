"""LightningModules."""

from routing_lightning.modules.classifier import TaskClassifier
from routing_lightning.modules.routed import RoutedClassifier

__all__ = ["RoutedClassifier", "TaskClassifier"]
