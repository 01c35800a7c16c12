"""Parts of a user's own that tests plug in by their class path."""

import math

import torch
from torch import Tensor, nn

from routing_lightning.routers import WPL


class FlatFeatures(nn.Module):
    """The pixels themselves."""

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.out_features = math.prod(image_shape)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


class CertainWPL(WPL):
    """WPL whose actions are the most probable ones also in training, and whose first policies are not even."""

    def __init__(self) -> None:
        super().__init__(policy_lr=0.2)

    def initial_table(self, num_agents: int, num_actions: list[int]) -> Tensor:
        shape = (num_agents, len(num_actions), max(num_actions))
        return torch.rand(shape, generator=torch.Generator().manual_seed(0)).softmax(-1)

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        return nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).float()
