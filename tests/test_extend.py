"""The code of docs/extend.md does what the page says, through the real command line; so does a learner of the tests."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from routing_lightning.cli import main
from routing_lightning.networks import RoutedLayer
from routing_lightning.record import RouteRecord
from routing_lightning.routers import RewardRouter, RoutingSpec, TabularPolicy
from tests.routers.test_solves import share_of_right_routes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extend.md").read_text()


def files_of_the_page() -> dict[str, str]:
    """The page's files by name: blocks that begin with the same name are one file."""
    files: dict[str, str] = {}
    for name, body in re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        files[name] = files.get(name, "") + body + "\n\n"
    return files


FILES = files_of_the_page()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
TO_RESNET = next(command for command in COMMANDS if "my_resnet" in command)
TWO_PROCESSES = next(command for command in COMMANDS if "two_processes" in command)
GATED, *WITH_PARTS = [command for command in COMMANDS if command not in (TO_RESNET, TWO_PROCESSES)]


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """The page's files and the shipped configs in the working directory."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture
def my_parts(files):
    import my_parts

    return my_parts


def fit(command: str, *options: str):
    words = shlex.split(command)
    assert words[:3] == ["python", "train.py", "fit"]
    return main([*words[2:], "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", *options])


def check_checkpoint(cli) -> None:
    """What was learned is in the checkpoint, and the checkpoint alone is enough to go on."""
    (checkpoint,) = Path(cli.trainer.log_dir).rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    again = main(["validate", f"--ckpt_path={checkpoint}", "--trainer.accelerator=cpu", "--trust=my_parts,my_router"])
    for name, value in again.model.router.state_dict().items():
        assert torch.equal(value, saved[f"network.router.{name}"])
    for name in ("val/acc", "val/loss"):
        torch.testing.assert_close(again.trainer.callback_metrics[name], cli.trainer.callback_metrics[name])


def test_the_pages_files_are_as_short_as_promised():
    assert len(FILES["my_router.py"].strip().splitlines()) <= 40
    assert len(FILES["my_data.yaml"].strip().splitlines()) <= 12


@pytest.mark.parametrize("command", WITH_PARTS)
def test_the_pages_commands_train(command, my_parts):
    # the callbacks that record need not run each time
    cli = fit(command, "--trainer.max_epochs=2", *(["--record=null"] if command != WITH_PARTS[0] else []))
    named = re.findall(r"my_parts\.([A-Z]\w+)", command)
    router = cli.model.router
    if "RoutedCNN" in command:
        assert isinstance(cli.model.network.body, my_parts.RoutedCNN)
    elif "my_method" in command:
        assert type(router.learner).__name__ == (named or ["AverageReturns"])[-1]
        assert type(router.policy).__name__ == (named[0] if len(named) > 1 else "TabularPolicy")
        assert isinstance(cli.model.network.layers[0].blocks, my_parts.TanhBlocks)
    assert (router.spec.num_tasks, cli.model.image_shape) == (4, (1, 8, 8))  # from the data
    assert cli.trainer.callback_metrics["val/acc"] > 0.65  # half by chance
    check_checkpoint(cli)


def test_the_pages_router_trains_with_the_blocks_and_is_drawn(files):
    cli = fit(GATED, "--trainer.max_epochs=3", "--trainer.limit_train_batches=100")
    import my_router

    model, folder = cli.model, Path(cli.trainer.log_dir)
    assert isinstance(model.router, my_router.GatedRouter)
    torch.manual_seed(0)
    first = my_router.GatedRouter()
    first.build(model.router.spec)
    for gate, start in zip(model.router.gates, first.gates, strict=True):
        assert not torch.equal(gate.weight, start.weight) and gate.weight.isfinite().all()
    assert "train/auxiliary_loss" in cli.trainer.callback_metrics
    record = RouteRecord.load(folder / "routes.npz")
    assert record.counts.sum() == 3 * 100 * 32 * 3  # epochs, batches, samples, depths
    assert main(["plot", str(folder)]) is None
    assert {path.name for path in folder.rglob("*.png")} >= {"routing_map.png", "block_usage.png"}
    check_checkpoint(cli)


def test_the_pages_router_trains_on_two_processes(files):
    from tests.test_ddp import run

    words = [word.replace("configs/", f"{ROOT}/configs/") for word in shlex.split(TWO_PROCESSES)[2:]]
    words = [str(files / word) if word == "my_router.yaml" else word for word in words]
    ranks = run(files / "two", *words, "--trainer.max_steps=20", "--trainer.limit_val_batches=2", path=files)
    assert len(ranks) == 2
    for name, value in ranks[0]["router"].items():
        assert torch.equal(value, ranks[1]["router"][name]), name
    record = RouteRecord.load(next((files / "two").rglob("routes.npz")))
    assert record.counts.sum() == 20 * 2 * 32 * 3


def test_a_network_of_torchvision_is_routed_in_yaml_alone(files, cifar_tree):
    cli = fit(
        TO_RESNET, f"--data.init_args.root={cifar_tree}", "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=4",
    )  # fmt: skip
    assert cli.model.router.spec.num_blocks == [2, 4, 20]
    assert cli.model.router.spec.state_sizes == [128, 256, 512]
    check_checkpoint(cli)


def test_the_pages_route_in_python(files):
    exec(compile((files / "my_route.py").read_text(), "my_route.py", "exec"), found := {})
    assert found["output"].shape == (5, 7, 32)
    assert found["alone"](torch.randn(2, 7, 32)).shape == (2, 7, 32)
    assert not any(isinstance(part, RoutedLayer) for part in found["alone"].modules())


def test_the_pages_learner_moves_what_it_should(my_parts):
    router = RewardRouter(TabularPolicy(), my_parts.AverageReturns(rate=0.5))
    router.build(RoutingSpec(2, [2, 3]))
    trace = router.start(torch.tensor([1]), explore=True)
    trace.actions = torch.tensor([[1, -1]])
    trace.final_reward = torch.tensor([1.0])
    router.learn(trace)
    expected = torch.zeros(2, 2, 3)
    expected[1, 0, 1] = 0.5
    assert torch.equal(router.policy.table, expected)
    torch.testing.assert_close(router.probabilities().sum(-1), torch.ones(2, 2))
    assert (router.probabilities()[:, 0, 2] == 0).all()


def test_the_pages_learners_solve_a_routing_problem(my_parts):
    assert share_of_right_routes(RewardRouter(TabularPolicy(), my_parts.AverageReturns()), 4000) >= 0.95
    assert share_of_right_routes(RewardRouter(TabularPolicy(), my_parts.EntropyREINFORCE(2.0)), 4000) >= 0.95


def test_a_learner_that_lives_in_the_tests_trains_through_the_command_line(tmp_path):
    config = ROOT / "configs" / "digits_mtl.yaml"
    learner = "--model.init_args.router.init_args.learner=tests.learners.CertainWPL"
    short = ["--trainer.limit_train_batches=20", "--trainer.max_epochs=1", "--trainer.limit_val_batches=1"]
    cli = fit(f"python train.py fit --config {config} {learner}", f"--trainer.default_root_dir={tmp_path}", *short)
    router = cli.model.router
    assert type(router.learner).__name__ == "CertainWPL"
    first = router.learner.initial_table(10, [10, 10, 10])
    assert not torch.equal(router.policy.table, first)
    torch.testing.assert_close(router.policy.table.sum(-1), torch.ones(10, 3))


def test_a_learner_without_its_methods_says_what_to_override():
    from routing_lightning.routers import Learner

    class Idle(Learner):
        """Overrides nothing."""

    router = RewardRouter(TabularPolicy(), Idle())
    router.build(RoutingSpec(2, [2]))
    with pytest.raises(TypeError, match="learner Idle does not say how to act: override probabilities"):
        router.start(torch.tensor([0]), explore=True)
