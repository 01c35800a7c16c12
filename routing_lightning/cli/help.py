"""Help that leads: what there is, one example, and how to see more. Nothing of torch is imported for it."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from routing_lightning import __version__
from routing_lightning.cli.configs import KINDS, config_folder, configs_by_kind, first_comment
from routing_lightning.cli.describe import Description, class_of_package, names_of_classes, trainer
from routing_lightning.cli.words import Words
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path

COMMANDS = {
    "fit": "train a model on data",
    "validate": "accuracy of a checkpoint on the validation data",
    "test": "accuracy of a checkpoint on the test set",
    "predict": "write the predictions of a checkpoint on the test set as a table",
    "plot": "draw what the router of a run learned, as PNG and SVG",
    "report": "write one HTML page about runs",
    "export": "write the network of each task as a file that needs nothing of this package",
    "prune": "write a checkpoint without the blocks that no task uses",
    "extend": "write a checkpoint that new tasks have joined",
    "methods": "list the configs: jobs, data, methods, networks",
    "options": "options of a class, such as: options WPL",
    "doctor": "what is installed, which devices and data there are, and what is missing",
    "completion": "completion of words for bash or zsh",
}
# Options of the Trainer that most runs need, in order; `options Trainer` has all.
MAIN_TRAINER_OPTIONS = (
    "max_epochs",
    "max_steps",
    "max_time",
    "accelerator",
    "devices",
    "strategy",
    "precision",
    "limit_train_batches",
    "limit_val_batches",
    "val_check_interval",
    "log_every_n_steps",
    "logger",
    "callbacks",
    "default_root_dir",
    "enable_progress_bar",
    "fast_dev_run",
)
RUN_OPTIONS = (
    ("--config FILE", "a config, or several: later ones overrule earlier ones, options overrule configs"),
    ("--ckpt_path PATH", "a checkpoint; or last: the newest below the run folder; or best: the best of that run"),
    ("--weights PATH", "of fit: a checkpoint, likewise, with whose weights and policies a new run begins"),
    ("--name NAME", "name of the run's folder in lightning_logs/ (default: method, data and seed)"),
    ("--seed_everything N", "seed, an integer from 0; true draws one and records it (default: true)"),
    ("--threads N", "threads to compute with; auto goes by the size of a batch (default: auto)"),
    ("--record LIST", "callbacks that record what the router learns; null: none (default: all of them)"),
    ("--trust MODULE", "a module of your own that a checkpoint may name; may be given several times"),
    ("--print_config", "print the config that comes out of all this, and stop"),
)
# Sizes of a model that come from the data.
FROM_DATA = ("num_tasks", "num_classes", "image_shape")
WIDTH = 100


def answer(words: list[str]) -> bool:
    """Answers what needs no Trainer: help, the version, and words with which nothing can be done.

    Returns:
        Whether it did.

    Raises:
        SystemExit: with code 0 after help, with 2 if no command was given or there is none of that name.
    """
    first = words[0] if words else ""
    if first in ("help", "--version") and words[1:]:
        wrong(f"{first} takes no words, but {words[1]} is given; leave it out, or say `{words[1]} --help`")
    if first in ("-h", "--help", "help"):
        print(overview())
        raise SystemExit(0)
    if first == "--version":
        print(f"routing_lightning {__version__}")
        raise SystemExit(0)
    parts = Words.of(words)
    if parts.command is None:
        if any(word in words for word in ("-h", "--help")):
            print(overview())
            raise SystemExit(0)
        wrong(no_command(first))
    elif any(word in ("-h", "--help") for word in parts.after):
        print(command_help(parts.command))
        raise SystemExit(0)
    elif not gives_a_model(parts):
        wrong(
            f"{parts.command} needs a model and data: give configs, such as `{example(parts.command)}` (`methods` "
            "lists them), or a checkpoint with --ckpt_path"
        )
    return False


def wrong(sentence: str) -> NoReturn:
    """Tells a mistake in the words and stops.

    Raises:
        SystemExit: with code 2.
    """
    print(f"error: {sentence} (--help says more)", file=sys.stderr)
    raise SystemExit(2)


def no_command(word: str) -> str:
    """What to say if there is no such command."""
    commands = ", ".join(COMMANDS)
    if not word or word.startswith("-"):
        return f"no command is given; give one of {commands}"
    near = get_close_matches(word, COMMANDS, n=1)
    return f"there is no command {word}; " + (f"did you mean {near[0]}?" if near else f"give one of {commands}")


def gives_a_model(words: Words) -> bool:
    """Whether anything in the words may say what the model or the data are."""
    options = ("--config", "-c", "--ckpt_path", "--weights", "--model", "--data")
    given = [word.partition("=")[0] for word in (*words.before, *words.after)]
    return any(word in options or word.startswith(("--model.", "--data.", "--print_shtab")) for word in given)


def example(command: str) -> str:
    """A command line that works."""
    if command == "fit":
        return "python train.py fit --config configs/digits_mtl.yaml --trainer.max_epochs 3"
    return f"python train.py {command} --ckpt_path last"


def overview() -> str:
    """The text of ``--help``."""
    lines = [f"routing_lightning {__version__}: routing networks for multi-task learning", ""]
    lines += ["usage: python train.py COMMAND [OPTION ...]", "", f"example: {example('fit')}", "", "commands:"]
    lines += _rows(COMMANDS.items())
    lines += ["", "`COMMAND --help` has the options of a command; --version the version."]
    return "\n".join(lines)


def command_help(command: str) -> str:
    """The text of ``fit --help`` and its like."""
    lines = [f"usage: python train.py {command} [--config FILE ...] [--ckpt_path PATH] [OPTION VALUE ...]", ""]
    lines += [f"{COMMANDS[command].capitalize()}.", "", f"example: {example(command)}", "", "configs:"]
    folder = config_folder()
    if folder is not None:
        lines += _rows(
            (KINDS[kind], ", ".join(path.relative_to(folder).with_suffix("").as_posix() for path in paths))
            for kind, paths in configs_by_kind(folder).items()
        )
        lines += _wrapped("A job is complete; otherwise give data and a method, then perhaps a network and processes. "
                          "`python train.py methods` says what each is.")  # fmt: skip
    lines += ["", "options of the run:", *_rows(RUN_OPTIONS)]
    if described := trainer():
        chosen = {option.name: option for option in described.options}
        names = [name for name in MAIN_TRAINER_OPTIONS if name in chosen]
        lines += ["", "options of the training, --trainer.NAME (`options Trainer` has all):"]
        lines += _rows((name, _first_sentence(chosen[name].help)) for name in names)
    for title, name, place in (
        ("model", "RoutedClassifier", "--model.init_args.NAME"),
        ("data", "MultiTaskDataModule", "--data.init_args.NAME"),
    ):
        if found := class_of_package(name):
            lines += ["", f"options of the {title}, {place} (those of {name}):"]
            lines += _rows((option.name, _with_default(option.help, option.default)) for option in found.options
                           if option.name not in FROM_DATA)  # fmt: skip
    lines += ["", "classes (`python train.py options CLASS` has the options of one):"]
    lines += _rows((room, ", ".join(names)) for room, names in names_of_classes().items())
    lines += ["", "All options, with their types: python train.py options Trainer RoutedClassifier WPL ..."]
    return "\n".join(lines)


def methods(words: Sequence[str]) -> None:
    """Lists the configs, each with what it is.

    Raises:
        UsageError: if there is anything to list beside them, or nothing.
    """
    if _wants_help(words, "usage: python train.py methods\n\nLists the configs, each with its first line."):
        return
    if words:
        raise UsageError(
            f"methods lists all configs and takes no words, but {words[0]} is given; leave it out, or say "
            f"`options {words[0]}` if that is a class."
        )
    folder = config_folder()
    if folder is None:
        raise UsageError("there is no folder configs here; go to a checkout of this package, which has it.")
    for kind, paths in configs_by_kind(folder).items():
        print(f"{KINDS[kind]}:")
        print("\n".join(_rows((str(path), first_comment(path)) for path in paths)))
        print()
    print(f"example: python train.py fit --config {folder / 'data' / 'digits_mtl.yaml'} "
          f"--config {folder / 'methods' / 'wpl.yaml'}")  # fmt: skip


def options(words: Sequence[str]) -> None:
    """Prints the options of classes.

    Raises:
        UsageError: if there is no such class.
    """
    known = [name for names in names_of_classes().values() for name in names]
    usage = f"usage: python train.py options CLASS [CLASS ...]\n\nOptions of classes: {', '.join(known)}, Trainer;"
    if _wants_help(words, f"{usage}\nor of any by its path, such as torch.optim.SGD.") or not words:
        if not words:
            print(usage)
        return
    for name in words:
        found = trainer() if name in ("Trainer", "trainer") else class_of_package(name) or _imported(name)
        if found is None:
            near = get_close_matches(name, known, n=1)
            also = f"did you mean {near[0]}?" if near else "`options` alone lists them; give others by their path."
            raise UsageError(f"there is no class {name}; {also}")
        print(f"{found.name}: {found.summary}")
        print("\n".join(_rows((o.name, _with_default(o.help or o.type, o.default)) for o in found.options)) + "\n")


def _imported(path: str) -> Description | None:
    """Describes a class of another package by its path, the only way to which is to import it."""
    if "." not in path:
        return None
    from importlib import import_module
    from inspect import getsourcefile

    from routing_lightning.cli.describe import class_in

    module, _, name = path.rpartition(".")
    try:
        source = getsourcefile(getattr(import_module(module), name))
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
    return class_in(Path(source), name) if source else None


def doctor(words: Sequence[str]) -> None:
    """Says what is installed and what is missing."""
    if _wants_help(words, "usage: python train.py doctor [ROOT ...]\n\nLooks at installation, devices and data roots."):
        return
    from routing_lightning.cli.doctor import examine

    examine([Path(local_path(word)) for word in words])


def completion(words: Sequence[str]) -> None:
    """Prints a script that completes words."""
    usage = 'usage: eval "$(python train.py completion bash)"   (or zsh)'
    if _wants_help(words, usage):
        return
    if list(words) not in (["bash"], ["zsh"]):
        raise UsageError("completion needs the name of a shell; give bash or zsh.")
    from routing_lightning.cli.completion import script

    print(script(words[0]))


QUICK: dict[str, Callable[[Sequence[str]], None]] = {
    "methods": methods,
    "options": options,
    "doctor": doctor,
    "completion": completion,
}
"""Commands that need no torch to begin with."""


def _wants_help(words: Sequence[str], text: str) -> bool:
    if any(word in ("-h", "--help") for word in words):
        print(text)
        return True
    return False


def _rows(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Two columns, wrapped."""
    lines = []
    pairs = list(rows)
    indent = min(max((len(left) for left, _ in pairs), default=0), 34) + 4
    for left, right in pairs:
        text = textwrap.wrap(right, WIDTH - indent, break_on_hyphens=False) or [""]
        start = f"  {left}".ljust(indent)
        if len(left) + 4 > indent:
            lines.append(start)
            start = " " * indent
        lines += [(start + text[0]).rstrip(), *(" " * indent + line for line in text[1:])]
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _with_default(text: str, default: str | None) -> str:
    return f"{text} (required)" if default is None else f"{text} [{default}]"


def _first_sentence(text: str) -> str:
    """The first sentence and the default of one of Lightning's texts."""
    first = text.split(". ")[0].rstrip(".")
    _, found, default = text.partition("Default: ")
    return f"{first} [{default.strip().rstrip('.')}]" if found and "Default: " not in first else first
