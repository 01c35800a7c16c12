"""Networks whose router looks at activations, as one module of tensor operations: router, all blocks and a choice."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.networks.routing import RoutingNetwork
from routing_lightning.networks.specialise import put_in_place
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.nn.layers import TaskMLP
from routing_lightning.routers.decider import Decider
from routing_lightning.routers.gumbel import GumbelRouter
from routing_lightning.routers.policies import MLPPolicy
from routing_lightning.routers.q_learning import EpsilonGreedy
from routing_lightning.routers.reward import RewardRouter
from routing_lightning.routers.top1 import Top1Router

Choice = tuple[Tensor, Tensor | None]


def whole(network: RoutingNetwork, task: int) -> nn.Module:
    """A routing network for samples of one task, its router within.

    A sample's route is known only when its activations are, so nothing can be left out but other tasks' agents: each
    layer runs all its blocks and takes, per sample, the output of the one that the router picks. It gives what the
    routing network gives in evaluation, up to rounding: a block's product is taken over other samples.

    Args:
        network: the network.
        task: in [0, T).

    Raises:
        UsageError: if the router is of a kind that nothing is known of here.
    """
    deciders = deciders_of(network, task)
    blocks: dict[int, nn.ModuleList] = {}
    for layer in network.layers:  # a layer that is called several times has its blocks once
        singles = [layer.blocks.single(block) for block in range(layer.blocks.num_blocks)]
        blocks[id(layer)] = nn.ModuleList([*singles, *([nn.Identity()] if layer.allow_pass else [])])
    made = [WholeLayer(layer, blocks[id(layer)], decide) for layer, decide in zip(network.calls, deciders, strict=True)]
    body = copy.deepcopy(network.body, {id(layer): layer for layer in network.calls})
    return put_in_place(body, network.calls, made).eval()


class WholeLayer(nn.Module):
    """All blocks of a layer, and the choice of one per sample.

    Args:
        layer: the layer, which knows what a router sees of an activation.
        blocks: its actions, PASS included.
        decide: state (N, size) -> actions (N,) and weights (N,) or None.
    """

    def __init__(self, layer: RoutedLayer, blocks: nn.ModuleList, decide: nn.Module) -> None:
        super().__init__()
        self.state: Callable[[Tensor], Tensor] = RoutedLayer([nn.Identity()], feature_dim=layer.feature_dim).state
        self.blocks = blocks
        self.decide = decide

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> (N, ...)."""
        actions, weight = self.decide(self.state(x))
        outputs = torch.stack([block(x) for block in self.blocks], 1)
        y = outputs[torch.arange(x.shape[0], device=x.device), actions]
        return y if weight is None else y * weight.to(y).view(-1, *[1] * (y.dim() - 1))


class TaskScores(nn.Module):
    """Scores of an MLP on concat(v, one-hot(t)), for one task.

    Args:
        mlp: the MLP.
        task: the task.
    """

    def __init__(self, mlp: TaskMLP, task: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(copy.deepcopy(mlp.hidden), nn.ReLU(), copy.deepcopy(mlp.out))
        self.told = Told([(task, mlp.num_tasks)])

    def forward(self, x: Tensor) -> Tensor:
        """Scores: (N, size) -> (N, K)."""
        scores: Tensor = self.layers(self.told(x))
        return scores


class Told(nn.Module):
    """Puts 1-hot numbers, the same for all samples, behind the state.

    Args:
        numbers: pairs of a number and how many there are.
    """

    row: Tensor

    def __init__(self, numbers: list[tuple[int, int]]) -> None:
        super().__init__()
        rows = [nn.functional.one_hot(torch.tensor(number), count).float() for number, count in numbers]
        self.register_buffer("row", torch.cat(rows).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        """(N, size) -> (N, size + ...)."""
        return torch.cat([x, self.row.to(x.dtype).expand(x.shape[0], -1)], 1)


def deciders_of(network: RoutingNetwork, task: int) -> list[nn.Module]:
    """For each depth what decides about samples of a task: state (N, size) -> actions (N,) and weights or None.

    Raises:
        UsageError: if the router is of a kind that nothing is known of here.
    """
    router = network.router
    depths = range(len(network.calls))
    if type(router) is GumbelRouter:
        return [Best(TaskScores(_mlp(router.scores[depth]), task)) for depth in depths]
    if type(router) is Top1Router:
        return [Gate(TaskScores(_mlp(router.gates[depth]), task), router.unit) for depth in depths]
    if type(router) is RewardRouter and type(router.policy) is MLPPolicy:
        if router.dispatcher is None:
            agent = 0 if router.agents == "single" else task
            return [Best(agent_of(router.decider, agent, task, depth)) for depth in depths]
        picked = Picked(agent_of(router.dispatcher, 0, task, 0))
        agents = range(router.policy.num_agents)
        return [
            Dispatched([agent_of(router.decider, agent, task, depth) for agent in agents], picked, first=depth == 0)
            for depth in depths
        ]
    raise UsageError(
        f"{type(router).__name__} looks at activations and is not one of the routers whose decisions can be written as "
        "tensor operations (RewardRouter with MLPPolicy, GumbelRouter, Top1Router); take a router whose routes depend "
        "on the task alone, or use the checkpoint with this package."
    )


def _mlp(module: nn.Module) -> TaskMLP:
    assert isinstance(module, TaskMLP)
    return module


def agent_of(decider: Decider, agent: int, task: int, depth: int) -> nn.Module:
    """One agent's numbers at a depth, the largest of which it takes: state (N, size) -> (N, K)."""
    policy, learner = decider.policy, decider.learner
    assert isinstance(policy, MLPPolicy)
    place = 0 if policy.shared else depth
    first, second = policy.first[place], policy.second[place]
    assert isinstance(first, LinearBlocks) and isinstance(second, LinearBlocks)
    told = Told([(task, policy.num_tasks), *([(depth, policy.depth)] if policy.shared else [])])
    layers: list[nn.Module] = [told, first.single(agent), second.single(agent)]
    if not isinstance(learner, EpsilonGreedy):  # its best action is that of the highest score
        # Not the scores: two that differ may have equal probabilities, of which the first is taken.
        layers.append(nn.Softmax(-1))
    return nn.Sequential(*layers)


class Best(nn.Module):
    """Takes the action of the highest score.

    Args:
        scores: state (N, size) -> (N, K).
    """

    def __init__(self, scores: nn.Module) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, x: Tensor) -> Choice:
        """Actions, and no weights."""
        return self.scores(x).argmax(1), None


class Gate(nn.Module):
    """Takes the most probable action, weighted by its probability.

    Args:
        scores: state (N, size) -> (N, K).
        unit: whether the weight is 1 in its place.
    """

    def __init__(self, scores: nn.Module, unit: bool) -> None:
        super().__init__()
        self.scores = scores
        self.unit = unit

    def forward(self, x: Tensor) -> Choice:
        """Actions and weights."""
        value, actions = self.scores(x).float().softmax(1).max(1)
        return actions, None if self.unit else value


class Picked:
    """The agents that the dispatcher picked, from the first depth to the others; no module, as it holds no weights.

    Args:
        scores: the dispatcher's numbers: state (N, size) -> (N, A).
    """

    def __init__(self, scores: nn.Module) -> None:
        self.scores = scores
        self.agents: Tensor | None = None


class Dispatched(nn.Module):
    """Asks all agents and takes the action of the one that the dispatcher picked.

    Args:
        agents: of each agent, state (N, size) -> (N, K).
        picked: the dispatcher and its choice.
        first: whether the dispatcher picks here.
    """

    def __init__(self, agents: list[nn.Module], picked: Picked, first: bool) -> None:
        super().__init__()
        self.agents = nn.ModuleList(agents)
        self.dispatcher = picked.scores if first else None
        self.picked = picked

    def forward(self, x: Tensor) -> Choice:
        """Actions, and no weights."""
        if self.dispatcher is not None:
            self.picked.agents = self.dispatcher(x).argmax(1)
        assert self.picked.agents is not None
        actions = torch.stack([agent(x).argmax(1) for agent in self.agents], 1)
        return actions.gather(1, self.picked.agents.unsqueeze(1)).squeeze(1), None
