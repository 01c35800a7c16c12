"""``fit --weights``: a new run that begins with the weights and policies of another one."""

from pathlib import Path

import pytest
import torch
import yaml

from routing_lightning.cli import main

DIGITS = str(Path(__file__).parents[2] / "configs" / "digits_mtl.yaml")
SHORT = [
    "--trainer.limit_train_batches=3",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--record=null",
]
ROUTER = "--model.init_args.router"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder and content of a checkpoint of a short run."""
    folder = tmp_path_factory.mktemp("run")
    best = "{class_path: ModelCheckpoint, init_args: {monitor: val/acc, mode: max}}"
    main(["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={folder}", "--trainer.max_epochs=1",
          f"--trainer.callbacks=[{best}]"])  # fmt: skip
    (path,) = folder.rglob("*.ckpt")
    return folder, path, torch.load(path, weights_only=True)


def begin(folder, *words: str, epochs: int = 0):
    """The CLI after a new run; with 0 epochs it stands where it begins."""
    return main(["fit", *words, *SHORT, f"--trainer.max_epochs={epochs}", f"--trainer.default_root_dir={folder}"])


def refused(capsys, *words: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["fit", *words, *SHORT])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("error: ")
    return line


def same(cli, checkpoint, *, router: bool = True) -> bool:
    own = cli.model.state_dict()
    names = [name for name in checkpoint["state_dict"] if router or not name.startswith("network.router.")]
    return all(torch.equal(own[name], checkpoint["state_dict"][name]) for name in names)


@pytest.mark.parametrize(
    "damage",
    [
        {"loops": {"fit_loop": {"state_dict": {}}}},
        {"callbacks": {"RouteRecorder": "text"}},
        {"callbacks": [1]},
    ],
    ids=str,
)
def test_a_state_that_cannot_be_taken_over_is_told_in_a_sentence(damage, run, tmp_path, capsys):
    path = tmp_path / "damaged.ckpt"
    torch.save({**run[2], **damage}, path)
    words = [f"--ckpt_path={path}", f"--trainer.default_root_dir={tmp_path}"]
    with pytest.raises(SystemExit):
        main(["fit", *words, *SHORT, "--trainer.max_epochs=2", "--record=[RouteRecorder]"])
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "the state in the checkpoint cannot be taken over" in sentence and "--weights" in sentence
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"loops": None}, "the checkpoint lacks loops"),
        ({"optimizer_states": None}, "the checkpoint lacks optimizer_states"),
        ({"lr_schedulers": None}, "the checkpoint lacks lr_schedulers"),
        ({"lr_schedulers": [{}]}, "lr_schedulers of the checkpoint holds the empty state"),
        ({"routing_lightning_progress": None}, "the checkpoint lacks routing_lightning_progress"),
        ({"optimizer_states": []}, "optimizer_states of the checkpoint is []"),
        ({"optimizer_states": [{}]}, "it lacks state"),
        ({"optimizer_states": [1]}, "it lacks state"),
        ("twice", "has 2 states, but the run has 1 optimizers"),
        ({"optimizer_states": [{"state": {}}]}, "it lacks param_groups"),
        ({"optimizer_states": [{"state": {}, "param_groups": []}]}, "cannot be taken over"),
        ({"optimizer_states": [{"state": {}, "param_groups": [{}]}]}, "cannot be taken over"),
    ],
    ids=str,
)
def test_a_checkpoint_that_lacks_a_part_is_refused(damage, words, run, tmp_path, capsys):
    path = tmp_path / "damaged.ckpt"
    states = run[2]["optimizer_states"]
    content = {**run[2], **({"optimizer_states": states * 2} if damage == "twice" else damage)}
    torch.save({key: value for key, value in content.items() if value is not None}, path)
    sentence = refused(
        capsys, f"--ckpt_path={path}", f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=2"
    )
    assert words in sentence and "--weights" in sentence
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_has_made_more_epochs_than_it_may_is_told_with_both_numbers(run, tmp_path, capsys):
    words = [f"--ckpt_path={run[1]}", f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=0"]
    assert "the run has made 1 epochs, and trainer.max_epochs is 0; give more than 1" in refused(capsys, *words)


@pytest.mark.parametrize("given", ["path", "last", "best"])
def test_a_run_begins_with_weights_and_policies_and_nothing_else(given, run, tmp_path, capsys, monkeypatch):
    folder, path, checkpoint = run
    if given == "path":
        folder, given = tmp_path, str(path)
    cli = begin(folder, f"--weights={given}")
    assert same(cli, checkpoint) and cli.trainer.ckpt_path is None
    table = checkpoint["state_dict"]["network.router.decider.policy.table"]
    assert not torch.allclose(table, table.mean())  # something was learned
    assert f"training begins at epoch 0 with the weights of {path}" in capsys.readouterr().out


def test_optimizer_schedule_steps_and_data_are_new(run, tmp_path):
    _, path, checkpoint = run
    options = ["--model.init_args.optimizer.init_args.lr=0.5", "--data.init_args.split_seed=3"]
    cli = begin(tmp_path, f"--weights={path}", *options, epochs=1)
    assert cli.trainer.global_step == checkpoint["global_step"] == 3 and cli.trainer.current_epoch == 1
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.5
    assert cli.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 1
    assert cli.datamodule.split_seed == 3
    assert not same(cli, checkpoint)


@pytest.mark.parametrize(
    "options",
    [[f"{ROUTER}.init_args.agents=single"], [f"{ROUTER}=BranchingRouter"]],
)
def test_a_router_whose_policies_are_others_begins_anew(options, run, tmp_path, caplog):
    _, path, checkpoint = run
    cli = begin(tmp_path, f"--weights={path}", *options)
    assert same(cli, checkpoint, router=False)
    own = begin(tmp_path, f"--config={DIGITS}", *options).model.router.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in cli.model.router.state_dict().items())
    assert "the router begins anew, since " in caplog.text


def test_a_search_that_is_over_begins_anew_if_its_options_are_others(tmp_path):
    branching = [f"{ROUTER}=BranchingRouter", *(f"{ROUTER}.init_args.{o}" for o in ("begin=0", "stage=1", "pace=.inf"))]
    first = begin(tmp_path, f"--config={DIGITS}", *branching, epochs=2)
    assert first.model.router.is_over
    (path,) = tmp_path.rglob("*.ckpt")
    assert begin(tmp_path, f"--weights={path}").model.router.is_over
    assert not begin(tmp_path, f"--weights={path}", f"{ROUTER}.init_args.certainty=0.9").model.router.is_over
    assert not begin(tmp_path, f"--weights={path}", f"{ROUTER}.init_args.stage=2").model.router.is_over


def test_other_commands_begin_no_run(run, tmp_path, capsys):
    words = ["validate", *SHORT, f"--trainer.default_root_dir={tmp_path}"]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, f"--weights={run[1]}"])
    assert "but the command is validate; give the checkpoint with --ckpt_path" in capsys.readouterr().err


def test_together_with_a_checkpoint_to_go_on_from_it_is_refused(run, tmp_path, capsys):
    _, path, _ = run
    sentence = refused(capsys, f"--weights={path}", f"--ckpt_path={path}", f"--trainer.default_root_dir={tmp_path}")
    assert f"weights is {path} and ckpt_path {path}" in sentence and "leave one of them out" in sentence


def test_the_saved_config_of_such_a_run_begins_it_again_and_goes_on(run, tmp_path):
    _, path, checkpoint = run
    cli = begin(tmp_path, f"--weights={path}", epochs=1)
    config = Path(cli.trainer.log_dir) / "config.yaml"
    assert yaml.safe_load(config.read_text())["weights"] == str(path)
    assert same(begin(tmp_path / "again", f"--config={config}"), checkpoint)
    folder = f"--trainer.default_root_dir={tmp_path / 'validated'}"
    assert same(main(["validate", f"--config={config}", f"--ckpt_path={path}", *SHORT, folder]), checkpoint)
    again = begin(tmp_path, f"--config={config}", "--ckpt_path=last", epochs=2)
    assert again.trainer.global_step == 6 and again.config["fit"]["weights"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.init_args.network.init_args.hidden=8"], ["does not fit the model", "size mismatch"]),
        (["--model.init_args.network.init_args.num_blocks=4"], ["[10, 10, 10] blocks", "[4, 4, 4]"]),
        (["--model.init_args.network.init_args.depth=2"], ["depth 3", "depth 2"]),
        (["--model=MultiTaskClassifier", "--model.init_args.network=TaskSpecific"], ["does not fit the model"]),
    ],
)
def test_weights_that_do_not_fit_are_told_in_one_sentence(options, words, run, tmp_path, capsys):
    sentence = refused(capsys, f"--weights={run[1]}", *options, f"--trainer.default_root_dir={tmp_path}")
    assert all(word in sentence for word in words), sentence


def test_what_holds_no_weights_is_told(run, tmp_path, capsys):
    nothing = tmp_path / "nothing.ckpt"
    torch.save({"a": 1}, nothing)
    folder = f"--trainer.default_root_dir={tmp_path / 'runs'}"
    assert "holds no weights" in refused(capsys, f"--config={DIGITS}", f"--weights={nothing}", folder)
    assert "weights no.ckpt is no file" in refused(capsys, f"--config={DIGITS}", "--weights=no.ckpt", folder)
    assert "weights hpc is no file" in refused(capsys, f"--config={DIGITS}", "--weights=hpc", folder)
    assert "weights is last but there is no checkpoint" in refused(capsys, "--weights=last", folder)
