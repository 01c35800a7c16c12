"""Dropping the blocks that no task uses."""

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor, nn

from routing_lightning.cli.checkpoints import CONFIG_KEY
from routing_lightning.errors import UsageError
from routing_lightning.export.load import Trained, load_trained, make
from routing_lightning.modules import RoutedClassifier
from routing_lightning.networks import RoutingNetwork
from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.nn.conv import ConvBlocks
from routing_lightning.routers import WPL, BranchingRouter, FixedRoutes, RewardRouter, RoutingSpec, TabularPolicy
from routing_lightning.routers.decider import Decider
from routing_lightning.saving import check_new, save_whole

Kept = list[list[int]]
"""For each routed layer the blocks that stay, ascending."""


def blocks_in_use(network: RoutingNetwork) -> Kept:
    """For each routed layer the blocks on some task's route in evaluation; the first one where all PASS.

    Raises:
        UsageError: if routes depend on the activations.
    """
    routes = network.router.routes()
    used: Kept = []
    for layer in network.layers:
        depths = [depth for depth, call in enumerate(network.calls) if call is layer]
        found = set(routes[:, depths].unique().tolist()) - {layer.blocks.num_blocks}
        used.append(sorted(found) or [0])
    return used


def prune_network(network: RoutingNetwork, kept: Kept | None = None) -> Kept:
    """Drops the blocks of a routing network that no task uses, in place; its tables shrink with them.

    In evaluation it gives what it gave. Policies that are distributions are brought to sum 1 again; those of no
    probability left, which only a dispatcher's agents without a task can have, become uniform.

    Args:
        network: the network.
        kept: for each of its ``layers`` the blocks to keep; those in use by default.

    Returns:
        The blocks that were kept, by their old numbers.

    Raises:
        UsageError: if routes depend on the activations, or the router or a set of blocks is of a kind that nothing is
            known of here.
    """
    kept = blocks_in_use(network) if kept is None else kept
    layers = {id(layer): blocks for layer, blocks in zip(network.layers, kept, strict=True)}
    actions = []  # of each depth, by their old numbers
    for call in network.calls:
        stay = layers[id(call)]
        actions.append([*stay, *([call.blocks.num_blocks] if call.allow_pass else [])])
    check_kinds(network)
    spec = network.router.spec
    if isinstance(network.router, BranchingRouter):  # whose search is over: its routes stay
        network.router = FixedRoutes(network.router.routes().tolist(), stitch=network.router.stitch)
        network.router.build(spec)
    shrink_router(
        network.router,
        actions,
        RoutingSpec(spec.num_tasks, [len(layers[id(call)]) for call in network.calls], spec.may_pass, spec.state_sizes),
    )
    for layer in network.layers:
        keep_blocks(layer.blocks, layers[id(layer)])
    if network.old_blocks is not None:
        network.old_blocks = [
            sum(block < count for block in stay) for stay, count in zip(kept, network.old_blocks, strict=True)
        ]
    return kept


def check_kinds(network: RoutingNetwork) -> None:
    """Checks that all parts can be shrunk, before any of them is.

    Raises:
        UsageError: if not.
    """
    router = network.router
    tabular = type(router) is RewardRouter and type(router.policy) is TabularPolicy
    if isinstance(router, BranchingRouter) and not router.is_over:
        raise UsageError(
            "the search of BranchingRouter is not over, so its routes may still change; prune a checkpoint of later."
        )
    if not tabular and type(router) not in (FixedRoutes, BranchingRouter):
        raise UsageError(
            f"{type(router).__name__} is no table of routes that can be shrunk; prune networks of RewardRouter with "
            "TabularPolicy, FixedRoutes or BranchingRouter."
        )
    for layer in network.layers:
        if type(layer.blocks) not in (LinearBlocks, ModuleBlocks, ConvBlocks):
            raise UsageError(
                f"{type(layer.blocks).__name__} is a set of blocks that nothing is known of; prune LinearBlocks, "
                "ModuleBlocks or ConvBlocks."
            )


def keep_blocks(blocks: Blocks, kept: Sequence[int]) -> None:
    """Leaves of a set of blocks only some, in place; their parameters stay the same objects."""
    names = ("blocks", "affine") if isinstance(blocks, ConvBlocks) else ("blocks",)
    for name in names:
        old = cast(nn.ParameterList | nn.ModuleList, getattr(blocks, name))
        if len(old):
            setattr(blocks, name, type(old)(old[block] for block in kept))
    if isinstance(blocks, ConvBlocks):
        for name in ("running_mean", "running_var"):
            rows = getattr(blocks, name)
            if rows is not None:
                setattr(blocks, name, rows[list(kept)].clone())
    if isinstance(blocks, (LinearBlocks, ConvBlocks)):
        blocks._names = [str(block) for block in range(len(kept))]
    blocks.num_blocks = len(kept)
    blocks.active.clear()


def shrink_router(router: nn.Module, actions: Sequence[Sequence[int]], spec: RoutingSpec) -> None:
    """Leaves of a router's actions only some, in place.

    Args:
        router: the router, of a kind that :func:`check_kinds` lets pass.
        actions: for each depth the actions that stay, by their old numbers.
        spec: what there is to decide afterwards.
    """
    if isinstance(router, FixedRoutes):
        new = [{old: number for number, old in enumerate(stay)} for stay in actions]
        rows = [[new[depth][old] for depth, old in enumerate(row)] for row in router.table.tolist()]
        router.table.copy_(torch.tensor(rows, dtype=torch.long))
        if not isinstance(router.given, str):
            router.given = rows
    elif isinstance(router, RewardRouter):
        shrink_decider(router.decider, actions)
        collaboration = router.collaboration
        collaboration.totals = columns(collaboration.totals.unsqueeze(0), actions)[0]
    assert isinstance(router, (FixedRoutes, RewardRouter))
    router.spec = spec


def shrink_decider(decider: Decider, actions: Sequence[Sequence[int]]) -> None:
    """Leaves of a table's actions only some, in place."""
    policy, learner = decider.policy, decider.learner
    assert isinstance(policy, TabularPolicy)
    table = columns(policy.table.detach(), actions)
    sizes = torch.tensor([len(stay) for stay in actions])
    if isinstance(learner, WPL):  # its table holds probabilities
        exists = (torch.arange(table.shape[-1]) < sizes.unsqueeze(1)).float()
        table = torch.where(table.sum(-1, keepdim=True) > 0, table, exists)
        table = table / table.sum(-1, keepdim=True)
    if isinstance(policy.table, nn.Parameter):
        policy.table = nn.Parameter(table)
    else:
        policy.table = table
    policy.num_actions = sizes
    averages = getattr(learner, "average_return", None)
    if isinstance(averages, Tensor) and averages.dim() == 3:
        learner.average_return = columns(averages, actions)


def columns(table: Tensor, actions: Sequence[Sequence[int]]) -> Tensor:
    """The columns of some actions: (A, D, K) -> (A, D, largest number of them), zeros behind."""
    found = table.new_zeros(*table.shape[:2], max(map(len, actions)))
    for depth, stay in enumerate(actions):
        found[:, depth, : len(stay)] = table[:, depth, list(stay)]
    return found


# -- checkpoints -------------------------------------------------------------------------------------------------------


def prune_checkpoint(checkpoint: str | Path, out: str | Path, trust: Sequence[str] = ()) -> dict[str, tuple[int, int]]:
    """Writes a checkpoint without the blocks that no task uses; training goes on from it with ``--ckpt_path``.

    Optimizer states of what stays are kept, where the optimizer has one group of parameters; else they begin anew. The
    history of routes begins anew, as its blocks have other numbers.

    Args:
        checkpoint: a checkpoint of the command line.
        out: the new file.
        trust: modules of yours that the checkpoint may name.

    Returns:
        For each routed layer, by its name, the number of blocks before and after.

    Raises:
        UsageError: if it cannot be pruned; the sentence says why.
    """
    trained = load_trained(checkpoint, trust)
    target = check_new(out, trained.path)
    model = trained.model
    if not isinstance(model, RoutedClassifier):
        raise UsageError(f"{type(model).__name__} has no routed blocks to drop; prune a RoutedClassifier.")
    before = [layer.blocks.num_blocks for layer in model.network.layers]
    tables = table_parameters(model)
    old = [groups_of(model), *([[table]] for table in tables)]
    prune_network(model.network)
    new = [groups_of(model), *([[table]] for table in table_parameters(model))]
    after = [layer.blocks.num_blocks for layer in model.network.layers]
    saved = copy.copy(trained.checkpoint)
    saved["state_dict"] = model.state_dict()
    saved["num_blocks"] = list(model.router.spec.num_blocks)
    if "optimizer_states" in saved:
        saved["optimizer_states"] = [
            remapped(state, ours, theirs)
            for state, ours, theirs in zip(saved["optimizer_states"], old, new, strict=False)
        ]
    saved["callbacks"] = {name: state for name, state in saved.get("callbacks", {}).items() if name != "RouteRecorder"}
    config = with_counts(trained, model, after)
    given = dict(saved.get("hyper_parameters", {}))
    for name in ("network", "router"):
        if name in given:
            given[name] = config["model"]["init_args"][name]
    if model.network.old_blocks is not None:
        config["model"]["init_args"]["router"]["init_args"]["old_blocks"] = model.network.old_blocks
    saved["hyper_parameters"] = given
    saved[CONFIG_KEY] = yaml.safe_dump(config, sort_keys=False)
    check_fits(config, given, saved["state_dict"])
    save_whole(saved, target)
    return dict(zip(routed_names(model.network), zip(before, after, strict=True), strict=True))


def table_parameters(model: RoutedClassifier) -> list[nn.Parameter]:
    """Tables that are parameters, in the order of the router's optimizers."""
    router = model.router
    deciders = router.deciders() if isinstance(router, RewardRouter) else []
    return [parameter for decider in deciders for parameter in decider.policy.parameters()]


def groups_of(model: RoutedClassifier) -> list[list[nn.Parameter]]:
    """The parameters of each group of the network's optimizer, in its order."""
    parameters, factors = model.parameter_groups()
    return [parameters] if len(factors) == 1 else [group["params"] for group in parameters]


def remapped(state: dict[str, Any], old: list[list[nn.Parameter]], new: list[list[nn.Parameter]]) -> dict[str, Any]:
    """The state of an optimizer over fewer parameters, by group; without what belongs to those that went or changed."""
    groups = [dict(group) for group in state["param_groups"]]
    if [len(group["params"]) for group in groups] != [len(group) for group in old]:
        raise UsageError(
            f"the optimizer has {len(groups)} groups of parameters, whose state cannot be told apart; prune a "
            "checkpoint of an optimizer that puts all it gets into the groups that it gets."
        )
    places = {id(parameter): place for place, parameter in enumerate(itertools.chain(*old))}
    kept: dict[int, Any] = {}
    counter = itertools.count()
    for group, parameters in zip(groups, new, strict=True):
        group["params"] = list(itertools.islice(counter, len(parameters)))
        for place, parameter in zip(group["params"], parameters, strict=True):
            before = state["state"].get(places.get(id(parameter)))
            if before is not None:
                kept[place] = before
    return {"state": kept, "param_groups": groups}


def with_counts(trained: Trained, model: RoutedClassifier, counts: list[int]) -> dict[str, Any]:
    """The run's config with the number of blocks of each layer.

    Raises:
        UsageError: if the network's config says nothing of them.
    """
    config = copy.deepcopy(trained.config)
    options = config["model"]["init_args"]
    network = options.get("network")
    if isinstance(network, str):
        network = options["network"] = {"class_path": network}
    given = (network or {}).setdefault("init_args", {})
    if "layers" in given:  # RoutedBackbone: by name
        found = dict(zip(routed_names(model.network), counts, strict=True))
        given["layers"] = {name: found[f"body.{name}"] for name in given["layers"]}
    elif "num_blocks" in given:
        given["num_blocks"] = counts
    else:
        raise UsageError(
            f"{(network or {}).get('class_path')} has no option num_blocks, so a config cannot say how many blocks are "
            "left; use prune_network of routing_lightning.export in Python."
        )
    router = model.router
    if isinstance(router, FixedRoutes) and not isinstance(router.given, str):
        if isinstance(options["router"], str) or not options["router"]["class_path"].endswith(".FixedRoutes"):
            options["router"] = {
                "class_path": "routing_lightning.routers.FixedRoutes",
                "init_args": {"stitch": router.stitch},
            }
        options["router"].setdefault("init_args", {})["routes"] = router.given
    return config


def check_fits(config: dict[str, Any], given: dict[str, Any], state: dict[str, Any]) -> None:
    """Checks that the model of the new config takes the new weights.

    Raises:
        UsageError: if not.
    """
    made, _, _ = make(config, given)
    try:
        made.load_state_dict(state)
    except RuntimeError as error:
        raise UsageError(
            "the network makes other layers from the new numbers of blocks than pruning left "
            f"({' '.join(str(error).split())[:200]}); use prune_network of routing_lightning.export in Python."
        ) from error


def routed_names(network: RoutingNetwork) -> list[str]:
    """Names of a network's routed layers within its body, in the order of ``layers``."""
    names = {id(module): name for name, module in network.body.named_modules()}
    return [names[id(layer)] for layer in network.layers]
