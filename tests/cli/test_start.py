"""What is said before torch is imported: help, lists, mistakes in the words; fast, and true."""

import inspect
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from routing_lightning import __version__
from routing_lightning.cli import main
from routing_lightning.cli.configs import config_folder, configs_by_kind, first_comment
from routing_lightning.cli.describe import class_of_package, names_of_classes, trainer
from routing_lightning.cli.doctor import data_in
from routing_lightning.cli.help import COMMANDS, MAIN_TRAINER_OPTIONS, command_help
from routing_lightning.cli.start import READERS
from routing_lightning.cli.words import TRAINER_COMMANDS, Words

ROOT = Path(__file__).parents[2]
FAST = [
    ["--help"],
    ["--version"],
    ["methods"],
    ["methods", "--help"],
    ["options", "WPL", "Trainer"],
    ["doctor", "--help"],
    ["completion", "bash"],
    *([command, "--help"] for command in (*TRAINER_COMMANDS, *READERS)),
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "train.py", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", FAST, ids=" ".join)
def test_help_takes_no_time_and_leaves_stderr_empty(words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and done.stderr == "" and done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_torch_is_not_imported_to_help():
    script = "import sys; from routing_lightning.cli import main; main(['methods']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)


def test_a_run_says_something_at_once():
    started = time.monotonic()
    words = [sys.executable, "train.py", "fit", "--config", "configs/digits_mtl.yaml", "--trainer.fast_dev_run=true"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        taken = time.monotonic() - started
        process.kill()
    assert line.startswith("routing_lightning") and taken < 1


@pytest.mark.parametrize("command", TRAINER_COMMANDS)
def test_help_names_every_config_and_the_options(command):
    text = command_help(command)
    folder = config_folder()
    for paths in configs_by_kind(folder).values():
        for path in paths:
            assert path.relative_to(folder).with_suffix("").as_posix() in text
    for word in ("--model.init_args", "aggregator", "batch_size", "max_epochs", "--ckpt_path", "--trust", "example:"):
        assert word in text


def test_each_config_is_listed_with_what_it_is(capsys):
    main(["methods"])
    out = " ".join(capsys.readouterr().out.split())
    for paths in configs_by_kind(config_folder()).values():
        for path in paths:
            assert path.name in out and first_comment(path)


def test_options_read_from_the_source_are_those_of_the_classes():
    import routing_lightning as package  # noqa: F401
    from routing_lightning import callbacks, datamodules, modules, networks, routers

    rooms = {"callbacks": callbacks, "datamodules": datamodules, "modules": modules, "networks": networks,
             "routers": routers}  # fmt: skip
    for room, names in names_of_classes().items():
        for name in names:
            described = class_of_package(name)
            part = getattr(rooms[room], name)
            if "__init__" in vars(part) and not hasattr(part, "__dataclass_fields__"):
                parameters = list(inspect.signature(part).parameters.values())
                known = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
                assert [option.name for option in described.options] == known, name
                assert all(option.help for option in described.options), name
                for option, parameter in zip(described.options, parameters, strict=False):
                    assert (option.default is None) == (parameter.default is parameter.empty), name


def test_options_of_the_trainer_are_there():
    from lightning import Trainer

    described = {option.name: option for option in trainer().options}
    assert set(MAIN_TRAINER_OPTIONS) <= set(described) == set(inspect.signature(Trainer).parameters)
    assert all(described[name].help for name in MAIN_TRAINER_OPTIONS)


def test_options_of_a_class_by_its_path(capsys):
    main(["options", "torch.optim.SGD"])
    assert "momentum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "no command is given; give one of fit, validate"),
        ("fti", "did you mean fit?"),
        ("reprot x", "did you mean report?"),
        ("fit", "python train.py fit --config configs/digits_mtl.yaml"),
        ("fit --trainer.max_epochs=3", "needs a model and data"),
        ("validate", "--ckpt_path"),
        ("options WLP", "did you mean WPL?"),
        ("completion fish", "bash or zsh"),
        ("completion bash zsh", "bash or zsh"),
        ("methods foo", "methods lists all configs and takes no words, but foo is given"),
        ("help fit", "help takes no words, but fit is given; leave it out, or say `fit --help`"),
        ("--version foo", "--version takes no words, but foo is given"),
    ],
)
def test_what_is_missing_is_told(words, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(words))
    assert stop.value.code in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and sentence in line


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.strip() == f"routing_lightning {__version__}"


def test_completion_offers_commands_configs_and_options(tmp_path):
    script = run("completion", "bash").stdout
    ask = (
        f"{script}\nCOMP_WORDS=(python train.py {{}}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "_routing_lightning; printf '%s\\n' \"${COMPREPLY[@]}\""
    )

    def offered(words: str) -> list[str]:
        text = ask.replace("{}", words, 1).replace("${{#", "${#").replace("}}", "}")
        return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()

    assert offered("va") == ["validate"]
    assert "configs/digits_mtl.yaml" in offered("fit --config configs/dig")
    assert offered("fit --trainer.max_ep") == ["--trainer.max_epochs"]
    assert set(COMMANDS) >= {"fit", "doctor"}


def test_doctor_names_what_is_there_and_what_is_not(tmp_path, cifar_tree, capsys):
    main(["doctor", str(cifar_tree)])
    out = capsys.readouterr().out
    for word in ("torch ", "lightning", "cores", "GPU", "CIFAR-MTL", "MIN-MTL"):
        assert word in out
    assert f"complete as images in {cifar_tree / 'cifar100'}" in out
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").touch()
    (mnist,) = [state for state in data_in(tmp_path) if state.name == "MNIST-MTL"]
    assert "incomplete" in mnist.text and "t10k-labels-idx1-ubyte" in mnist.text and not mnist.complete
    main(["doctor", str(cifar_tree), str(tmp_path)])
    assert "Not there in full: MNIST-MTL, MIN-MTL (" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("word", ["--root", "no/such/folder"])
def test_doctor_looks_at_folders_alone(word, capsys):
    with pytest.raises(SystemExit):
        main(["doctor", word])
    assert f"{word} is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plot", "report", "export"])
def test_what_is_not_installed_is_named(command, capsys, monkeypatch, tmp_path):
    own = [f"routing_lightning.{room}" for room in ("callbacks", "export", "plots", "report")]
    for name in [name for name in sys.modules if name.startswith((*own, "rich", "matplotlib"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        main([command, str(tmp_path), *(["--out", str(tmp_path)] if command == "export" else [])])
    said = capsys.readouterr()
    assert said.out.startswith("routing_lightning") and "is not installed" in said.err and said.err.count("\n") == 1


def test_words_are_taken_apart(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("fit: {ckpt_path: a.ckpt, trainer: {default_root_dir: x}}\n")
    inner = tmp_path / "d.yaml"
    inner.write_text("trainer: {default_root_dir: y}\nmodel: {class_path: my.Model}\n")
    words = Words.of(["--config", str(config), "fit", "--trust", "a", "--config", str(inner), "--trust=b,c"])
    assert (words.command, words.trusted) == ("fit", ["a", "b", "c"])
    assert words.value("ckpt_path") == "a.ckpt"
    assert words.value("trainer.default_root_dir") == "y"
    assert "my.Model" in words.names()
    assert Words.of(["fit", "--ckpt_path", "z", "--ckpt_path=last"]).value("ckpt_path") == "last"
