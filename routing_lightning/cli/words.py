"""What the words of a command line say before they are parsed. Pure text: nothing is imported for it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path

TRAINER_COMMANDS = ("fit", "validate", "test", "predict")

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_TAKES_CONFIG = ("--config", "-c")


@dataclass
class Words:
    """A command line, in parts.

    Attributes:
        before: words before the command.
        command: ``fit``, ``validate``, ``test`` or ``predict``; None if there is none.
        after: words after it, without ``--trust``.
        trusted: modules given with ``--trust``.
    """

    before: list[str]
    command: str | None
    after: list[str]
    trusted: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str]) -> "Words":
        """Takes a command line apart."""
        rest, trusted = _without_trust(words)
        rest = _with_local_configs(rest)
        position = 0
        while position < len(rest) and rest[position] not in TRAINER_COMMANDS:
            position += 2 if rest[position] in _TAKES_CONFIG else 1
        if position >= len(rest):
            return cls(rest, None, [], trusted)
        return cls(rest[:position], rest[position], rest[position + 1 :], trusted)

    def values(self, *options: str) -> list[str]:
        """Values of options after the command, in order: those of ``--option value`` and of ``--option=value``."""
        return list(_values(self.after, options))

    def configs(self) -> list[dict[str, Any]]:
        """Contents of the ``--config`` files, in order, as far as they can be read (the parser tells what cannot)."""
        outer = [content.get(self.command or "") for content in map(_content, _values(self.before, _TAKES_CONFIG))]
        inner = [_content(path) for path in self.values(*_TAKES_CONFIG)]
        return [content for content in (*outer, *inner) if isinstance(content, dict)]

    def check_configs(self) -> None:
        """Looks at the ``--config`` files before anything slow: what is wrong with one is told with its name.

        Raises:
            UsageError: if one is no file, holds no keys with values, or stands before the command whose keys it has.
        """
        for given in (*_values(self.before, _TAKES_CONFIG), *self.values(*_TAKES_CONFIG)):
            _check_config(given)
        for given in _values(self.before, _TAKES_CONFIG):
            strange = [str(key) for key in _content(given) if key not in (*TRAINER_COMMANDS, "config")]
            if strange:
                raise UsageError(
                    f"config {given:.100} stands before the command, but {', '.join(strange[:3])} in it belong to a "
                    f"command; give it behind: {self.command or 'fit'} --config {given:.100}"
                )

    def value(self, option: str) -> Any:
        """Value of a dotted option: of the command line, else of the last config that has it, else None."""
        given = self.values(f"--{option}")
        if given:
            return given[-1]
        for config in reversed(self.configs()):
            found: Any = config
            for key in option.split("."):
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None:
                return found
        return None

    def names(self) -> set[str]:
        """All that may be a path of a class in the words and configs: what the user has named."""
        found = {word.rpartition("=")[2] for word in (*self.before, *self.after)}
        for config in self.configs():
            found.update(_texts(config))
        for word in tuple(found):
            if word.startswith(("{", "[")):  # a value in YAML
                found.update(_DOTTED_IN.findall(word))
        return {word for word in found if _DOTTED.fullmatch(word)}


_DOTTED_IN = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def _without_trust(words: Sequence[str]) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    trusted: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--trust" and position + 1 < len(words):
            trusted += words[position + 1].split(",")
            position += 1
        elif word.startswith("--trust="):
            trusted += word.partition("=")[2].split(",")
        else:
            rest.append(word)
        position += 1
    return rest, [module.strip() for module in trusted if module.strip()]


def _values(words: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            if equals:
                yield value
            elif position + 1 < len(words):
                yield words[position + 1]


def _with_local_configs(words: Sequence[str]) -> list[str]:
    """The words, with ``~`` and ``file://`` written out in the paths of configs."""
    rest: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if rest and rest[-1] in _TAKES_CONFIG:
            rest.append(local_path(word))
        else:
            rest.append(f"{name}={local_path(value)}" if equals and name in _TAKES_CONFIG else word)
    return rest


def _check_config(given: str) -> None:
    try:
        is_file = Path(given).is_file()
    except (OSError, ValueError):  # a text too long for a name, or with a null byte
        is_file = False
    if given == "-" or (not is_file and _is_pipe(given)):
        raise UsageError(f"config {given} is a pipe, which can be read but once; write it to a file and give its path.")
    shape = "give keys with values, as the files in configs have them"
    try:
        content = yaml.safe_load(Path(given).read_text(encoding="utf-8") if is_file else given)
    except UnicodeDecodeError as error:
        raise UsageError(f"config {given} is no text in UTF-8 (byte {error.start}); {shape}.") from error
    except RecursionError as error:
        raise UsageError(f"config {given:.100} is nested too deeply; {shape}.") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = problem or "a character that YAML does not allow"
        raise UsageError(f"config {given:.100} is no YAML ({problem}{place}); {shape}.") from error
    if isinstance(content, dict):
        return
    if is_file:
        raise UsageError(f"config {given} holds {'nothing' if content is None else 'no keys'}; {shape}.")
    raise UsageError(f"config {given!r} is no file; give the path of one (`methods` lists those that there are).")


def _is_pipe(given: str) -> bool:
    try:
        path = Path(given)
        return path.is_fifo() or path.is_char_device() or path.is_socket()
    except (OSError, ValueError):
        return False


def _content(path: str) -> dict[str, Any]:
    """Content of a config file; empty if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        text = path  # a config may be given as text
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
