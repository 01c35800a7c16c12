"""Options of a class, read from its source: importing torch to print a few lines would take seconds."""

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@dataclass
class Option:
    """An argument of a class.

    Attributes:
        name: its name.
        type: its type, as written.
        default: its default, as written; None if it must be given.
        help: what its class says about it, with units and range.
    """

    name: str
    type: str
    default: str | None
    help: str


@dataclass
class Description:
    """What a class says about itself."""

    name: str
    summary: str
    options: list[Option]


def class_in(path: Path, name: str) -> Description | None:
    """Describes a class of a file; None if the file has none of that name."""
    text = path.read_text()
    if f"class {name}" not in text:
        return None
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _described(node)
    return None


def class_of_package(name: str) -> Description | None:
    """Describes a public class of this package by its last name; None if there is none."""
    name = name.rpartition(".")[2]
    for path in sorted(PACKAGE.rglob("*.py")):
        if found := class_in(path, name):
            return found
    return None


def names_of_classes() -> dict[str, list[str]]:
    """Public classes that configs name, by folder."""
    rooms = ("modules", "networks", "routers", "datamodules", "callbacks")
    found = {}
    for room in rooms:
        exported = re.search(r"__all__ = \[(.*?)\]", (PACKAGE / room / "__init__.py").read_text(), re.DOTALL)
        words = re.findall(r'"(\w+)"', exported[1]) if exported else []
        found[room] = [word for word in words if word[0].isupper()]
    return found


def trainer() -> Description | None:
    """Lightning's Trainer."""
    spec = find_spec("lightning")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "pytorch" / "trainer" / "trainer.py"
    return class_in(path, "Trainer") if path.is_file() else None


def _described(node: ast.ClassDef) -> Description:
    inits = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    texts = (ast.get_docstring(node) or "", *(ast.get_docstring(init) or "" for init in inits))
    helps = {name: text for doc in texts for name, text in _arguments(doc).items()}
    options: list[Option] = []
    if inits:
        arguments = inits[0].args
        positional = arguments.args[1:]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [
            *zip(positional, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            kind = ast.unparse(argument.annotation) if argument.annotation else ""
            value = None if default is None else ast.unparse(default)
            options.append(Option(argument.arg, kind, value, helps.get(argument.arg, "")))
    return Description(node.name, _plain(texts[0].split("\n\n")[0]), options)


def _arguments(doc: str) -> dict[str, str]:
    """What a docstring says about each argument."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", doc, re.DOTALL | re.MULTILINE)
    if not section:
        return {}
    found: dict[str, str] = {}
    name = None
    for line in section[1].splitlines():
        start = re.match(r"    (?:    )?(\w+)(?: \(.*?\))?: (.*)", line)
        if start and len(line) - len(line.lstrip()) == _indent(section[1]):
            name = start[1]
            found[name] = start[2]
        elif name is not None and line.strip():
            found[name] += " " + line.strip()
    return {name: _plain(text) for name, text in found.items()}


def _indent(text: str) -> int:
    return min((len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip()), default=0)


def _plain(text: str) -> str:
    """Text without the marks of docstrings."""
    text = re.sub(r":\w+:`~?([^`]*)`", lambda link: link[1].rpartition(".")[2], " ".join(text.split()))
    return text.replace("``", "")
