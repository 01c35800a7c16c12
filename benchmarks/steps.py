"""Training steps of the networks that are compared, in plain PyTorch: all see the same batch in the same way."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from routing_lightning.metrics import TaskMetrics
from routing_lightning.networks import RoutingAllFC, RoutingNetwork, SimpleConvNet
from routing_lightning.routers import WPL, RewardRouter, Router, TabularPolicy, Trace, correctness_reward

CLASSES = 5
HIDDEN = 128
SHAPE = (3, 32, 32)
Batch = tuple[Tensor, Tensor, Tensor]


def batch_of(size: int, num_tasks: int, device: str, channels_last: bool = True) -> Batch:
    """Noise of the shape of CIFAR: images on the device, tasks on the host, labels on the device."""
    images = torch.randn(size, 3, 32, 32, device=device)
    images = images.contiguous(memory_format=torch.channels_last) if channels_last else images
    return images, torch.randint(num_tasks, (size,)), torch.randint(CLASSES, (size,), device=device)


def sgd(parameters: Iterator[nn.Parameter] | list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of all contestants."""
    return torch.optim.SGD(parameters, lr=1e-2)


def fully_connected(features: int) -> nn.Sequential:
    """The unrouted counterpart of the routed layers: as many layers of the same sizes, one block each."""
    layers = [nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))


def textbook_convnet() -> nn.Sequential:
    """SimpleConvNet as a user would write it: contiguous, ReLU before pooling."""
    layers: list[nn.Module] = []
    for channels in (3, 32, 32, 32):
        layers += [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def plain_step(features: nn.Module, head: nn.Module, device: str) -> Callable[[Batch], None]:
    """What a user would write without routing: forward, backward, optimizer, and nothing counted."""
    network = nn.Sequential(features, head).to(device)
    optimizer = sgd(network.parameters())

    def step(batch: Batch) -> None:
        images, _, labels = batch
        cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def task_step(make: Callable[..., nn.Module], num_tasks: int, device: str) -> Callable[[Batch], None]:
    """A step of a network that takes ``(x, tasks)``, such as the baselines."""
    features = SimpleConvNet().to(device)
    network = make(features.out_features, num_tasks, CLASSES).to(device)
    optimizer = sgd([*features.parameters(), *network.parameters()])

    def step(batch: Batch) -> None:
        images, tasks, labels = batch
        cross_entropy(network(features(images), tasks), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class RoutedStep:
    """The step of ``RoutedClassifier``: forward, backward, optimizer, router and metrics, without a Trainer.

    Args:
        num_tasks: T.
        num_blocks: K, of each routed layer.
        device: where the network is.
        body: the network; routing-all-fc by default.
        router: the router; WPL on tables by default.
    """

    def __init__(
        self,
        num_tasks: int,
        num_blocks: int,
        device: str,
        body: nn.Module | None = None,
        router: Router | None = None,
    ) -> None:
        made = RoutingAllFC(SHAPE, num_tasks, CLASSES, hidden=HIDDEN, num_blocks=num_blocks) if body is None else body
        self.router = RewardRouter(TabularPolicy(), WPL()) if router is None else router
        self.network = RoutingNetwork(made, self.router, num_tasks, torch.zeros(1, *SHAPE)).to(device)
        self.metrics = TaskMetrics(num_tasks).to(device)
        owned = {id(parameter) for parameter in [*self.router.parameters(), *self.network.block_parameters()]}
        self.shared = [parameter for parameter in self.network.parameters() if id(parameter) not in owned]
        self.optimizer = sgd([*self.shared, *self.network.block_parameters()])

    def __call__(self, batch: Batch, scaler: torch.amp.GradScaler | None = None) -> Trace:
        images, tasks, labels = batch
        logits, trace = self.network(images, tasks, explore=True)
        hits = logits.argmax(1) == labels
        loss = cross_entropy(logits.float(), labels)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if trace.alternatives is not None:
            losses = cross_entropy(self.network.otherwise(trace).float(), labels, reduction="none")
            other = losses.mean()
            (other if scaler is None else scaler.scale(other)).backward()
            trace.alternative_reward = -losses.detach().cpu()
        group = self.optimizer.param_groups[0]
        everything = group["params"]
        group["params"] = [*self.shared, *self.network.active_parameters()]
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        for parameter in group["params"]:
            parameter.grad = None
        group["params"] = everything
        self.network.reset_active()
        trace.final_reward = correctness_reward(hits).cpu()
        self.router.learn(trace)
        self.metrics.update(loss.detach(), hits, tasks.to(labels.device, non_blocking=True))
        return trace
