"""New tasks join a trained network."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.export.prune import check_kinds
from routing_lightning.networks import RoutingNetwork
from routing_lightning.networks.pace import check_can_be_frozen, check_factor, old_parameters
from routing_lightning.networks.route import check_can_be_drawn, own_reset
from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.nn.conv import ConvBlocks
from routing_lightning.routers import BranchingRouter, FixedRoutes, RewardRouter, RoutingSpec, TabularPolicy
from routing_lightning.routers.learner import GradientLearner
from routing_lightning.routers.q_learning import EpsilonGreedy

NEVER = -1e4  # a logit whose probability is 0


@dataclass
class Extended:
    """The parameters of an extended network, apart.

    Attributes:
        old: parameters that were there, the router's left out.
        new: those of the new blocks.
    """

    old: list[nn.Parameter]
    new: list[nn.Parameter]


def extend_network(
    network: RoutingNetwork, new_tasks: int, new_blocks: int | Sequence[int] = 0, old_lr: float = 0.0
) -> Extended:
    """Adds tasks, and blocks for them, to a trained routing network, in place.

    The new tasks' agents begin as agents of a new network do, with old and new blocks to choose from; the old ones stay
    with the old blocks. The new tasks are numbered from T on, the new blocks of a layer from K on.

    With ``old_lr=0`` nothing that was there moves: parameters get no gradient, batch normalisations keep their
    statistics in training, too, and the old tasks' agents their routes. After training, on samples of whatever tasks,
    samples of the old ones then get what they got before, to the bit. Other factors are for the optimizer, see
    :meth:`RoutingNetwork.hold_back`.

    Args:
        network: a trained network whose router is a table with an agent per task.
        new_tasks: number of tasks that join, at least 1.
        new_blocks: number of new blocks of each routed layer, at least 0; one number or one for each of its ``layers``.
        old_lr: factor on the learning rate of what was there, in [0, 1]; 0: frozen.

    Returns:
        Old and new parameters.

    Raises:
        UsageError: if a number is out of its range, or router or blocks are of a kind that cannot be extended so.
    """
    counts = [new_blocks] * len(network.layers) if isinstance(new_blocks, int) else list(new_blocks)
    if new_tasks < 1 or len(counts) != len(network.layers) or min(counts) < 0:
        raise UsageError(
            f"new_tasks is {new_tasks} and new_blocks {counts} for {len(network.layers)} routed layers; give at least "
            "1 task, and for each layer at least 0 blocks."
        )
    check_factor("old_lr", old_lr)
    check_can_be_extended(network, old_lr == 0)
    spec = network.router.spec
    old_blocks = [layer.blocks.num_blocks for layer in network.layers]
    added = {id(layer): count for layer, count in zip(network.layers, counts, strict=True)}
    grown = RoutingSpec(
        spec.num_tasks + new_tasks,
        [blocks + added[id(call)] for blocks, call in zip(spec.num_blocks, network.calls, strict=True)],
        spec.may_pass,
        spec.state_sizes,
    )
    for layer, count in zip(network.layers, counts, strict=True):
        add_blocks(layer.blocks, count)
    extend_router(cast(RewardRouter, network.router), grown)
    network.num_tasks = grown.num_tasks
    network.hold_back(spec.num_tasks, old_blocks, old_lr)
    old = old_parameters(network.body, network.layers, old_blocks)
    known = {id(parameter) for parameter in old}
    return Extended(old, [parameter for parameter in network.body.parameters() if id(parameter) not in known])


def check_can_be_extended(network: RoutingNetwork, frozen: bool) -> None:
    """Checks that all parts can be extended, before any of them is.

    Raises:
        UsageError: if not.
    """
    router = network.router
    if isinstance(router, (FixedRoutes, BranchingRouter)) or (
        isinstance(router, RewardRouter) and router.agents != "per_task"
    ):
        raise UsageError(
            f"{type(router).__name__} has no agent per task that could choose for the new tasks; extend networks of "
            "RewardRouter with agents 'per_task'."
        )
    check_kinds(network)
    if frozen:
        check_can_be_frozen(network.layers)
    for layer in network.layers:
        if isinstance(layer.blocks, ModuleBlocks):
            check_can_be_drawn(layer.blocks.blocks[0], "a block")


def add_blocks(blocks: Blocks, count: int) -> None:
    """Adds fresh blocks to a set, in place."""
    if not count:
        return
    made: Blocks
    like = next(iter(blocks.parameters()))
    if isinstance(blocks, LinearBlocks):
        made = LinearBlocks(count, cast(int, blocks.in_features), cast(int, blocks.out_features), blocks.relu).to(like)
        blocks.blocks.extend(made.blocks)
        blocks._names = [str(block) for block in range(len(blocks.blocks))]
    elif isinstance(blocks, ConvBlocks):
        size = blocks.blocks[0].shape[-1]
        made = ConvBlocks(count, blocks.in_channels, blocks.out_channels, size, blocks.kind).to(like)
        blocks.blocks.extend(made.blocks)
        blocks.affine.extend(made.affine)
        for name in ("running_mean", "running_var"):
            if getattr(blocks, name) is not None:
                setattr(blocks, name, torch.cat([getattr(blocks, name), getattr(made, name)]))
        blocks._names = [str(block) for block in range(len(blocks.blocks))]
    elif isinstance(blocks, ModuleBlocks):
        for _ in range(count):
            module = copy.deepcopy(blocks.blocks[0]).requires_grad_(True)
            for part in module.modules():
                part._forward_pre_hooks.clear()
                part.train(blocks.training)
                if (reset := own_reset(part)) is not None:
                    reset()
            blocks.blocks.append(module)
    blocks.num_blocks += count


def extend_router(router: RewardRouter, spec: RoutingSpec) -> None:
    """Adds agents and actions to a router of tables with an agent per task, in place."""
    before, router.spec = router.spec, spec
    policy, learner = router.policy, router.learner
    assert isinstance(policy, TabularPolicy)
    agents = spec.num_tasks - before.num_tasks
    # Where each old action is now: PASS comes after the new blocks.
    places = []
    for old, blocks, passes in zip(before.num_blocks, spec.num_blocks, before.may_pass, strict=True):
        places.append([*range(old), *([blocks] if passes else [])])
    table = policy.table.detach()
    grown = learner.initial_table(spec.num_tasks, spec.num_actions).to(table)
    # What an old agent gives to a new block: nothing, or no more than to the worst of its own.
    for depth, own in enumerate(places):
        rows = table[:, depth, : len(own)]
        least = torch.zeros(len(rows), 1)
        if isinstance(learner, EpsilonGreedy):
            least = rows.min(1, keepdim=True).values
        elif isinstance(learner, GradientLearner):
            least = torch.full_like(least, NEVER)
        grown[: len(table), depth] = least
        grown[: len(table), depth, own] = rows
    policy.table = nn.Parameter(grown) if isinstance(policy.table, nn.Parameter) else grown
    policy.num_actions = torch.tensor(spec.num_actions)
    policy.num_agents = spec.num_tasks
    averages = getattr(learner, "average_return", None)
    if isinstance(averages, Tensor):
        wide = moved(averages, places, max(spec.num_actions)) if averages.dim() == 3 else averages
        learner.average_return = torch.cat([wide, wide.new_zeros(agents, *wide.shape[1:])])
    if isinstance(learner, GradientLearner):
        learner.optimizer = None  # its table is another one now
    totals = router.collaboration.totals
    router.collaboration.totals = moved(totals.unsqueeze(0), places, max(spec.num_actions))[0]


def moved(table: Tensor, places: Sequence[Sequence[int]], width: int) -> Tensor:
    """A table (A, D, K) with its columns at other places of a wider one, zeros elsewhere: (A, D, width)."""
    wide = table.new_zeros(*table.shape[:2], width)
    for depth, own in enumerate(places):
        wide[:, depth, list(own)] = table[:, depth, : len(own)]
    return wide
