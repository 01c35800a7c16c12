"""Argument parser whose errors are one sentence."""

import inspect
import re
import sys
from importlib import import_module
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

_KEY = re.compile(r'Parser key "([^"]+)":?')
_CLASS = re.compile(r"Problem with given class_path '([^']+)':?")
_REFUSED = re.compile(r"Option '([^']+)' is not accepted")
# What stands in front of and behind the message of a class that makes a part, such as a network.
_MAKER = re.compile(r"Type collections\.abc\.Callable\[.*?\] expects a function or a callable class: ")
_MADE = re.compile(r"\. Got value: Namespace\(.*?class_path='([^']+)'.*")
# Lines of jsonargparse that say how it looked for a fitting type, not what is wrong.
_NOISE = re.compile(
    r"(- )?(Does not validate against|Subtypes:|Errors:|Expected a <class 'NoneType'>|Given value)|^-?\s*$"
)


def options_of(class_path: str) -> list[str]:
    """Names of a class's arguments; empty if there is no such class."""
    module, _, name = class_path.rpartition(".")
    try:
        return list(inspect.signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError):
        return []


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
    for line in _MAKER.sub("\n", message).splitlines():
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
        if text and not _NOISE.match(text):
            wrong.append(text.rstrip("."))
    sentence = "; or ".join(wrong) or " ".join(message.split())
    if keys:
        sentence = f"{'.'.join(keys)}: {sentence}"
    if classes and _REFUSED.search(sentence) and (allowed := options_of(classes[-1])):
        sentence += f" by {classes[-1].rpartition('.')[2]}, which takes {', '.join(allowed)}"
    return sentence


class SentenceParser(LightningArgumentParser):
    """LightningCLI's parser, but a mistake is told in one sentence and option names are not guessed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the sentence and exits with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        prog = self.prog.replace(" [options]", "")
        print(f"error: {one_sentence(message)} (options: {prog} --help)", file=sys.stderr)
        sys.exit(2)
