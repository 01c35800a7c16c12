"""Small data and models that tests share."""

import os

# Many small operations: threads only get in each other's way, and results must not depend on their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from functools import partial

import hypothesis
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, MultiTaskDataset
from routing_lightning.modules import RoutedClassifier
from routing_lightning.networks import RoutedLayer, RoutingAllFC, SimpleConvNet
from routing_lightning.nn import Blocks
from routing_lightning.routers import WPL, RewardRouter, TabularPolicy
from tests.fake_data import cifar_tree, mnist_root, write_cifar_archive  # noqa: F401

torch.set_num_threads(1)

# The same examples each time: a commit passes or fails for what it changed. For new ones, `HYPOTHESIS_PROFILE=new`.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("new", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


class ToyDataModule(MultiTaskDataModule):
    """Pictures of noise around a mean that depends on task and label: learnable within a few epochs."""

    mean = (0.5,)
    std = (0.25,)

    def __init__(self, num_tasks: int = 3, num_classes: int = 2, count: int = 96, batch_size: int = 16) -> None:
        super().__init__(batch_size=batch_size)
        self.save_hyperparameters()
        self.shape = (num_tasks, num_classes, count)

    def load_data(self) -> MultiTaskData:
        num_tasks, num_classes, count = self.shape
        generator = torch.Generator().manual_seed(0)
        tasks = torch.arange(count) % num_tasks
        labels = torch.arange(count) // num_tasks % num_classes
        patterns = torch.rand(num_tasks * num_classes, 8, 8, 1, generator=generator)
        noise = torch.rand(count, 8, 8, 1, generator=generator)
        images = (170 * patterns[tasks * num_classes + labels] + 85 * noise).byte().permute(0, 3, 1, 2)
        dataset = MultiTaskDataset(images, torch.arange(count), tasks, labels)
        names = [[str(label) for label in range(num_classes)]] * num_tasks
        return MultiTaskData([f"task_{task}" for task in range(num_tasks)], names, dataset, None, dataset)


toy_features = partial(SimpleConvNet, filters=4, num_layers=2)

OF_THE_BODY = ("features", "depth", "hidden", "num_blocks", "recurrent_steps", "allow_pass")


def layered(*blocks: Blocks, features=toy_features) -> Callable[[tuple[int, int, int], int, int], nn.Module]:
    """Makes a body of features and routed layers of these blocks, one after the other."""
    return lambda image_shape, *_: nn.Sequential(features(image_shape), *(RoutedLayer(layer) for layer in blocks))


def toy_model(**options) -> RoutedClassifier:
    """A small routed classifier for :class:`ToyDataModule`, made from seed 0; options of the body go to that."""
    seed_everything(0, verbose=False)
    body = {name: options.pop(name) for name in OF_THE_BODY if name in options}
    options = {
        "num_tasks": 3,
        "num_classes": 2,
        "image_shape": (1, 8, 8),
        "router": RewardRouter(TabularPolicy(), WPL(0.05)),
        "network": partial(RoutingAllFC, **{"features": toy_features, "hidden": 8, **body}),
        **options,
    }
    return RoutedClassifier(**options)


@pytest.fixture
def toy_data() -> ToyDataModule:
    return ToyDataModule()
