"""Argument parser whose errors are one sentence."""

import inspect
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, NoReturn
from weakref import WeakSet

import torch
import yaml
from jsonargparse import _typehints
from jsonargparse._loaders_dumpers import get_yaml_default_loader
from jsonargparse.typing import register_type
from lightning.pytorch.cli import LightningArgumentParser

from routing_lightning.errors import hint
from routing_lightning.kinds import choices_in, in_words, none_of, split_types
from routing_lightning.trust import GET_TORCHJD

# Defaults of Lightning's callbacks that are devices or choices: text in saved configs, which then load again.
register_type(torch.device)
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, choice: dumper.represent_data(choice.value))

_KEY = re.compile(r'Parser key "([^"]+)":?')
_CLASS = re.compile(r"Problem with given class_path '([^']+)':?")
_REFUSED = re.compile(r"Option '([^']+)' is not accepted")
# What stands in front of and behind the message of a class that makes a part, such as a network.
_MAKER = re.compile(r"Type (?:collections\.abc|typing)\.Callable\[.*?\] expects a function or a callable class: ")
_MADE = re.compile(r"\. Got value: Namespace\(.*?class_path='([^']+)'.*")
# Lines of jsonargparse that say how it looked for a fitting type, not what is wrong.
_NOISE = re.compile(
    r"(- )?(Does not validate against|Subtypes:|Errors:|Expected a <class 'NoneType'>|Given value|"
    r"Subclass types expect|a class path \(str\)$|a dict with(out)? .*(entry|class_path\)|given previously\))$)|^-?\s*$"
)

_NO_PATH = re.compile(r"Expected a path but .* either not accessible or invalid")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\w+)$")
_NO_ATTRIBUTE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_UNKNOWN = re.compile(r"unrecognized arguments: --([\w.]+)|does not accept option '([\w.]+)'")
_TYPES = ("Expected a <class", "Not a valid subclass")
_NO_CLASSES = ("there is no class", "Expected a dot import")
_LISTS = ("Expected a <class 'list'>", "Expected a <class 'collections.abc.Iterable'>")
# The value of the innermost place, on a line of its own; that of a place around it is a Namespace.
_GIVEN = re.compile(r"Given value: (?!Namespace|NestedArg)(.*)")
# The types that a place takes, and a line that says that one of them does not fit.
_SUBTYPES = re.compile(r"Subtypes: \[(.*)\]$")
_EXPECTED = re.compile(r"Expected a (<class '[\w.]+'>|(?:typing\.)?Literal\[.*?\])(?:\. Got value: (.*))?$")
_SEVERAL = re.compile(r"Multiple subclasses with name (\w+)\. .*ambiguity: (.*)")
_ABSTRACT = re.compile(r"Expected an instantiatable class, but (?:([\w.]+) )?is abstract")
_NO_SUBCLASS = re.compile(r"Not a valid subclass of (\w+)")
# Options that were given alone, and of which place.
_ALONE = re.compile(r"Given value: (?:NestedArg\(key='(?:init_args\.)?|\{'init_args': \{')(?!class_path')([^']+)'")
# That a class which makes a part lacks arguments, whose name stands further down where the place may also be null.
_WANTING = re.compile(
    r"(expects a function or a callable class: the following arguments are required: [\w, .]+)$"
    r"(?=(?:\n(?!\s*Given value: ).*)*\n\s*Given value: (Namespace\(class_path='[^']+'))",
    re.MULTILINE,
)
_MISSING = re.compile(r"the following arguments are required: (.*)")
# What all classes of a kind have in common, which jsonargparse takes where options are given and no class; and one of
# the kind. Union stands for the two kinds of schedules.
_OF_KIND = {
    "Optimizer": "SGD",
    "LRScheduler": "StepLR",
    "Union": "StepLR",
    "Callback": "EarlyStopping",
    "Logger": "CSVLogger",
    "Profiler": "SimpleProfiler",
    "Strategy": "lightning.pytorch.strategies.DDPStrategy",
    "Accelerator": "lightning.pytorch.accelerators.CPUAccelerator",
    "Precision": "lightning.pytorch.plugins.MixedPrecision",
    "Module": "...",
    "Router": "RewardRouter",
    "Learner": "WPL",
    "Policy": "TabularPolicy",
    "MultiTaskDataModule": "DigitsMTLDataModule",
}
# Places that take a word or a class.
_OF_PLACE = {"trainer.strategy": "Strategy", "trainer.accelerator": "Accelerator"}
# Where the classes that a config may name by their last name come from.
_PLACES = (
    *(f"routing_lightning.{room}" for room in ("modules", "networks", "routers", "datamodules", "callbacks")),
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
    "torch.optim",
    "torch.optim.lr_scheduler",
)

# jsonargparse hands the values of nested options on as Python's text, in which null is None.
get_yaml_default_loader().add_implicit_resolver(  # type: ignore[no-untyped-call]
    "tag:yaml.org,2002:null", re.compile("^None$"), ["N"]
)

# A word given in place of a function, as pruning_fn of ModelPruning takes it, is written by jsonargparse 4.53 as
# "Unable to serialize instance" and the word, and a saved config does not load again.
if hasattr(_typehints, "serialize_as_import_path"):
    _as_path: Callable[[Any], Any] = _typehints.serialize_as_import_path
    _typehints.serialize_as_import_path = lambda value: value if isinstance(value, str) else _as_path(value)


def known_classes() -> list[str]:
    """Names of the classes that a config may name without their module."""
    found = []
    for place in _PLACES:
        if place in sys.modules:
            values = vars(sys.modules[place]).items()
            found += [name for name, value in values if inspect.isclass(value) and not name.startswith("_")]
    return found


def clearer(text: str) -> str:
    """A line of jsonargparse's in words of ours, with the nearest of what is allowed."""
    if unknown := _NO_CLASS.match(text):
        known = known_classes()
        if unknown[1] in known:
            return f"{unknown[1]} is no class that this place takes, or a package that it needs is not installed"
        return f"there is no class {unknown[1]}{hint(unknown[1], known)}"
    if attribute := _NO_ATTRIBUTE.search(text):
        found = dir(sys.modules[attribute[1]]) if attribute[1] in sys.modules else []
        return f"{attribute[1]} has no {attribute[2]}{hint(attribute[2], (name for name in found if name[0] != '_'))}"
    if module := _NO_MODULE.search(text):
        if module[1].partition(".")[0] in ("torchjd", "qpsolvers", "quadprog"):
            return f"{module[1]} is not installed; {GET_TORCHJD}"
        return f"there is no module {module[1]}; a file of your own must lie beside train.py or on PYTHONPATH"
    if several := _SEVERAL.match(text):
        paths = several[2].split(", ")
        able = [path for path in paths if path == "lightning.pytorch.cli.ReduceLROnPlateau"]  # it has a monitor
        return f"{len(paths)} classes are called {several[1]}; give the class_path {' or '.join(able or paths)}"
    if text.startswith("Expected an import path or a subclass spec, but got "):
        return f"{text.rpartition('but got ')[2]} is no class; give one as {{class_path: ..., init_args: ...}}"
    return text


def wrong_type(message: str) -> str | None:
    """That a value is of none of the types that the innermost place takes; None if more than that is wrong."""
    types = ""
    expected: list[bool] = []
    for line in message.splitlines():
        text = line.strip().removeprefix("- ")
        if subtypes := _SUBTYPES.match(text):
            types, expected = subtypes[1], []
        elif value := _GIVEN.match(text):
            parts = split_types(types)
            allowed = [in_words(part) for part in parts]
            if not (expected and all(expected) and all(allowed)):
                return None
            choices = [choice for part in parts for choice in choices_in(part)]
            given = value[1].rstrip(".")
            return none_of(given, [word for words in allowed for word in words]) + hint(given, choices)
        elif not _NOISE.match(text) or text.startswith("Expected a <class 'NoneType'>"):
            expected.append(_EXPECTED.match(text.rstrip(".")) is not None)
    return None


def in_plain_words(wrong: list[str], given: list[str]) -> list[str]:
    """The same, but what says that a type does not fit in one part that names the value and all that is allowed."""
    found = [(text, _EXPECTED.match(text)) for text in wrong]
    types = [match for _, match in found if match and in_words(match[1])]
    value = next((match[2] for match in types if match[2]), given[0] if given else None)
    if not types or value is None:
        return wrong
    allowed = [word for match in types for word in in_words(match[1])]
    choices = [choice for match in types for choice in choices_in(match[1])]
    return [none_of(value, allowed) + hint(value, choices)] + [text for text, match in found if match not in types]


def options_of(class_path: str) -> list[str]:
    """Names of a class's arguments; empty if there is no such class."""
    module, _, name = class_path.rpartition(".")
    try:
        return list(inspect.signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError):
        return []


def without_class(message: str, place: str, classes: list[str], option: str | None) -> str | None:
    """That options were given to a place in which no class stands that could take them; None if that is not so.

    Args:
        message: jsonargparse's.
        place: the key of the place.
        classes: the classes that the message names, the innermost one last.
        option: the option that is not accepted, if there is one.
    """
    alone, abstract = _ALONE.search(message), _ABSTRACT.search(message) or _NO_SUBCLASS.search(message)
    base = classes[-1].rpartition(".")[2] if classes and option else None
    if base not in _OF_KIND:
        option = alone[1].rpartition(".")[2] if alone else None
        given = _GIVEN.search(message) if abstract and not abstract[1] else None
        path = given[1] if given else abstract[1] if abstract else ""
        base = path.rpartition(".")[2] or _OF_PLACE.get(place if alone else "", "")
    if option and not classes and not abstract and base not in _OF_KIND:
        return f"{option} is given, but the place takes a value and no class; give the value"
    if base not in _OF_KIND or (abstract and abstract.re is _NO_SUBCLASS and not option):
        return None
    if option is None:
        return (
            f"{base} is only what all of its kind have in common; give the class_path of one, such as {_OF_KIND[base]}"
        )
    if base == "MultiTaskDataModule":
        return (
            f"{option} is given before there is data; give data first, such as --config configs/data/digits_mtl.yaml, "
            "and what changes it after that"
        )
    return (
        f"{option} is given, but no class that takes it; give one with class_path, such as "
        f"{{class_path: {_OF_KIND[base]}, init_args: {{{option}: ...}}}}"
    )


def one_sentence(message: str) -> str:
    """What is wrong, out of jsonargparse's nested message.

    Args:
        message: the message, over several lines.

    Returns:
        One line: the key, what is wrong with it, and for an unknown option the allowed ones.
    """
    keys: list[str] = []
    classes: list[str] = []
    wrong: list[str] = []
    given: list[str] = []
    for line in _MAKER.sub("\n", _WANTING.sub(r"\1. Got value: \2", message)).splitlines():
        text = line.strip().removeprefix("- ")
        if made := _MADE.search(text):
            classes.append(made[1])
            text = text[: made.start()]
        if key := _KEY.match(text):
            keys.append(key[1])
            text = text[key.end() :].strip()
        elif problem := _CLASS.match(text):
            classes.append(problem[1])
            text = text[problem.end() :].strip()
        if value := _GIVEN.match(text):
            given.append(value[1].rstrip("."))
        if classes and (missing := _MISSING.match(text)):
            wrong.append(f"{classes[-1].rpartition('.')[2]} needs {missing[1]}; give it in its init_args")
        elif text and not _NOISE.match(text):
            wrong.append(clearer(text.rstrip(".")))
    if given:
        wrong = [
            f"{text}. Got value: {given[0]}" if text.startswith(_TYPES) and "Got value" not in text else text
            for text in wrong
        ]
    # That something is no file, or no class where a number is wanted, says less than what else is wrong.
    wrong = [text for text in wrong if not _NO_PATH.match(text)] or wrong
    # What is wrong with a class or its options says more than that the place also takes something else.
    unknown = [text for text in wrong if text.startswith(_NO_CLASSES)]
    if unknown and any(text.startswith(_LISTS) for text in wrong):
        wrong = unknown
    elif classes:
        wrong = (
            [text for text in wrong if not text.startswith((*_TYPES, *_NO_CLASSES))]
            or [text for text in wrong if not text.startswith((*_LISTS, _TYPES[1]))]
            or wrong
        )
    if any(text.startswith("Expected a <class") for text in wrong):
        wrong = [text for text in wrong if not text.startswith(_NO_CLASSES)]
    wrong = in_plain_words(list(dict.fromkeys(wrong)), given)
    sentence = wrong_type(message) or "; or ".join(wrong) or " ".join(message.split())
    if keys:
        sentence = f"{'.'.join(keys)}: {sentence}"
    refused = _REFUSED.search(sentence)
    if classes and classes[-1].endswith(".TaskClassifier") and (other := _UNKNOWN.search(sentence)):
        sentence, refused = f"{'.'.join(keys)}: Option '{other[1] or other[2]}' is not accepted", other
    there = [refused[1].partition(".")[0]] if refused else re.findall(r"'(\w+)':", " ".join(given))
    if misspelt := next(filter(None, map(_misspelt, there)), None):
        return f"{'.'.join(keys)}: {misspelt}"
    if refused and classes and classes[-1].endswith(".TaskClassifier"):  # the type of all models stands in for one
        return (
            f"{sentence} before there is a model; give a method first, such as --config configs/methods/wpl.yaml, and "
            "what changes it after that"
        )
    if none := without_class(message, ".".join(keys), classes, refused[1] if refused else None):
        return f"{'.'.join(keys)}: {none}"
    if classes and (missing := _MISSING.search(sentence)):
        name = classes[-1].rpartition(".")[2]
        needed = ", ".join(part.strip().rpartition(".")[2] for part in missing[1].split(","))
        return (
            f"{'.'.join(keys)}: {name} needs {needed}; give it as {{class_path: {name}, init_args: {{{needed}: ...}}}}"
        )
    if classes and refused and (allowed := options_of(classes[-1])):
        sentence += f" by {classes[-1].rpartition('.')[2]}, which takes {', '.join(allowed)}{hint(refused[1], allowed)}"
    return sentence


def _misspelt(key: str) -> str | None:
    """A sentence about a key that is nearly ``class_path`` or ``init_args``; None if it is not, or one of these."""
    near = get_close_matches(key, ["class_path", "init_args"], n=1, cutoff=0.8)
    return f"there is no {key}; did you mean {near[0]}?" if near and near[0] != key else None


def what_to_give(missing: str) -> str:
    """What to do where model or data are missing."""
    parts = [part.strip().rpartition(".")[2] for part in missing.split(",")]
    ways = {"model": "a config of configs/methods", "data": "a config of configs/data"}
    give = " and ".join(ways.get(part, f"--{part}") for part in parts)
    return f"no {' and no '.join(parts)} given; add {give} with --config (`methods` lists them), or a --ckpt_path"


class SentenceParser(LightningArgumentParser):
    """LightningCLI's parser, but a mistake is told in one sentence and option names are not guessed."""

    _parsers: ClassVar["WeakSet[SentenceParser]"] = WeakSet()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self._parsers.add(self)

    def known_options(self) -> set[str]:
        """Names of the options of all commands."""
        return {
            option.removeprefix("--")
            for parser in self._parsers
            if "--config" in parser._option_string_actions  # those of commands, not of classes
            for option in parser._option_string_actions
            if option.startswith("--")
        }

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the sentence and exits with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        prog = self.prog.replace(" [options]", "")
        sentence = one_sentence(message)
        if unknown := _UNKNOWN.search(sentence):
            name = unknown[1] or unknown[2]
            known, place = self.known_options(), name.partition(".init_args.")[0]
            command = prog.rpartition(" ")[2]
            sentence = f"there is no option {name}"
            if name not in known:
                sentence += hint(place, known)
            elif hasattr(self, "_subcommands_action") and self._subcommands_action:  # the parser of all commands
                sentence = f"{name} stands before the command; give it behind, as in fit --{name}"
            else:
                sentence += f" of {command}; another command has it"
        elif missing := _MISSING.search(sentence):
            sentence = what_to_give(missing[1])
        print(f"error: {sentence} (options: {prog} --help)", file=sys.stderr)
        sys.exit(2)
