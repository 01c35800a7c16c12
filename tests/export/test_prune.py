"""Pruned networks give what they gave, and train on."""

import copy
from functools import partial

import pytest
import torch
import yaml
from torch import nn

from routing_lightning.cli import main
from routing_lightning.cli.checkpoints import CONFIG_KEY
from routing_lightning.errors import UsageError
from routing_lightning.export import load_trained, prune_checkpoint, prune_network
from routing_lightning.networks import RoutingAllLayers
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    BranchingRouter,
    FixedRoutes,
    MLPPolicy,
    QLearning,
    RewardRouter,
    TabularPolicy,
)
from tests.conftest import layered, toy_features, toy_model
from tests.export.test_plain import trained_look
from tests.networks.test_specialise import random_table
from tests.test_cli import DIGITS, SHORT, refused

ROUTERS = {
    "wpl": lambda: RewardRouter(TabularPolicy(), WPL(baseline="per_action"), collaboration=0.3),
    "q": lambda: RewardRouter(TabularPolicy(), QLearning()),
    "logits": lambda: RewardRouter(TabularPolicy(), REINFORCE()),
    "single": lambda: RewardRouter(TabularPolicy(), WPL(), agents="single"),
    "dispatched": lambda: RewardRouter(TabularPolicy(), WPL(), agents="dispatched"),
    "fixed": lambda: FixedRoutes(seed=3),
    "branching": lambda: BranchingRouter(begin=0, stage=1),
    "stitched": lambda: BranchingRouter(begin=0, stage=1, stitch=True),
    "given": lambda: FixedRoutes([[5, 1, 2], [5, 1, 0], [0, 6, 2]]),
}


def modules():
    from routing_lightning.nn import ModuleBlocks

    size = toy_features((1, 8, 8)).out_features
    wide = [nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size)) for _ in range(7)]
    return [ModuleBlocks(wide), ModuleBlocks([nn.Linear(size, 2) for _ in range(7)])]


BODIES = {
    "fc": {"num_blocks": 7},
    "recurrent": {"num_blocks": [7, 7, 4], "recurrent_steps": 2, "allow_pass": True},
    "convolutions": {"network": partial(RoutingAllLayers, filters=8, conv_layers=2, hidden=8, num_blocks=7)},
    "own statistics": {
        "network": partial(RoutingAllLayers, filters=8, conv_layers=2, hidden=8, num_blocks=7, norm="block")
    },
    "modules": {"network": layered(*modules())},
}
CASES = [*((router, "fc") for router in ROUTERS), *(("wpl", body) for body in BODIES), ("logits", "own statistics")]


@pytest.mark.parametrize(("router", "body"), CASES)
@torch.no_grad()
def test_a_pruned_network_gives_what_it_gave_and_holds_only_blocks_in_use(router, body):
    model = toy_model(router=ROUTERS[router](), **BODIES[body])
    random_table(model.router)
    trained_look(model)
    images, tasks = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    before = model(images, tasks)
    names = [layer.blocks.num_blocks for layer in model.network.layers]
    kept = prune_network(model.network)
    assert torch.equal(model(images, tasks), before)
    counts = [layer.blocks.num_blocks for layer in model.network.layers]
    assert counts == [len(blocks) for blocks in kept]
    assert all(ours < theirs for ours, theirs in zip(counts, names, strict=True))
    again = [list(range(count)) for count in counts]
    assert prune_network(copy.deepcopy(model.network)) == again  # all of them are in use
    rows = model.router.probabilities()
    assert torch.allclose(rows.sum(-1), torch.ones(()))
    assert rows.shape[-1] == max(model.router.spec.num_actions)


@pytest.mark.parametrize("router", ["wpl", "q", "logits", "dispatched", "fixed", "branching"])
def test_a_pruned_network_learns_on(router):
    model = toy_model(router=ROUTERS[router](), num_blocks=7)
    random_table(model.router)
    prune_network(model.network)
    routing = model.network.train()
    for _ in range(3):
        logits, trace = routing(torch.randn(12, 1, 8, 8), torch.arange(12) % 3)
        logits.sum().backward()
        trace.final_reward = torch.randn(12)
        model.router.learn(trace)
    assert torch.allclose(model.router.probabilities().sum(-1), torch.ones(()))


def test_what_cannot_be_pruned_is_refused_and_left_as_it_is():
    model = toy_model(router=RewardRouter(MLPPolicy(hidden=4), REINFORCE()))
    with pytest.raises(UsageError, match="a task has no one route"):
        prune_network(model.network)
    assert [layer.blocks.num_blocks for layer in model.network.layers] == [3, 3, 3]
    model = toy_model(router=BranchingRouter(begin=0, stage=1))
    with pytest.raises(UsageError, match="search of BranchingRouter is not over"):
        prune_network(model.network)
    assert [layer.blocks.num_blocks for layer in model.network.layers] == [3, 3, 3]


def trained(folder, *options):
    cli = main(["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={folder}", *options])
    (path,) = folder.rglob("*.ckpt")
    return cli, path


BODY = "--model.init_args.network.init_args"


@pytest.mark.parametrize(
    "options",
    [
        [f"{BODY}.num_blocks=4", "--model.init_args.optimizer.init_args.momentum=0.9"],
        [f"{BODY}.recurrent_steps=2", "--model.init_args.optimizer=Adam"],
        [
            "--model.init_args.router={class_path: BranchingRouter, init_args: {begin: 0, stage: 1, stitch: true}}",
            "--model.init_args.optimizer.init_args.momentum=0.9",
        ],
    ],
    ids=["momentum", "recurrent", "branching"],
)
def test_a_pruned_checkpoint_validates_alike_and_trains_on(options, tmp_path):
    small = [f"{BODY}.hidden=8", f"{BODY}.features.init_args.filters=4"]
    cli, path = trained(tmp_path / "run", *small, *options)
    new = tmp_path / "pruned.ckpt"
    main(["prune", str(path), f"--out={new}"])
    quiet = ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={tmp_path}"]
    values = [main(["validate", f"--ckpt_path={each}", *quiet]).trainer.callback_metrics for each in (path, new)]
    assert values[0] == values[1]
    saved = torch.load(new, weights_only=True)
    counts = yaml.safe_load(saved[CONFIG_KEY])["model"]["init_args"]["network"]["init_args"]["num_blocks"]
    assert counts == [len(column.unique()) for column in cli.model.router.routes().T] or "recurrent" in options[0]
    kept = saved["optimizer_states"][0]["state"]
    assert kept and set(kept) <= set(saved["optimizer_states"][0]["param_groups"][0]["params"])
    parameters = load_trained(new).model.trained_parameters()
    for place, state in kept.items():
        moments = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim()]
        assert moments and all(value.shape == parameters[place].shape for value in moments)
    more = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=4", "--trainer.limit_val_batches=2"]
    again = main(["fit", f"--ckpt_path={new}", "--trainer.accelerator=cpu", *more, *quiet])
    assert again.trainer.global_step == 2 * cli.trainer.global_step
    assert [layer.blocks.num_blocks for layer in again.model.network.layers] == counts


def test_models_without_routed_blocks_are_refused_in_a_sentence(tmp_path, capsys):
    config = DIGITS.replace("digits_mtl", "data/digits_mtl"), DIGITS.replace("digits_mtl", "methods/shared")
    folder = f"--trainer.default_root_dir={tmp_path}"
    main(["fit", *(f"--config={path}" for path in config), *SHORT, folder])
    (path,) = tmp_path.rglob("*.ckpt")
    sentence = refused(capsys, "prune", str(path), f"--out={tmp_path / 'x.ckpt'}")
    assert "MultiTaskClassifier has no routed blocks to drop" in sentence
    with pytest.raises(UsageError, match="is no file"):
        prune_checkpoint(tmp_path / "none.ckpt", tmp_path / "x.ckpt")
