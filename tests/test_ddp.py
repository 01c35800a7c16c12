"""Two processes on the CPU: the real command line, once started as a user would, else in forks that find each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import forks

ROOT = Path(__file__).parents[1]

TWO_PROCESSES = [
    f"--config={ROOT / 'configs' / 'digits_mtl.yaml'}",
    "--trainer.accelerator=cpu",
    "--trainer.devices=2",
    "--trainer.strategy=ddp",
]

# Runs the command line and leaves what each process ended with.
SCRIPT = """
import sys
from routing_lightning.cli import main
cli = main(sys.argv[2:])
import torch  # after the command line has set up what it is to be silent about
router = cli.model.router
torch.save(
    {
        "router": {name: value for name, value in router.state_dict().items()},
        "parameters": [parameter.detach() for parameter in cli.model.parameters()],
        "metrics": dict(cli.trainer.callback_metrics),
        "step": cli.trainer.global_step,
        "counted": len(cli.datamodule.val_dataset),
        "connected": torch.distributed.is_initialized(),
    },
    f"{sys.argv[1]}/rank_{cli.trainer.global_rank}.pt",
)
"""


def started(folder: Path, *words: str) -> None:
    """Starts one process, which starts the other."""
    script = folder / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name in forks.OF_PROCESSES:
        environment.pop(name, None)
    process = subprocess.run(
        [sys.executable, str(script), str(folder), *words],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stderr == ""


def run(folder: Path, *words: str, path: Path = ROOT, processes: int = 2, fresh: bool = False) -> list[dict]:
    """What each process ended with; ``path`` is where else it may import from."""
    folder.mkdir()
    words = (*words, f"--trainer.default_root_dir={folder}", "--trainer.enable_progress_bar=false")
    if fresh:
        started(folder, *words)
    else:
        code = f"import sys\nsys.path.insert(0, {str(path)!r})\n{SCRIPT}"
        for done in forks.run_processes(folder, processes, str(folder), *words, code=code):
            assert done.returncode == 0, done.stderr[-3000:]
            told = [line for line in done.stderr.splitlines() if not line.startswith("note: BranchingRouter keeps")]
            assert not told  # but that these searches are too short to tell anything
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("rank_*.pt"))]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    # 40 blocks per layer and batches of 4 per process: most blocks get no sample, many get them on one process alone
    blocks = "--model.init_args.network.init_args.num_blocks=40"
    options = [blocks, "--data.init_args.batch_size=4", "--trainer.max_epochs=1"]
    return run(
        tmp_path_factory.mktemp("ddp") / "two",
        "fit",
        *TWO_PROCESSES,
        *options,
        "--trainer.limit_train_batches=60",
        fresh=True,
    )


def test_all_processes_hold_the_same_policy_and_weights(ranks):
    assert len(ranks) == 2
    for name, value in ranks[0]["router"].items():
        assert torch.equal(value, ranks[1]["router"][name]), name
    assert (ranks[0]["router"]["decider.policy.table"] != 1 / 40).any()
    for ours, theirs in zip(ranks[0]["parameters"], ranks[1]["parameters"], strict=True):
        assert torch.equal(ours, theirs)


def test_connections_end_with_the_run(ranks):
    """At the interpreter's end gloo's threads may abort a process that has done its work."""
    assert not any(rank["connected"] for rank in ranks)


def test_steps_and_metrics_count_once(ranks):
    assert ranks[0]["step"] == 60
    for name in ("val/acc", "val/loss"):
        assert ranks[0]["metrics"][name] == ranks[1]["metrics"][name]
    # an accuracy over 200 samples of each task is a whole number of two-hundredths
    for name, value in ranks[0]["metrics"].items():
        if name.startswith("val/acc_task/"):
            assert (value * 200).item() == pytest.approx(round((value * 200).item()), abs=1e-3)


def test_processes_hold_the_same_policies_that_look_at_activations(tmp_path):
    """Networks with momentum, a dispatcher's among them, learn from the states of all processes."""
    router = "--model.init_args.router.init_args"
    ranks = run(
        tmp_path / "networks",
        "fit",
        *TWO_PROCESSES,
        f"{router}.agents=dispatched",
        f"{router}.policy=MLPPolicy",
        f"{router}.learner=REINFORCE",
        f"{router}.learner.init_args.baseline=true",
        f"{router}.learner.init_args.optimizer=torch.optim.SGD",
        f"{router}.learner.init_args.optimizer.init_args.lr=0.1",
        f"{router}.learner.init_args.optimizer.init_args.momentum=0.9",
        "--trainer.max_steps=20",
        "--trainer.limit_val_batches=1",
    )
    assert len(ranks) == 2 and ranks[0]["step"] == 20
    assert {name.split(".")[0] for name in ranks[0]["router"]} >= {"decider", "dispatcher"}
    for name, value in ranks[0]["router"].items():
        assert torch.equal(value, ranks[1]["router"][name]), name
    assert (ranks[0]["router"]["decider.learner.average_return"] != 0).all()
    for ours, theirs in zip(ranks[0]["parameters"], ranks[1]["parameters"], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "router",
    [
        "Top1Router",
        "{class_path: BranchingRouter, init_args: {begin: 0, stage: 4, settle: 0.25}}",
        # batches of those who have parted; then of towers
        "{class_path: BranchingRouter, init_args: {begin: 0, stage: 1, settle: 0.0, sweeps: 3, stitch: true}}",
    ],
    ids=["loss", "search", "sweeps"],
)
def test_processes_hold_the_same_router_of_another_kind(router, tmp_path):
    ranks = run(
        tmp_path / "run",
        "fit",
        *TWO_PROCESSES,
        f"--model.init_args.router={router}",
        "--model.init_args.final_reward=negative_loss",
        "--model.init_args.optimizer.init_args.momentum=0.9",
        "--data.init_args.batch_size=2",
        "--trainer.max_steps=20",
        "--trainer.limit_val_batches=1",
    )
    assert len(ranks) == 2 and ranks[0]["step"] == 20
    for name, value in ranks[0]["router"].items():
        assert torch.equal(value, ranks[1]["router"][name]), name
    for ours, theirs in zip(ranks[0]["parameters"], ranks[1]["parameters"], strict=True):
        assert torch.equal(ours, theirs)


def test_two_processes_equal_one_with_the_double_batch(tmp_path):
    """Same actions (a policy that is certain): the same policy bit for bit, the same blocks to float tolerance."""
    results = []
    for devices, batch_size in ((2, 8), (1, 16)):
        config = ROOT / "tests" / "ddp_exact.yaml"
        options = [f"--trainer.devices={devices}", f"--data.init_args.batch_size={batch_size}"]
        if devices == 1:
            options.append("--trainer.strategy=auto")
        results.append(run(tmp_path / str(devices), "fit", f"--config={config}", *options, processes=devices)[0])
    two, one = results
    assert two["step"] == one["step"] == 20
    for name, value in one["router"].items():
        assert torch.equal(value, two["router"][name]), name
    for ours, theirs in zip(one["parameters"], two["parameters"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("command", ["validate", "predict"])
def test_other_commands_run_on_two_processes(command, tmp_path):
    ranks = run(tmp_path / command, command, *TWO_PROCESSES, "--trainer.logger=false")
    assert len(ranks) == 2
    if command == "predict":
        (path,) = (tmp_path / command).rglob("predictions.csv")
        rows = path.read_text().splitlines()
        assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(ranks[0]["counted"]))


def test_what_all_processes_find_wrong_is_told_once(tmp_path):
    cycle = "{class_path: OneCycleLR, init_args: {max_lr: 0.05, total_steps: 2}}"
    options = [f"--model.init_args.lr_scheduler={cycle}", "--trainer.enable_progress_bar=false", "--record=null"]
    done = forks.run_processes(tmp_path, 2, "fit", *TWO_PROCESSES, *options)
    assert [one.returncode for one in done] == [1, 1]
    told = [line for one in done for line in one.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1 and "OneCycleLR ends after 2 epochs but the run makes 10" in told[0]
