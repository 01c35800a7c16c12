"""What a checkpoint names is built only if it belongs here and fits its place; nothing is imported or called before."""

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from routing_lightning.cli import main
from routing_lightning.cli.checkpoints import CONFIG_KEY
from routing_lightning.datamodules import DigitsMTLDataModule, FolderMTLDataModule, MultiTaskDataModule
from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier, RoutedClassifier, TaskClassifier
from routing_lightning.trust import Trust, check_hyperparameters

DIGITS = str(Path(__file__).parents[2] / "configs" / "digits_mtl.yaml")
PLANTED = """
from pathlib import Path

Path(__file__).with_name("imported").touch()

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import Precision
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from routing_lightning.datamodules import DigitsMTLDataModule
from routing_lightning.modules import RoutedClassifier
from routing_lightning.routers import REINFORCE, WPL, FixedRoutes, TabularPolicy


class Module(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()


class Optimizer(SGD): pass
class Scheduler(StepLR): pass
class Router(FixedRoutes): pass
class Policy(TabularPolicy): pass
class Learner(WPL): pass
class Model(RoutedClassifier): pass
class Data(DigitsMTLDataModule): pass
class Call(Callback): pass
class Log(CSVLogger): pass
class Time(SimpleProfiler): pass
class Way(SingleDeviceStrategy): pass
class Precise(Precision): pass


def function(*args, **kwargs):
    Path(__file__).with_name("called").touch()
"""

# Where a checkpoint names parts, and what of the planted module would fit.
PLACES = {
    "model": "Model",
    "model.aggregator": "Module",
    "model.network": "Module",
    "model.network.features": "Module",
    "model.router": "Router",
    "model.router.policy": "Policy",
    "model.router.learner": "Learner",
    "model.optimizer": "Optimizer",
    "model.lr_scheduler": "Scheduler",
    "data": "Data",
}
# The same of what a training takes, too.
OF_TRAINING = {
    "trainer.callbacks": "Call",
    "trainer.logger": "Log",
    "trainer.profiler": "Time",
    "trainer.strategy": "Way",
    "trainer.plugins": "Precise",
    "trainer.accelerator": "Way",
    "record": "Call",
}
# Functions of libraries and of Python that do harm when called, and classes that fit no place.
HARMFUL = [
    "subprocess.check_output",
    "os.system",
    "builtins.eval",
    "torch.hub.load",
    "torch.load",
    "torch.utils.cpp_extension.load",
    "torch.os.system",
    "torch.utils.data.DataLoader",
    "torchvision.datasets.utils.download_url",
    "torchvision.models.resnet18",
    "lightning.pytorch.Trainer",
    "lightning.pytorch.strategies.launchers.subprocess_script._SubprocessScriptLauncher",
    "lightning.pytorch.cli.instantiate_class",
    "routing_lightning.allocator.keep_freed_memory",
    "routing_lightning.cli.drawing.plot",
    "pathlib.Path",
    "Popen",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"]
    cli = main(["fit", f"--config={DIGITS}", *short, f"--trainer.default_root_dir={folder}", "--record=null",
                "--trainer.enable_progress_bar=false"])  # fmt: skip
    return Path(cli.trainer.checkpoint_callback.best_model_path)


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "planted.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("planted", None)


def part_of(config: dict[str, Any], place: str) -> tuple[dict[str, Any], str]:
    """The dict and key at which a place lies."""
    *path, last = place.split(".")
    for key in path:
        if not isinstance(config[key], dict):
            config[key] = {"class_path": config[key]}
        config = config[key] if key == "trainer" else config[key].setdefault("init_args", {})
    return config, last


def with_config(checkpoint: Path, to: Path, change) -> Path:
    """A copy of a checkpoint whose config was changed."""
    content = torch.load(checkpoint, weights_only=True)
    config = yaml.safe_load(content[CONFIG_KEY])
    config = change(config) or config
    content[CONFIG_KEY] = config if isinstance(config, str) else yaml.safe_dump(config)
    torch.save(content, to)
    return to


def plant(place: str, part: Any):
    def change(config):
        where, key = part_of(config, place)
        where[key] = part

    return change


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("command", ["validate", "fit"])
@pytest.mark.parametrize("place", PLACES)
def test_classes_of_others_are_not_imported_unless_trusted(place, command, checkpoint, planted, tmp_path, capsys):
    name = f"planted.{PLACES[place]}"
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant(place, {"class_path": name}))
    sentence = refused(capsys, command, f"--ckpt_path={bad}", f"--trainer.default_root_dir={tmp_path}")
    assert name in sentence and "--trust planted" in sentence and place in sentence
    assert not (planted / "imported").exists()


def test_weights_of_a_checkpoint_are_taken_through_the_same_door(checkpoint, planted, tmp_path, capsys):
    place = next(iter(PLACES))
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant(place, {"class_path": f"planted.{PLACES[place]}"}))
    sentence = refused(capsys, "fit", f"--weights={bad}", f"--trainer.default_root_dir={tmp_path}")
    assert "--trust planted" in sentence and not (planted / "imported").exists()


@pytest.mark.parametrize("option", ["ckpt_path", "weights"])
@pytest.mark.parametrize("place", OF_TRAINING)
def test_what_a_training_takes_beside_goes_through_the_same_door(place, option, checkpoint, planted, tmp_path, capsys):
    name = f"planted.{OF_TRAINING[place]}"
    part = {"class_path": name}
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant(place, [part] if place == "record" else part))
    sentence = refused(capsys, "fit", f"--{option}={bad}", f"--trainer.default_root_dir={tmp_path}")
    assert name in sentence and "--trust planted" in sentence and place in sentence
    assert not (planted / "imported").exists()


def pairs(places, forms):
    """Each name in each place, in one of the forms; each name and each place in all of them."""
    return [
        (place, name, forms[(i + j) % len(forms)]) for i, place in enumerate(places) for j, name in enumerate(HARMFUL)
    ]


@pytest.mark.parametrize(("place", "name", "form"), pairs(OF_TRAINING, ["text", "part", "list"]))
def test_harmful_names_are_refused_there(place, name, form, checkpoint, tmp_path):
    from routing_lightning.cli.checkpoints import OF_RUN, config_of

    spec = {"class_path": name, "init_args": {"args": ["touch", str(tmp_path / "called")]}}
    part = {"text": name, "part": spec, "list": [spec]}[form]
    if form == "text" and "." not in name:  # a name of a strategy, or the like
        part = spec
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant(place, part))
    with pytest.raises(UsageError, match=name.rpartition(".")[2]):
        config_of(bad, [], set(), OF_RUN)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(("place", "name", "as_text"), pairs(PLACES, [True, False]))
def test_harmful_names_are_refused_in_every_place(place, name, as_text, checkpoint, tmp_path):
    from routing_lightning.cli.checkpoints import config_of

    part = name if as_text else {"class_path": name, "init_args": {"args": ["touch", str(tmp_path / "called")]}}
    if as_text and place in ("model", "data"):
        part = {"class_path": name}
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant(place, part))
    with pytest.raises(UsageError, match=name.rpartition(".")[2]):
        config_of(bad, [], set())
    assert not (tmp_path / "called").exists()


def test_nothing_else_of_the_config_is_read(checkpoint, planted, tmp_path):
    def change(config):
        config["record"] = [{"class_path": "planted.Module"}]
        config["trainer"]["callbacks"] = [{"class_path": "planted.Module"}]
        config["trainer"]["logger"] = {"class_path": "planted.Module"}

    bad = with_config(checkpoint, tmp_path / "bad.ckpt", change)
    options = ["--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=false"]
    assert main(["validate", f"--ckpt_path={bad}", f"--trainer.default_root_dir={tmp_path}", *options])
    assert not (planted / "imported").exists()


ODD = {
    "a dotted key": lambda c: c["model"]["init_args"].update({"aggregator.class_path": "subprocess.check_output"}),
    "a class below numbers": lambda c: c["model"]["init_args"].update(num_tasks={"class_path": "os.system"}),
    "a class in unknown arguments": lambda c: c["model"].update(dict_kwargs={"new": {"class_path": "os.system"}}),
    "a class in a list": lambda c: c["model"]["init_args"].update(image_shape=[{"class_path": "os.system"}]),
    "a class as argument of a class of torch": lambda c: c["model"]["init_args"].update(
        aggregator={"class_path": "torch.nn.Sequential", "init_args": {"args": [{"class_path": "os.system"}]}}
    ),
    "an activation": lambda c: c["model"]["init_args"].update(
        aggregator={
            "class_path": "torch.nn.TransformerEncoderLayer",
            "init_args": {"d_model": 2, "nhead": 1, "activation": "os.system"},
        }
    ),
    "a function of a scheduler": lambda c: c["model"]["init_args"].update(
        lr_scheduler={"class_path": "torch.optim.lr_scheduler.LambdaLR", "init_args": {"lr_lambda": "os.system"}}
    ),
    "a scheduler in a scheduler": lambda c: c["model"]["init_args"].update(
        lr_scheduler={
            "class_path": "torch.optim.lr_scheduler.ChainedScheduler",
            "init_args": {"schedulers": [{"class_path": "subprocess.Popen"}]},
        }
    ),
    "no class path": lambda c: c["model"].pop("class_path"),
    "another key": lambda c: c["model"].update({"__path__": "/etc/passwd"}),
    "a file in place of a class": lambda c: c["model"]["init_args"].update(router="/tmp/router.yaml"),
    "an address in place of a class": lambda c: c.update(model="https://example.org/model.yaml"),
    "itself": lambda c: "&a [*a]",
    "a text": lambda c: "model",
    "no YAML": lambda c: "{",
    "endless nesting": lambda c: "model: " + "[" * 100_000,
    "a bomb": lambda c: (
        "model: {class_path: &0 [x, x, x, x, x, x, x, x, x, x]}\ndata: &1 [*0, *0, *0, *0, *0, *0, *0, *0, *0, *0]\n"
        + "".join(f"k{i}: &{i} [{', '.join([f'*{i - 1}'] * 10)}]\n" for i in range(2, 12))
        + "seed_everything: *11"
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_configs_are_refused(name, checkpoint, tmp_path, capsys):
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", ODD[name])
    refused(capsys, "validate", f"--ckpt_path={bad}", f"--trainer.default_root_dir={tmp_path}")


def test_the_config_that_the_user_gives_overrules_nothing_of_the_check(checkpoint, planted, tmp_path, capsys):
    config = tmp_path / "other.yaml"
    config.write_text("model: {init_args: {aggregator: null}}\n")
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant("model.aggregator", {"class_path": "planted.Module"}))
    words = [f"--config={config}", f"--ckpt_path={bad}", f"--trainer.default_root_dir={tmp_path}"]
    assert "planted.Module" in refused(capsys, "validate", *words)
    assert not (planted / "imported").exists()


LIMITS = ["--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]


@pytest.mark.parametrize(
    "trusted", [["--trust", "planted"], ["--trust=other,planted"], ["--trust=a", "--trust=planted"]]
)
def test_a_module_that_the_user_trusts_is_used(trusted, checkpoint, planted, tmp_path):
    good = with_config(checkpoint, tmp_path / "good.ckpt", plant("data", {"class_path": "planted.Data"}))
    cli = main(["validate", f"--ckpt_path={good}", f"--trainer.default_root_dir={tmp_path}", *LIMITS, *trusted])
    assert type(cli.datamodule).__name__ == "Data"


@pytest.mark.parametrize("trusted", ["--trust=planted", "--trust=other"])
def test_what_is_trusted_must_fit_its_place_too(trusted, checkpoint, planted, tmp_path, capsys):
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", plant("model.router", {"class_path": "planted.Module"}))
    assert "planted.Module" in refused(
        capsys, "validate", f"--ckpt_path={bad}", f"--trainer.default_root_dir={tmp_path}", trusted
    )


def test_a_class_that_the_user_gives_is_trusted(checkpoint, planted, tmp_path):
    good = with_config(checkpoint, tmp_path / "good.ckpt", plant("data", {"class_path": "planted.Data"}))
    words = [f"--ckpt_path={good}", f"--trainer.default_root_dir={tmp_path}", *LIMITS]
    assert main(["validate", "--data=planted.Data", *words])
    config = tmp_path / "data.yaml"
    config.write_text("data: {class_path: planted.Data}\n")
    assert main(["validate", f"--config={config}", *words])


def test_short_names_mean_subclasses_that_are_known(checkpoint, tmp_path):
    from routing_lightning.cli.checkpoints import config_of

    def change(config):
        config["model"]["init_args"]["router"]["init_args"]["learner"] = "WPL"
        config["model"]["init_args"]["optimizer"] = {"class_path": "Adam", "init_args": {"lr": 0.1}}

    config = config_of(with_config(checkpoint, tmp_path / "good.ckpt", change), [], set())
    arguments = config["model"]["init_args"]
    assert arguments["router"]["init_args"]["learner"].endswith(".wpl.WPL")
    assert arguments["optimizer"] == {"class_path": "torch.optim.adam.Adam", "init_args": {"lr": 0.1}}


def test_every_shipped_config_passes_its_own_check():
    for path in Path(DIGITS).parent.rglob("*.yaml"):
        config = yaml.safe_load(path.read_text())
        trust = Trust(str(path))
        if "class_path" in config.get("model", {}):
            trust.check(config["model"], TaskClassifier, "model")
        if "class_path" in config.get("data", {}):
            trust.check(config["data"], MultiTaskDataModule, "data")


def test_torchs_containers_may_hold_parts_of_their_type_only():
    trust = Trust("text")
    with pytest.raises(UsageError, match="LambdaLR"):
        trust.check({"class_path": "torch.optim.lr_scheduler.LambdaLR"}, torch.nn.Module, "part")
    with pytest.raises(UsageError, match="os.system"):
        trust.check(["os.system"], list[torch.nn.Module], "parts")
    assert trust.check(["torch.nn.ReLU"], list[torch.nn.Module], "parts") == ["torch.nn.ReLU"]
    assert trust.check({"a": "os.system"}, dict[str, str], "texts") == {"a": "os.system"}


def test_saved_configs_of_runs_are_read_without_importing(checkpoint, planted, tmp_path, capsys):
    """``report`` and ``plot`` read the config in a run's folder."""
    run = tmp_path / "run"
    shutil.copytree(checkpoint.parents[1], run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"] = {"class_path": "planted.Model"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    main(["report", str(run), "--out", str(tmp_path / "out")])
    assert not (planted / "imported").exists()


def test_hyperparameters_are_checked_like_configs(checkpoint, planted):
    values = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    check_hyperparameters(values, TaskClassifier)
    for part in ("planted.Module", "subprocess.check_output"):
        with pytest.raises(UsageError, match=part):
            check_hyperparameters({**values, "aggregator": {"class_path": part}}, TaskClassifier)
    assert not (planted / "imported").exists()
    check_hyperparameters({**values, "aggregator": {"class_path": "planted.Module"}}, TaskClassifier, ["planted"])


DATA_KEY = "datamodule_hyper_parameters"


@pytest.mark.parametrize("part", ["planted.Module", "subprocess.check_output", "torchvision.models.resnet18"])
@pytest.mark.parametrize("in_list", [True, False])
def test_load_from_checkpoint_of_model_and_data_makes_nothing_that_is_not_trusted(
    part, in_list, checkpoint, planted, tmp_path
):
    content = torch.load(checkpoint, weights_only=True)
    spec = {"class_path": part, "init_args": {}}
    content["hyper_parameters"]["aggregator"] = spec
    content[DATA_KEY] |= {"_class_path": "routing_lightning.datamodules.FolderMTLDataModule", "root": "."}
    content[DATA_KEY]["augment"] = [spec] if in_list else spec
    torch.save(content, tmp_path / "bad.ckpt")
    for kind in (RoutedClassifier, TaskClassifier, FolderMTLDataModule, MultiTaskDataModule):
        with pytest.raises(UsageError, match=part):
            kind.load_from_checkpoint(tmp_path / "bad.ckpt")
    assert not (planted / "imported").exists() and not (planted / "called").exists()


HARM = {"class_path": "planted.Module"}
WAYS = {  # by which Lightning's load_from_checkpoint takes what stands elsewhere than in the hyperparameters
    "hyperparameters in hparams": lambda content, key: content.update(hparams={"aggregator": HARM}),
    "hyperparameters in module_arguments": lambda content, key: content.update(module_arguments={"augment": [HARM]}),
    "planted.function to make": lambda content, key: content[key].update(_instantiator="planted.function"),
    "os.system to make": lambda content, key: content[key].update(_instantiator="os.system"),
    r"\['planted'\] to make": lambda content, key: content[key].update(_instantiator=["planted"]),
    "for optimizer": lambda content, key: content.update(hparams_name="optimizer", datamodule_hparams_name="optimizer"),
    "for batch_size": lambda content, key: content.update(hparams_name="none", datamodule_hparams_name="batch_size"),
    "that are a list": lambda content, key: content.update({key: [HARM]}),
}


@pytest.mark.parametrize("kind", [RoutedClassifier, TaskClassifier, DigitsMTLDataModule, MultiTaskDataModule])
@pytest.mark.parametrize("way", WAYS)
def test_what_lightning_would_load_from_elsewhere_is_refused(way, kind, checkpoint, planted, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    of_data = issubclass(kind, MultiTaskDataModule)
    content["hyper_parameters"].pop("aggregator")
    WAYS[way](content, DATA_KEY if of_data else "hyper_parameters")
    torch.save(content, tmp_path / "bad.ckpt")
    if way in ("for optimizer", "for batch_size") and (of_data is (way == "for optimizer")):
        return  # no argument of this class, which Lightning leaves out
    with pytest.raises(UsageError, match=f"the checkpoint names .*{way}.*nothing was called"):
        kind.load_from_checkpoint(tmp_path / "bad.ckpt")
    assert not (planted / "imported").exists() and not (planted / "called").exists()


def test_load_from_checkpoint_needs_no_arguments(checkpoint, monkeypatch):
    """Of the class itself, or of the base, which gives the one that the checkpoint names."""
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    file = io.BytesIO(checkpoint.read_bytes())
    for kind, path in (
        (RoutedClassifier, checkpoint),
        (TaskClassifier, str(checkpoint)),
        (TaskClassifier, f"~/{checkpoint.name}"),
        (RoutedClassifier, f"file://{checkpoint}"),
        (TaskClassifier, file),
    ):
        model = kind.load_from_checkpoint(path)
        assert type(model) is RoutedClassifier
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    for kind in (DigitsMTLDataModule, MultiTaskDataModule):
        assert kind.load_from_checkpoint(checkpoint).batch_size == 32
    with pytest.raises(UsageError, match="lies on memory"):
        RoutedClassifier.load_from_checkpoint("memory://run.ckpt")
    with pytest.raises(UsageError, match="which is no MultiTaskClassifier"):
        MultiTaskClassifier.load_from_checkpoint(checkpoint)


def in_data(part):
    return lambda c: c.update(data={"class_path": "FolderMTLDataModule", "init_args": {"root": ".", "augment": part}})


def in_learner(key, part):
    return plant("model.router.learner", {"class_path": "REINFORCE", "init_args": {key: part}})


DEEPER = {
    "a transform": lambda part: in_data([part]),
    "a transform that is no list": in_data,
    "a transform in a transform": lambda part: in_data(
        [{"class_path": "torchvision.transforms.v2.RandomApply", "init_args": {"transforms": [part]}}]
    ),
    "a list as text": lambda part: in_data(yaml.safe_dump([part])),
    "a dict as text": lambda part: plant("model.aggregator", yaml.safe_dump(part)),
    "an optimizer of a learner": lambda part: in_learner("optimizer", part),
    "a scheduler of a learner": lambda part: in_learner("lr_scheduler", part),
    "features of a baseline": lambda part: (
        lambda c: c.update(
            model={"class_path": "MultiTaskClassifier", "init_args": {"network": "TaskSpecific", "features": part}}
        )
    ),
    "a module in modules": lambda part: plant(
        "model.aggregator", {"class_path": "torch.nn.ModuleList", "init_args": {"modules": [part]}}
    ),
    "a scheduler in schedulers": lambda part: plant(
        "model.lr_scheduler",
        {
            "class_path": "torch.optim.lr_scheduler.ChainedScheduler",
            "init_args": {"schedulers": [{"class_path": "StepLR", "init_args": {"optimizer": part}}]},
        },
    ),
}


@pytest.mark.parametrize("place", DEEPER)
@pytest.mark.parametrize("name", ["planted.function", "subprocess.check_output", "os.system", "torch.hub.load"])
@pytest.mark.parametrize("as_text", [True, False])
def test_parts_of_parts_are_checked_at_any_depth(place, name, as_text, checkpoint, planted, tmp_path):
    from routing_lightning.cli.checkpoints import config_of

    part = name if as_text else {"class_path": name, "init_args": {}}
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", DEEPER[place](part))
    with pytest.raises(UsageError, match="nothing was called"):
        config_of(bad, [], set())
    assert not (planted / "imported").exists() and not (planted / "called").exists()


@pytest.mark.parametrize("command", ["test", "predict", "export", "prune"])
@pytest.mark.parametrize("place", ["a transform", "an optimizer of a learner"])
def test_every_command_that_reads_checkpoints_checks_them(command, place, checkpoint, planted, tmp_path, capsys):
    part = {"class_path": "planted.function", "init_args": {}}
    bad = with_config(checkpoint, tmp_path / "bad.ckpt", DEEPER[place](part))
    words = [str(bad), f"--out={tmp_path / 'out.ckpt'}"] if command in ("export", "prune") else [f"--ckpt_path={bad}"]
    assert "planted.function" in refused(capsys, command, *words)
    assert not (planted / "imported").exists() and not (planted / "called").exists()


def test_transforms_may_hold_transforms(checkpoint, tmp_path):
    from routing_lightning.cli.checkpoints import config_of

    flip = {"class_path": "torchvision.transforms.v2.RandomHorizontalFlip", "init_args": {"p": 0.5}}
    for outer in ("RandomApply", "Compose"):
        part = {"class_path": f"torchvision.transforms.v2.{outer}", "init_args": {"transforms": [flip]}}
        config = config_of(with_config(checkpoint, tmp_path / "good.ckpt", in_data([part])), [], set())
        assert config["data"]["init_args"]["augment"] == [part]
