from pathlib import Path

import pytest
import torch

from routing_lightning.cli import main
from routing_lightning.modules import RoutedClassifier
from routing_lightning.parser import one_sentence

DIGITS = str(Path(__file__).parents[1] / "configs" / "digits_mtl.yaml")
SHORT = [
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=4",
    "--trainer.limit_val_batches=4",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
]


def short_fit(folder: Path, *options: str):
    return main(["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={folder}", *options])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Folder of a short run of the digits; its checkpoint lies below."""
    cli = short_fit(
        tmp_path_factory.mktemp("run"),
        "--model.init_args.network.init_args.hidden=16",
        "--data.init_args.batch_size=32",
    )
    return Path(cli.trainer.log_dir)


def checkpoint_of(run: Path) -> Path:
    (path,) = run.rglob("*.ckpt")
    return path


def test_fit_ends_with_a_table_and_the_way_to_tensorboard(tmp_path, capsys):
    short_fit(tmp_path)
    out = capsys.readouterr().out
    assert "digit_0" in out and "mean over tasks" in out
    assert f"tensorboard --logdir {tmp_path / 'lightning_logs'}" in out


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
@pytest.mark.parametrize("with_config", [True, False])
def test_commands_work_from_config_and_checkpoint(command, with_config, run, tmp_path):
    source = [f"--config={run / 'config.yaml'}"] if with_config else []
    limits = ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={tmp_path}"]
    cli = main([command, *source, f"--ckpt_path={checkpoint_of(run)}", *limits])
    assert cli.model.network.layers[0].blocks.out_features == 16
    assert cli.datamodule.batch_size == 32
    saved = torch.load(checkpoint_of(run), weights_only=True)["state_dict"]
    for name, value in cli.model.state_dict().items():
        if "metrics" not in name:
            assert torch.equal(value, saved[name]), name


def test_validate_and_test_work_from_a_config_alone(tmp_path):
    for command, stage in (("validate", "val"), ("test", "test")):
        cli = main([command, f"--config={DIGITS}", f"--trainer.default_root_dir={tmp_path}"])
        assert 0 <= cli.trainer.callback_metrics[f"{stage}/acc"] <= 1


def test_predictions_are_written_as_a_table(run, tmp_path):
    cli = main(["predict", f"--ckpt_path={checkpoint_of(run)}", f"--trainer.default_root_dir={tmp_path}"])
    lines = (Path(cli.trainer.log_dir) / "predictions.csv").read_text().splitlines()
    assert lines[0] == "index,task,label,prediction,probability,route"
    assert len(lines) == 1 + len(cli.datamodule.test_dataset)
    assert lines[1].startswith("0,digit_0,")


def test_command_line_overrules_the_checkpoint(run, tmp_path):
    options = ["--data.init_args.batch_size=8", "--model.init_args.router.init_args.gamma=0.5"]
    cli = main(["test", f"--ckpt_path={checkpoint_of(run)}", *options, f"--trainer.default_root_dir={tmp_path}"])
    assert cli.datamodule.batch_size == 8
    assert cli.model.router.gamma == 0.5
    assert cli.model.network.layers[0].blocks.out_features == 16  # the rest from the checkpoint


def test_config_overrules_the_checkpoint(run, tmp_path):
    config = tmp_path / "batch.yaml"
    config.write_text("data:\n  class_path: DigitsMTLDataModule\n  init_args:\n    batch_size: 4\n")
    cli = main(
        ["test", f"--ckpt_path={checkpoint_of(run)}", f"--config={config}", f"--trainer.default_root_dir={tmp_path}"]
    )
    assert cli.datamodule.batch_size == 4


def test_fit_resumes_from_a_checkpoint_alone(run, tmp_path):
    options = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=4", f"--trainer.default_root_dir={tmp_path}"]
    cli = main(["fit", f"--ckpt_path={checkpoint_of(run)}", *options])
    assert cli.trainer.global_step == 8


def test_checkpoint_holds_text_and_tensors_only_and_loads_in_python(run):
    model = RoutedClassifier.load_from_checkpoint(checkpoint_of(run), weights_only=True)
    assert model.network.layers[0].blocks.out_features == 16


def refused(capsys, *words: str) -> str:
    """The one sentence that a mistake is told with."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code not in (0, None)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.init_args.network.init_args.depth=0", "depth of the network is 0"),
        (
            "--model.init_args.network.init_args.depth=x",
            "model.network.depth: x is no whole number .opt",
        ),
        (
            "--model.init_args.network.init_args.features.init_args.filters=x",
            "model.network.features.filters: x is no whole number .opt",
        ),
        (
            "--model.init_args.network.init_args.dept=3",
            "model.network: Option 'dept' is not accepted by RoutingAllFC, which takes .*depth",
        ),
        ("--model.init_args.router.init_args.gamma=2", "gamma is 2"),
        ("--model.init_args.optimizer.init_args.lr=-1", "learning rate: -1"),
        ("--model.init_args.num_tasks=5", "num_tasks is 5 but the data has 10; leave it out"),
        ("--model.init_args.num_tasks=11", "num_tasks is 11 but the data has 10; leave it out"),
        ("--model.init_args.image_shape=[3,8,8]", r"image_shape is .3, 8, 8. but the data has .1, 8, 8."),
        ("--model.init_args.num_classes=0", "num_classes is 0 but the data has 2"),
        ("--model.init_args.router.init_args.learner.init_args.policy_lr=0", "policy_lr is 0"),
        ("--model.init_args.router.init_args.learner.init_args.policy_lr=.inf", "policy_lr is inf"),
        ("--model.init_args.router.init_args.learner.init_args.scaling=both", "scaling"),
        ("--data.init_args.batch_size=0", "batch_size is 0"),
        ("--data.init_args.val_fraction=1", "val_fraction is 1"),
        ("--model.init_args.dept=3", "'dept' is not accepted by RoutedClassifier, which takes .*network"),
        ("--trainer.max_epoch=3", "max_epoch"),
        ("--foo=1", "foo"),
        ("--trainer.gradient_clip_val=1", "--model.init_args.gradient_clip_val=1"),
        ("--trainer.accumulate_grad_batches=2", "--model.init_args.accumulate_grad_batches=2"),
        ("--ckpt_path=nowhere.ckpt", "nowhere.ckpt is no file"),
        (f"--ckpt_path={DIGITS}", "is no checkpoint"),
        ("--config=nowhere.yaml", "nowhere.yaml"),
        ("--data.class_path=Nothing", "Nothing"),
        (
            "--model.init_args.network=RoutedBackbone",
            "network: RoutedBackbone needs layers; give it in its init_args",
        ),
    ],
)
def test_mistakes_are_told_in_one_sentence(option, message, tmp_path, capsys):
    import re

    words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.default_root_dir={tmp_path}", option]
    assert re.search(message, refused(capsys, *words))


def test_missing_data_names_the_path_and_the_option(tmp_path, capsys):
    config = str(Path(DIGITS).with_name("mnist_mtl.yaml"))
    sentence = refused(
        capsys,
        "fit",
        f"--config={config}",
        f"--data.init_args.root={tmp_path / 'no'}",
        "--data.init_args.download=false",
    )
    assert str(tmp_path / "no") in sentence and "download" in sentence


def test_unknown_key_of_a_config_is_named(tmp_path, capsys):
    config = tmp_path / "wrong.yaml"
    config.write_text("modle: 3\n")
    assert "modle" in refused(capsys, "fit", f"--config={DIGITS}", f"--config={config}")


def test_no_command_is_told(capsys):
    assert "fit" in refused(capsys)


def test_other_messages_stay_whole():
    assert one_sentence("something\nelse") == "something; or else"


def test_a_checkpoint_of_another_model_is_told(run, tmp_path, capsys):
    sentence = refused(
        capsys, "validate", f"--ckpt_path={checkpoint_of(run)}", "--model.init_args.network.init_args.hidden=8",
        f"--trainer.default_root_dir={tmp_path}",
    )  # fmt: skip
    assert "does not fit the model" in sentence


def test_validation_takes_the_splits_of_the_checkpoint(run, tmp_path):
    options = ["--data.init_args.val_fraction=0.5", f"--trainer.default_root_dir={tmp_path}"]
    cli = main(["validate", f"--ckpt_path={checkpoint_of(run)}", *options])
    assert len(cli.datamodule.val_dataset) == len(cli.datamodule.test_dataset)


def test_a_run_without_logger_can_be_repeated(tmp_path):
    for _ in range(2):
        short_fit(tmp_path, "--trainer.logger=false")


def test_an_unwritable_folder_of_the_report_is_told(run, capsys):
    assert "/dev/null" in refused(capsys, "report", str(run), "--out", "/dev/null/report")
