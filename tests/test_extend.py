"""The code of docs/extend.md does what the page says, through the real command line; so does a learner of the tests."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from routing_lightning.cli import main
from routing_lightning.routers import Router, TabularPolicy
from tests.routers.test_solves import share_of_right_routes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extend.md").read_text()


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [line for block in blocks_of("bash") for line in block.splitlines()]


@pytest.fixture
def my_parts(tmp_path, monkeypatch):
    """The page's file as a module, and its config in the working directory."""
    (tmp_path / "my_parts.py").write_text("\n\n".join(blocks_of("python")))
    (config,) = blocks_of("yaml")
    (tmp_path / "my_parts.yaml").write_text(config)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import my_parts

    yield my_parts
    del sys.modules["my_parts"]


def fit(command: str, *options: str):
    words = shlex.split(command)
    assert words[:3] == ["python", "train.py", "fit"]
    return main([*words[2:], "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", *options])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_commands_train(command, my_parts):
    # the callbacks that record need not run each time
    cli = fit(command, "--trainer.max_epochs=2", *(["--record=null"] if command != COMMANDS[0] else []))
    router = cli.model.router
    named = re.findall(r"my_parts\.([A-Z]\w+)", command) or ["AverageReturns"]
    assert type(router.learner).__name__ == named[-1]
    assert type(router.policy).__name__ == (named[0] if len(named) > 1 else "TabularPolicy")
    assert isinstance(cli.model.network.layers[0], my_parts.TanhBlocks)
    assert cli.trainer.callback_metrics["val/acc"] > 0.65  # half by chance
    # what was learned is in the checkpoint, and the checkpoint alone is enough to go on
    (checkpoint,) = Path(cli.trainer.log_dir).rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    again = main(["validate", f"--ckpt_path={checkpoint}", "--trainer.accelerator=cpu"])
    for name, value in again.model.router.state_dict().items():
        assert torch.equal(value, saved[f"network.router.{name}"])
    for name in ("val/acc", "val/loss"):
        torch.testing.assert_close(again.trainer.callback_metrics[name], cli.trainer.callback_metrics[name])


def test_the_pages_learner_moves_what_it_should(my_parts):
    router = Router(TabularPolicy(), my_parts.AverageReturns(rate=0.5))
    router.build(2, [2, 3])
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
    assert share_of_right_routes(Router(TabularPolicy(), my_parts.AverageReturns()), 4000) >= 0.95
    assert share_of_right_routes(Router(TabularPolicy(), my_parts.EntropyREINFORCE(2.0)), 4000) >= 0.95


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

    router = Router(TabularPolicy(), Idle())
    router.build(2, [2])
    with pytest.raises(TypeError, match="learner Idle does not say how to act: override probabilities"):
        router.start(torch.tensor([0]), explore=True)
