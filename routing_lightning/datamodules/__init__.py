"""Datamodules that yield batches of ``(image, task, label)``."""

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, MultiTaskDataset
from routing_lightning.datamodules.cifar import CIFARMTLDataModule
from routing_lightning.datamodules.digits import DigitsMTLDataModule
from routing_lightning.datamodules.folder import FolderMTLDataModule
from routing_lightning.datamodules.mini_imagenet import MINMTLDataModule
from routing_lightning.datamodules.mixed import MixedMTLDataModule
from routing_lightning.datamodules.mnist import MNISTMTLDataModule
from routing_lightning.datamodules.unlabelled import UnlabelledDataModule

__all__ = [
    "CIFARMTLDataModule",
    "DigitsMTLDataModule",
    "FolderMTLDataModule",
    "MINMTLDataModule",
    "MNISTMTLDataModule",
    "MixedMTLDataModule",
    "MultiTaskData",
    "MultiTaskDataModule",
    "MultiTaskDataset",
    "UnlabelledDataModule",
]
