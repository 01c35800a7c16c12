"""Mistakes that would pass the parser, or that it would tell in words of its own: each ends in one sentence."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from routing_lightning.cli import main
from routing_lightning.parser import one_sentence
from tests.cli.test_values import DIGITS, ROOT, SHORT, refused

TRIAL = f"--config={DIGITS}", "--trainer.fast_dev_run=true", "--trainer.accelerator=cpu"
MODEL, DATA = "--model.init_args.", "--data.init_args."


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds nothing"),
        (b"[1, 2]", "holds no keys"),
        (b"3", "holds no keys"),
        (b"name: caf\xe9", r"no text in UTF-8 \(byte 9\)"),
        (bytes(range(256)), "no text in UTF-8"),
        (b"model:\n\tx: 1", r"no YAML \(found character '\\t' .*line 2, column 1\)"),
        (b"a: [", "no YAML"),
        (b"a: \x00", "no YAML"),
        (b"[" * 3000, "nested too deeply"),
        (b"model: !!python/object/apply:os.system [ls]", "no YAML"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_config_that_is_none_is_told_with_its_name(content, sentence, folder, capsys):
    import re

    (folder / "mine.yaml").write_bytes(content)
    for words in (["fit", "--config=mine.yaml"], ["fit", "--config", DIGITS, "--config", "mine.yaml"]):
        found = refused(capsys, *words)
        assert re.search(f"error: config mine.yaml .*{sentence}", found)


def test_a_config_in_a_pipe_is_told(folder, capsys):
    os.mkfifo(folder / "pipe")
    for given in ("pipe", "-"):
        found = refused(capsys, "fit", "--config", given)
        assert f"error: config {given} is a pipe" in found and "write it to a file and give its path" in found


@pytest.mark.parametrize("words", [["--config", DIGITS], [f"--config={DIGITS}"], ["-c", DIGITS]])
def test_what_stands_before_the_command_and_is_its_own_is_told(words, capsys):
    found = refused(capsys, *words, "fit", "--trainer.fast_dev_run=true")
    assert f"error: config {DIGITS} stands before the command, but seed_everything, trainer, model in it" in found
    assert f"give it behind: fit --config {DIGITS}" in found
    found = refused(capsys, "--trainer.fast_dev_run=true", *words, "validate")
    assert "error: config" in found
    found = refused(capsys, "--trainer.fast_dev_run=true", "validate", *words)
    assert (
        "error: trainer.fast_dev_run stands before the command; give it behind, as in fit --trainer.fast_dev_run"
        in found
    )


@pytest.mark.parametrize("given", ["nowhere.yaml", "", ".", "null", "x" * 5000, "a\nb"])
def test_a_config_that_is_no_file_is_told(given, capsys):
    assert "is no file; give the path of one" in refused(capsys, "fit", "--config", given)


def test_configs_may_begin_at_home_or_with_file(folder, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(folder))
    (folder / "mine.yaml").write_text(Path(DIGITS).read_text())
    for given in ("~/mine.yaml", f"file://{folder}/mine.yaml", "{seed_everything: 3}"):
        with pytest.raises(SystemExit) as stop:
            main(["fit", f"--config={DIGITS}", "--config", given, "--print_config"])
        assert stop.value.code == 0 and "DigitsMTLDataModule" in capsys.readouterr().out
    assert "not on this machine" in refused(capsys, "fit", "--config=memory://mine.yaml")


@pytest.mark.parametrize(
    "option",
    [
        f"{DATA}batch_size",
        f"{DATA}val_fraction",
        f"{MODEL}network.init_args.depth",
        f"{MODEL}network.init_args.features.init_args.filters",
        f"{MODEL}router.init_args.gamma",
        f"{MODEL}router.init_args.learner.init_args.policy_lr",
        f"{MODEL}optimizer.init_args.lr",
    ],
)
def test_null_where_a_value_is_needed_is_told(option, capsys):
    assert f"error: {option[2:]} is null; give a value of type" in refused(capsys, "fit", *TRIAL, f"{option}=null")


def test_null_where_it_means_something_passes():
    cli = main(
        ["fit", *TRIAL, f"{MODEL}lr_scheduler=null", f"{MODEL}network.init_args.num_blocks=null", "--record=null"]
    )
    assert cli.model.make_lr_scheduler is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([f"{MODEL}optimizer=torch.optim.SparseAdam"], "refuses its values: SparseAdam does not support dense"),
        ([f"{MODEL}lr_scheduler.init_args.step_size=0"], "lr_scheduler refuses its values"),
        (["--trainer.val_check_interval=0"], "trainer.val_check_interval is 0; give a number above 0"),
        (["--trainer.check_val_every_n_epoch=0"], "trainer.check_val_every_n_epoch is 0"),
        (["--threads=99999999999"], "threads is 99999999999; give auto, or a number from 1 to 1024"),
        (["--threads=null"], "threads is 'null'"),
        (["--trainer.logger=NeptuneLoger"], "trainer.logger: there is no class NeptuneLoger"),
        (["--trainer.logger=CSVLogger"], "trainer.logger: CSVLogger needs save_dir; give it in its init_args"),
        (["--trainer.logger=[CSVLogger, TensorBoardLogger]"], "CSVLogger needs save_dir"),
        (["--trainer.callbacks=EarlyStoping"], "no class EarlyStoping; did you mean EarlyStopping?"),
        (["--trainer.callbacks=EarlyStopping"], "trainer.callbacks: EarlyStopping needs monitor; give it in its"),
        (["--trainer.callbacks=[EarlyStopping]"], "trainer.callbacks: EarlyStopping needs monitor; give it in its"),
        (
            ["--record=[{class_path: TaskResults, init_args: {most_pictures: -1}}]"],
            "most_pictures of TaskResults is -1",
        ),
        (["--record=nope"], "record: nope is none of a list of Callback, null"),
        (["--data=[]"], "data: Not a valid subclass of MultiTaskDataModule. Got value: [] (options"),
        ([f"{MODEL}router=null"], "model: RoutedClassifier needs router; give it in its init_args"),
        ([f"{MODEL}optimizer.init_args.lr=nan"], "model.optimizer.lr: nan is no number ("),
        (
            [f"{MODEL}router={{class_path: BranchingRouter, init_args: {{order: 3}}}}"],
            "model.router.order: 3 is none of last_first, first_last, a list of whole numbers (",
        ),
        ([f"{DATA}train_per_task=5"], "data.train_per_task: 5 is none of a list of whole numbers, null ("),
        ([f"{MODEL}lr_scheduler=[1]"], "model.lr_scheduler: [1] is no class; give one as {class_path"),
        (["--trainer.precision=bf17"], "bf16-mixed, 32-true, 64-true, bf16, null; did you mean bf16? ("),
        (["--trainer.limit_val_batches=half"], "trainer.limit_val_batches: half is none of a number, null ("),
        (
            ["--trainer.callbacks=[{class_path: ModelCheckpoint, init_args: {save_last: lnk}}]"],
            "trainer.callbacks.save_last: lnk is none of true, false, link, null; did you mean link? (",
        ),
        (["--trainer.devices=two"], "should be an int > 0 (trainer.devices is two)."),
        (["--trainer.model_registry=3"], "trainer.model_registry is '3'; give the name of a model in the hub"),
        (["--trainer.default_root_dir=~nobody_at_all/x"], "home folder of a user who does not exist"),
    ],
    ids=lambda value: value[0][:60] if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_once_with_its_place(words, sentence, capsys):
    assert sentence in refused(capsys, "fit", *TRIAL, *words)


def test_a_logger_whose_library_is_missing_is_told(monkeypatch, capsys):
    from lightning.pytorch.loggers import WandbLogger

    def missing(self, *args, **kwargs):
        raise ModuleNotFoundError("Requirement 'wandb>=0.12.10' not met.")

    monkeypatch.setattr(WandbLogger, "__init__", missing)
    for given in ("WandbLogger", "[WandbLogger]"):
        words = ["fit", f"--config={DIGITS}", *SHORT, f"--trainer.logger={given}"]
        assert "error: wandb>=0.12.10 is not installed, which this run needs; install it" in refused(capsys, *words)


def test_a_trial_writes_nothing(folder):
    save = "{class_path: ModelCheckpoint, init_args: {monitor: val/loss, save_last: true}}"
    main(["fit", *TRIAL, f"--trainer.callbacks=[{save}]"])
    assert list(folder.iterdir()) == []


def test_predictions_go_to_no_other_machine(capsys):
    words = ["predict", f"--config={DIGITS}", *SHORT, "--trainer.logger=false", "--out"]
    assert "not on this machine" in refused(capsys, *words, "memory://p.csv")


def test_folders_of_data_that_doctor_looks_at_are_paths_like_others(folder, capsys):
    main(["doctor", f"file://{folder}"])
    assert f"not in {folder}" in capsys.readouterr().out
    assert "not on this machine" in refused(capsys, "doctor", "s3://data")


def test_sentences_of_the_parser_do_not_say_how_it_looked():
    message = """Parser key "data":
  Does not validate against any of the Union subtypes
  Errors:
    - Not a valid subclass of Data
      Subclass types expect one of:
      - a class path (str)
      - a dict with class_path entry
      - a dict without class_path but with init_args entry (class path given previously)
      - a dict with parameters accepted by the base class (implicit class_path)
    - Expected a <class 'NoneType'>
  Given value type: <class 'list'>
  Given value: [1]"""
    assert one_sentence(message) == "data: Not a valid subclass of Data. Got value: [1]"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plot"], "error: no RUN given; usage: train.py plot"),
        (["plot", "x", "--block=abc"], "error: argument --block: invalid int value: 'abc'"),
        (["report", "x", "--ouut", "y"], "error: there is no option ouut; did you mean --out?"),
        (["report", "x", "--ou", "y"], "error: there is no option ou; did you mean --out?"),  # not guessed
        (["report", "memory://x"], "error: argument RUN: memory://x lies on memory, not on this machine"),
        (["export", "x.ckpt"], "error: no --out given; usage: train.py export"),
        (["export", "x.ckpt", "--out=e", "--format=foo"], "invalid choice: 'foo'"),
        (["prune", "x.ckpt", "y.ckpt", "--out=e"], "error: unrecognized arguments: y.ckpt"),
        (["extend", "x.ckpt", "--out=e"], "error: no --data given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_of_the_readers_are_one_line_too(words, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and sentence in line and line.endswith(f"(options: train.py {words[0]} --help)")


def test_an_option_of_another_command_is_not_offered_as_the_nearest(capsys):
    found = refused(capsys, "validate", *TRIAL, "--images=x")
    assert "there is no option images of validate; another command has it" in found


@pytest.mark.parametrize("words, how", [(["doctor"], "| true"), (["fit", *TRIAL, "--record=null"], ">&-")])
def test_whoever_does_not_listen_gets_no_traceback(words, how):
    line = f"sleep 0.2; {shlex.join([sys.executable, str(ROOT / 'train.py'), *words])}"
    done = subprocess.run(["bash", "-c", f"({line}) {how}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""


PRESSED = """
import os, signal, sys

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
from routing_lightning.cli import main
main(sys.argv[2:])
"""


# At the start of the imports, in their midst within those of libraries, and in the one that loads the data.
@pytest.mark.parametrize("at", ["torch", "lightning.fabric", "torchmetrics", "sklearn.datasets"])
def test_ctrl_c_before_the_training_is_no_traceback(at):
    words = [sys.executable, "-c", PRESSED, at, "fit", f"--config={DIGITS}", "--trainer.fast_dev_run=true"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 130 and done.stderr == "stopped by Ctrl-C\n"


def test_a_full_disk_behind_the_output_is_one_sentence():
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    line = f"{shlex.join([sys.executable, str(ROOT / 'train.py'), 'doctor'])} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 1 and sentence.startswith("error: what comes out cannot be written (No space left")


BARE = f"--config={ROOT}/configs/data/digits_mtl.yaml", "--model=RoutedClassifier"


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("model.init_args.optimizer", "SGD"),
        ("model.init_args.lr_scheduler", "StepLR"),
        ("model.init_args.router", "RewardRouter"),
        ("model.init_args.aggregator", "..."),
        ("trainer.callbacks", "EarlyStopping"),
        ("trainer.callbacks+", "EarlyStopping"),
        ("trainer.logger", "CSVLogger"),
        ("trainer.profiler", "SimpleProfiler"),
        ("trainer.strategy", "lightning.pytorch.strategies.DDPStrategy"),
        ("trainer.accelerator", "lightning.pytorch.accelerators.CPUAccelerator"),
        ("trainer.plugins", "lightning.pytorch.plugins.MixedPrecision"),
    ],
)
def test_options_without_a_class_are_told(place, kind, capsys):
    ways = [f"--{place}.init_args.lr=0.5"]
    if place[-1] != "+" and place not in (
        "trainer.profiler",
        "trainer.strategy",
        "trainer.accelerator",
        "trainer.plugins",
    ):
        ways.append(f"--{place}={{init_args: {{lr: 0.5}}}}")
    for words in ways:
        found = refused(capsys, "fit", *BARE, words)
        key = place.removesuffix("+").replace(".init_args", "")
        example = f"{{class_path: {kind}, init_args: {{lr: ...}}}}"
        assert (
            f"error: {key}: lr is given, but no class that takes it; give one with class_path, such as {example}"
            in found
        )


@pytest.mark.parametrize(
    ("place", "key", "meant"),
    [
        ("model: {class_path: RoutedClassifier, init_arg: {network: RoutingAllFC}}", "init_arg", "init_args"),
        ("model: {clas_path: RoutedClassifier, init_args: {network: RoutingAllFC}}", "clas_path", "class_path"),
        ("data: {class_path: DigitsMTLDataModule, init_arg: {batch_size: 16}}", "init_arg", "init_args"),
        ("model: {init_args: {optimizer: {class_path: SGD, initargs: {lr: 0.1}}}}", "initargs", "init_args"),
    ],
)
def test_keys_that_are_nearly_those_of_a_class_are_told(place, key, meant, tmp_path, capsys):
    (tmp_path / "slip.yaml").write_text(place)
    found = refused(capsys, "fit", f"--config={ROOT}/configs/digits_mtl.yaml", f"--config={tmp_path}/slip.yaml")
    assert f"there is no {key}; did you mean {meant}?" in found


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trainer.logger=Logger"], "trainer.logger: Logger is only what all of its kind have in common; give the"),
        (["--data=MultiTaskDataModule"], "MultiTaskDataModule is only what .* such as DigitsMTLDataModule"),
        (["--trainer.devices.init_args.x=1"], "trainer.devices: x is given, but the place takes a value and no class"),
        (["--trainer.loger.init_args.x=1"], r"no option trainer.loger.init_args.x; did you mean trainer.logger\?"),
        (["--model.init_args.lr_scheduler=ReduceLROnPlateau"], "give the class_path lightning.pytorch.cli.ReduceLROn"),
        (
            ["--model.init_args.lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau"],
            "ReduceLROnPlateau needs monitor; give it in its init_args",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_classes_that_are_none_or_several_are_told(words, sentence, capsys):
    import re

    found = refused(capsys, "fit", *BARE, *words)
    assert re.search(f"error: .*{sentence}", found) and "<class" not in found


def test_what_stands_before_model_and_data_is_told(capsys):
    data, method = f"--config={ROOT}/configs/data/digits_mtl.yaml", f"--config={ROOT}/configs/methods/wpl.yaml"
    found = refused(capsys, "fit", data, "--model.init_args.router.init_args.gamma=1")
    assert "Option 'router.init_args.gamma' is not accepted before there is a model; give a method first" in found
    found = refused(capsys, "fit", method, "--data.init_args.batch_size=1")
    assert "data: batch_size is given before there is data; give data first" in found


def test_a_name_that_several_classes_have_is_told_with_all_of_them():
    found = one_sentence(
        'Parser key "trainer.logger":\n  Multiple subclasses with name Mine. Give the full class path to avoid '
        "ambiguity: a.b.Mine, c.Mine."
    )
    assert found == "trainer.logger: 2 classes are called Mine; give the class_path a.b.Mine or c.Mine"


@pytest.mark.parametrize(
    ("package", "words", "part"),
    [
        ("wandb", ["--trainer.logger=WandbLogger"], "this run"),
        ("mlflow", ["--trainer.logger=[{class_path: MLFlowLogger}]"], "this run"),
        ("comet_ml", ["--trainer.logger=CometLogger"], "this run"),
        ("deepspeed", ["--trainer.strategy=deepspeed"], "DeepSpeedStrategy"),
        ("torch_xla", ["--trainer.accelerator=tpu"], "XLAAccelerator"),
        ("transformer_engine", ["--trainer.precision=transformer-engine"], "TransformerEnginePrecision"),
        ("bitsandbytes", ["--trainer.plugins=lightning.pytorch.plugins.BitsandbytesPrecision"], "this run"),
        ("psutil", ["--trainer.callbacks=DeviceStatsMonitor", "--trainer.logger=CSVLogger"], "DeviceStatsMonitor"),
        (
            "psutil",
            ["--trainer.callbacks=DeviceStatsMonitor", "--trainer.callbacks.cpu_stats=true"],
            "DeviceStatsMonitor",
        ),
    ],
)
def test_a_package_that_a_part_of_lightning_needs_is_told_with_the_part(package, words, part, capsys):
    import re
    from importlib.util import find_spec

    if find_spec(package):
        pytest.skip(f"{package} is installed")
    if "CSVLogger" in words[-1]:
        words = [*words, "--trainer.logger.save_dir=."]
    if "Bitsandbytes" in words[0]:
        words = [*words, "--trainer.plugins.init_args.mode=nf4"]
    options = [*SHORT, "--trainer.log_every_n_steps=1"] if package == "psutil" else TRIAL[1:]
    found = refused(capsys, "fit", TRIAL[0], *options, *words)
    assert re.match(
        f"error: {package.replace('_', '.')}.* is not installed, which {part} needs; install it with: pip", found
    )
