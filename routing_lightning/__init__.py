"""Routing networks for multi-task learning, trained with PyTorch Lightning."""

__version__ = "0.1.0"
