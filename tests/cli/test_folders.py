"""Each run has a folder of its own, also among many that start at once."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from routing_lightning.cli import checkpoints, folders, main
from routing_lightning.errors import UsageError
from routing_lightning.record import RouteRecord
from tests import forks

ROOT = Path(__file__).parents[2]
SHORT = [
    f"--config={ROOT / 'configs' / 'digits_mtl.yaml'}",
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
]


def test_twenty_claims_at_once_give_twenty_folders(tmp_path):
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: folders.claim(tmp_path / "logs", "run"), range(20)))
    assert sorted({path.name for path in found}) == sorted(["run", *(f"run_{i}" for i in range(1, 20))])


def test_twenty_processes_that_claim_at_once_get_twenty_folders(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from routing_lightning.cli.folders import claim\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time())); print(claim(Path(sys.argv[1]), 'version', first=0))"
    )
    start = str(time.time() + 1)
    done = forks.run_together(tmp_path, 20 * [((str(tmp_path), start), {})], script)
    found = {process.stdout.strip() for process in done}
    assert found == {str(tmp_path / f"version_{i}") for i in range(20)}


def test_two_runs_started_together_share_nothing(tmp_path):
    words = ["fit", *SHORT, f"--trainer.default_root_dir={tmp_path}", "--name=twin"]
    done = forks.run_together(tmp_path, [((*words, f"--seed_everything={seed}"), {}) for seed in (1, 2)])
    assert [process.returncode for process in done] == [0, 0]
    runs = sorted((tmp_path / "lightning_logs").iterdir())
    assert [path.name for path in runs] == ["twin", "twin_1"]
    assert {yaml.safe_load((path / "config.yaml").read_text())["seed_everything"] for path in runs} == {1, 2}
    for path in runs:
        assert len(list(path.glob("events.out.*"))) == 1
        assert len(list(path.rglob("*.ckpt"))) == 1
        assert RouteRecord.load(path / "routes.npz").counts.sum() == 2 * 32 * 3


LOGGERS = {
    "TensorBoard": [],
    "CSV": ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir={}"],
    "two": [
        "--trainer.logger+=CSVLogger",
        "--trainer.logger.save_dir={}",
        "--trainer.logger+=TensorBoardLogger",
        "--trainer.logger.save_dir={}/tb",
    ],
    "none": ["--trainer.logger=false"],
}


@pytest.mark.parametrize("logger", LOGGERS)
def test_a_run_that_is_refused_after_its_loggers_began_leaves_nothing(logger, tmp_path, capsys):
    words = [*(word.format(tmp_path) for word in LOGGERS[logger]), f"--trainer.default_root_dir={tmp_path}"]
    with pytest.raises(SystemExit):
        main(["fit", *SHORT, *words, "--trainer.val_check_interval=100"])
    assert "val_check_interval" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert {path.name for path in tmp_path.iterdir()} <= {"tb"}


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--data.init_args.augment=[{class_path: RandomCrop, init_args: {size: 20}}]", "RandomCrop takes 20 x 20"),
        (
            "--model.init_args.lr_scheduler={class_path: OneCycleLR, init_args: {max_lr: 0.1, total_steps: 2}}",
            "OneCycle",
        ),
    ],
    ids=["in its first batch", "before it"],
)
def test_a_run_that_is_refused_before_its_first_step_leaves_nothing(option, sentence, resumed, tmp_path, capsys):
    place, more = f"--trainer.default_root_dir={tmp_path}", []
    if resumed:
        first = main(["fit", *SHORT, place, "--model.init_args.lr_scheduler=null"])
        more = [f"--ckpt_path={first.trainer.checkpoint_callback.best_model_path}"]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit):
        main(["fit", *SHORT, place, *more, option, "--trainer.max_epochs=3"])
    assert sentence in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("logger", LOGGERS)
def test_a_second_run_changes_no_file_of_the_first(logger, tmp_path):
    words = [word.format(tmp_path) for word in LOGGERS[logger]]

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    first = main(["fit", *SHORT, f"--trainer.default_root_dir={tmp_path}", *words])
    before = files()
    second = main(["fit", *SHORT, f"--trainer.default_root_dir={tmp_path}", *words])
    after = files()
    assert first.trainer.log_dir != second.trainer.log_dir
    assert before == {path: content for path, content in after.items() if path in before}
    for cli in (first, second):
        folder = Path(cli.trainer.log_dir)
        assert (folder / "config.yaml").is_file() and (folder / "routes.npz").is_file()
        assert list(folder.rglob("*.ckpt"))


def test_a_folder_that_the_user_has_fixed_is_not_taken_twice(tmp_path, capsys):
    words = ["fit", *SHORT, "--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={tmp_path}",
             "--trainer.logger.version=mine", f"--trainer.default_root_dir={tmp_path}"]  # fmt: skip
    cli = main(words)
    checkpoint = cli.trainer.checkpoint_callback.best_model_path
    with pytest.raises(SystemExit):
        main(words)
    assert "holds another run" in capsys.readouterr().err
    assert main([*words, f"--ckpt_path={checkpoint}", "--trainer.max_epochs=2"])  # goes on in its own folder


def test_the_name_says_method_data_and_seed_and_can_be_given(tmp_path):
    cli = main(["fit", *SHORT, f"--trainer.default_root_dir={tmp_path}", "--seed_everything=7"])
    assert Path(cli.trainer.log_dir).name == "wpl-digits_mtl-seed7"
    checkpoint = cli.trainer.checkpoint_callback.best_model_path
    validate = ["validate", f"--ckpt_path={checkpoint}", f"--trainer.default_root_dir={tmp_path}"]
    assert Path(main([*validate, "--name=mine"]).trainer.log_dir).name == "mine-validate"
    folder = Path(cli.trainer.log_dir)
    renamed = folder.rename(folder.with_name("other"))
    (checkpoint,) = renamed.rglob("*.ckpt")
    validate[1] = f"--ckpt_path={checkpoint}"
    assert Path(main(validate).trainer.log_dir).name == "other-validate"  # after the run whose checkpoint it is


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"router": {"class_path": "a.GumbelRouter"}}, "gumbel"),
        ({"router": {"class_path": "a.FixedRoutes"}}, "fixed_routes"),
        ({"router": {"class_path": "a.FixedRoutes", "init_args": {"routes": [[0], [1]]}}}, "fixed_routes"),
        ({"router": {"class_path": "a.FixedRoutes", "init_args": {"routes": "random", "seed": 0}}}, "fixed_random"),
        (
            {"router": {"class_path": "FixedRoutes", "init_args": {"routes": "own", "shared_depths": 4}}},
            "fixed_own_after_4_shared",
        ),
        ({"router": {"class_path": "a.BranchingRouter", "init_args": {"learner": None}}}, "branching"),
        (
            {"router": {"class_path": "a.BranchingRouter", "init_args": {"learner": {"class_path": "a.WPL"}}}},
            "branching_wpl",
        ),
        (
            {"router": {"class_path": "R", "init_args": {"policy": "MLPPolicy", "learner": "ApproximateQLearning"}}},
            "q_learning_mlp",
        ),
        (
            {
                "router": {
                    "class_path": "R",
                    "init_args": {
                        "policy": "TabularPolicy",
                        "learner": {"class_path": "x.REINFORCE"},
                        "agents": "single",
                    },
                }
            },
            "reinforce_single",
        ),
        ({"network": {"class_path": "routing_lightning.networks.CrossStitch"}}, "cross_stitch"),
        ({}, "multi_task_classifier"),
    ],
)
def test_names_of_methods(model, name):
    config = {
        "model": {"class_path": "m.MultiTaskClassifier", "init_args": model},
        "data": {"class_path": "CIFARMTLDataModule"},
        "seed_everything": True,
    }
    assert folders.default_name(config) == f"{name}-cifar_mtl"


@pytest.mark.parametrize("name", ["a/b", "..", "", "-x", "a" * 101, "a b"])
def test_names_that_are_no_folders_are_refused(name):
    with pytest.raises(UsageError, match="name is"):
        folders.checked_name(name)


def test_a_run_that_fails_at_the_start_leaves_no_folder(tmp_path):
    with pytest.raises(SystemExit):
        main(["fit", *SHORT, f"--trainer.default_root_dir={tmp_path}", "--data.init_args.batch_size=0"])
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("command", ["fit", "predict", "test"])
def test_a_trial_run_writes_nothing(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main([command, SHORT[0], "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_run_of_a_checkpoint_is_known_by_where_it_lies(tmp_path):
    place = tmp_path / folders.RUNS / "mine_1" / "checkpoints"
    assert folders.run_of(place / "best.ckpt") == folders.run_of(place / "epoch=1-val" / "acc=0.9.ckpt") == "mine_1"
    for other in (None, "new.ckpt", tmp_path / "a" / "mine" / "checkpoints" / "best.ckpt", place.parent / "best.ckpt"):
        assert folders.run_of(other) is None


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("folder", ["checkpoints", "kept"])
@pytest.mark.parametrize("best", ["best.ckpt", "epoch=1-val/acc=0.9.ckpt", "val/acc=0.9-val/loss=1.ckpt"])
@pytest.mark.parametrize("newest", ["last.ckpt", "epoch=2-val/acc=0.8.ckpt", None])
def test_the_best_checkpoint_is_found_whatever_its_name(newest, best, folder, moved, tmp_path):
    """A metric in a file name, such as {val/acc}, puts the file into a folder of its own."""
    place = tmp_path / "run" / folder
    state = {"best_model_score": torch.tensor(0.9), "best_model_path": str(place / best), "dirpath": str(place)}
    for name in {newest or best, best}:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"callbacks": {"ModelCheckpoint": state}}, place / name)
    if moved:
        place = place.parent.rename(tmp_path / "elsewhere") / folder
    assert checkpoints.best_of(place / (newest or best)) == place / best
    (place / best).unlink()
    if newest is not None:
        with pytest.raises(UsageError, match=f"{re.escape(best)} is gone"):
            checkpoints.best_of(place / newest)


def test_the_best_of_a_run_that_went_on_elsewhere_may_lie_with_the_first_one(tmp_path):
    """Both folders may hold a file of that name."""
    first, then = (tmp_path / folders.RUNS / name / "checkpoints" for name in ("run", "run_1"))
    state = {"best_model_score": torch.tensor(0.9), "best_model_path": str(first / "best.ckpt"), "dirpath": str(then)}
    for path in (first / "best.ckpt", then / "best.ckpt", then / "last.ckpt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"callbacks": {"ModelCheckpoint": state}}, path)
    assert checkpoints.best_of(then / "last.ckpt") == first / "best.ckpt"


def test_of_runs_that_begin_together_one_has_a_fixed_folder(tmp_path):
    """Also while none of them has written anything."""

    def claim_once(_: int) -> Path | None:
        try:
            return folders.claim_for_logger(CSVLogger(tmp_path, version="mine"), None)
        except UsageError as error:
            assert "holds another run, or one that has just begun" in str(error)
            return None

    with ThreadPoolExecutor(8) as pool:
        found = [folder for folder in pool.map(claim_once, range(40)) if folder is not None]
    assert found == [tmp_path / "lightning_logs" / "mine"]
    # Two loggers of one run may share it.
    assert folders.claim_for_logger(TensorBoardLogger(tmp_path, version="mine"), None, found) is None
