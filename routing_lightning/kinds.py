"""Types, as error messages write them, in plain words."""

import ast
import re

_NAMES = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "list": "list",
    "collections.abc.Iterable": "list",
    "dict": "mapping",
}
_PLAIN = re.compile(r"<class '([\w.]+)'>$|([\w.]+)$")
_LIST = re.compile(r"(?:list|collections\.abc\.(?:Iterable|Sequence))\[(.*)\]$")
_CHOICES = re.compile(r"(?:typing\.)?Literal(\[.*\])$")


def split_types(text: str) -> list[str]:
    """Parts between the outermost commas of a list of types."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def choices_in(text: str) -> list[str]:
    """What a ``Literal`` allows; empty for other types."""
    found = _CHOICES.match(text)
    return [str(choice) for choice in ast.literal_eval(found[1])] if found else []


def in_words(text: str) -> list[str]:
    """What a type allows, such as ``["a whole number"]``; empty for a type that has no plain words."""
    if choices := choices_in(text):
        return choices
    if within := _LIST.match(text):
        inner = in_words(within[1])
        plural = [_plural(word) for word in inner]
        return [f"a list of {' or '.join(plural)}" if inner else f"a list of {within[1].rpartition('.')[2]}"]
    found = _PLAIN.match(text)
    name = (found[1] or found[2]) if found else ""
    if name == "bool":
        return ["true", "false"]
    if name == "NoneType":
        return ["null"]
    return [f"a {_NAMES[name]}"] if name in _NAMES else []


def _plural(words: str) -> str:
    if words.startswith("a list of "):
        return f"lists of {words.removeprefix('a list of ')}"
    return f"{words[2:]}s" if words.startswith("a ") else words


def none_of(value: str, allowed: list[str]) -> str:
    """That a value is nothing of what is allowed."""
    words = list(dict.fromkeys(allowed))
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    if len(words) == 1 and words[0].startswith("a "):
        return f"{value} is no {words[0][2:]}"
    return f"{value} is none of {', '.join(words)}"
