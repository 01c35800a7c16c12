"""What a checkpoint may name: the parts of this package and of the libraries it is made of, and nothing else.

A checkpoint says as text which classes its model and data are made of. Text that came with a file must not decide what
is imported and called, so each name is checked against the type that its place asks for before anything is called.
"""

import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

import torch

from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path

LIBRARIES = ("routing_lightning", "torch", "torchvision", "torchmetrics", "lightning", "torchjd")
"""Top-level modules whose classes a checkpoint may name."""

GET_TORCHJD = 'install it with `pip install -e ".[jd]"` in a checkout of this package'
"""How to get the optional library that combines the gradients of the tasks."""

_SPEC = {"class_path", "init_args", "dict_kwargs"}
_MAKER = "lightning.pytorch.cli.instantiate_module"
"""The function by which Lightning makes a class of hyperparameters: a checkpoint says which, and may say no other."""
# Types whose values are written as they are: no class is named there.
_PLAIN_MODULES = {"builtins", "pathlib", "os", "numbers", "datetime", "enum", "typing"}
_PLAIN_TORCH = {"Tensor", "dtype", "device", "Generator", "memory_format", "layout", "Size"}
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MOST_VALUES = 100_000


class Trust:
    """Decides which classes a text from elsewhere may name.

    Args:
        source: where the text comes from, for the sentence, such as ``checkpoint last.ckpt``.
        modules: modules of the user's that may be named, too; each with all below it.
        names: classes that the user has named, by their full path.
    """

    def __init__(self, source: str, modules: Collection[str] = (), names: Collection[str] = ()) -> None:
        self.source = source
        self.modules = tuple(modules)
        self.names = frozenset(names)
        self._values = 0

    def check(self, value: Any, hint: Any, place: str) -> Any:
        """Checks all that a value names, at any depth, before anything is called.

        Args:
            value: numbers, text, lists and dicts.
            hint: the type that the place asks for; None if it is not known.
            place: dotted name of the place, for the sentence.

        Returns:
            The value with short names of classes made full.

        Raises:
            UsageError: if it names what may not be named there.
        """
        self._values += 1
        if self._values > _MOST_VALUES:
            raise UsageError(f"{self.source} holds a config of more than {_MOST_VALUES} values; give another one.")
        kinds = list(_alternatives(hint))
        parts = tuple(part for kind in kinds for part in _part_types(kind))
        if isinstance(value, dict):
            return self._check_dict(value, kinds, parts, place)
        if isinstance(value, (list, tuple)):
            items = [item for kind in kinds for item in _item_types(kind)]
            return [self.check(item, _union(items), f"{place}.{number}") for number, item in enumerate(value)]
        if isinstance(value, str) and not kinds and _DOTTED.fullmatch(value):
            # Of what type the place is cannot be known from here, but may be for the parser.
            raise self._refusal(value, place, "whose type is not known")
        if isinstance(value, str) and _asks_for_names(kinds, parts) and not _is_choice(value, kinds):
            return self._find(value, parts, place)
        if isinstance(value, str) and any(_holds_parts(kind) for kind in kinds) and not _is_choice(value, kinds):
            # The parser would read it as YAML.
            raise self._refusal(value, place, "where several parts are asked for, not a text")
        return value

    def _check_dict(self, value: dict[Any, Any], kinds: list[Any], parts: tuple[type, ...], place: str) -> Any:
        if not parts and not any(_is_callable(kind) for kind in kinds):
            values = _union([item for kind in kinds for item in _value_types(kind)])
            if "class_path" in value or any(str(key).startswith("class_path.") for key in value):
                raise self._refusal(value.get("class_path"), place, "where no class is asked for")
            return {key: self.check(item, values, f"{place}.{key}") for key, item in value.items()}
        path = value.get("class_path")
        if not isinstance(path, str) or not set(value) <= _SPEC:
            raise UsageError(
                f"{self.source} has {sorted(map(str, value))} for {place}, where class_path and init_args are allowed; "
                "leave --ckpt_path out, or give another checkpoint."
            )
        full = self._find(path, parts, place)
        hints, defaults = signature_of(imported(full))
        checked: dict[str, Any] = {"class_path": full}
        for key, arguments in (("init_args", value.get("init_args")), ("dict_kwargs", value.get("dict_kwargs"))):
            if arguments is None:
                continue
            if not isinstance(arguments, dict) or any(not str(name).isidentifier() for name in arguments):
                raise UsageError(f"{self.source} has {key} for {place} that are no names with values; give another.")
            checked[key] = {}
            for name, argument in arguments.items():
                default = defaults.get(name)
                if isinstance(argument, str) and _is_own_default(argument, default):
                    checked[key][name] = argument
                else:
                    checked[key][name] = self.check(argument, hints.get(name), f"{place}.{name}")
        return checked

    def _find(self, name: str, parts: tuple[type, ...], place: str) -> str:
        """The full path of a class that may stand at a place.

        Raises:
            UsageError: if it may not.
        """
        if "." not in name:
            found = sorted({_path_of(kind) for part in parts for kind in _subclasses(part) if kind.__name__ == name})
            if len(found) != 1:
                raise self._refusal(
                    name,
                    place,
                    f"which is no {_described(parts)} that is known"
                    if not found
                    else f"which may be {' or '.join(found)}",
                )
            name = found[0]
        if not self._is_trusted(name):
            raise self._refusal(
                name, place, f"which is neither of this package nor of {', '.join(LIBRARIES[1:])}", may_trust=True
            )
        try:
            part = imported(name)
        except ImportError as error:
            if "torchjd" in str(error):
                raise UsageError(f"{self.source} needs torchjd, which is not installed; {GET_TORCHJD}.") from error
            raise self._refusal(name, place, f"which cannot be imported ({error})") from error
        is_class = inspect.isclass(part) and bool(parts)
        # What a function of the user's gives is checked where it is called.
        if not (issubclass(part, parts) if is_class else self._is_users(name) and callable(part)):
            raise self._refusal(name, place, f"which is no {_described(parts)}")
        if not self._is_trusted(_path_of(part)):
            raise self._refusal(_path_of(part), place, "which belongs to another library", may_trust=True)
        return name

    def _is_users(self, name: str) -> bool:
        return name in self.names or any(name == module or name.startswith(f"{module}.") for module in self.modules)

    def _is_trusted(self, name: str) -> bool:
        return name.partition(".")[0] in LIBRARIES or self._is_users(name)

    def _refusal(self, name: Any, place: str, why: str, may_trust: bool = False) -> UsageError:
        trust = (
            f"--trust {str(name).rpartition('.')[0]} if you trust that module, or --{place} and a class of your choice"
        )
        remedy = (
            trust if may_trust else f"another checkpoint, or a config with a {place} that you trust and no checkpoint"
        )
        return UsageError(f"{self.source} names {name} for {place}, {why}; nothing was called. Give {remedy}.")


def check_hyperparameters(values: dict[str, Any], kind: type, modules: Collection[str] = ()) -> None:
    """Checks what the hyperparameters of a checkpoint name, for ``load_from_checkpoint`` of a class.

    Args:
        values: the hyperparameters, as Lightning keeps them.
        kind: the class that is loaded; its own module is trusted.
        modules: further modules of the user's that may be named.

    Raises:
        UsageError: if they name what may not be named there.
    """
    arguments = {name: value for name, value in values.items() if not str(name).startswith("_")}
    spec = {"class_path": values.get("_class_path", _path_of(kind)), "init_args": arguments}
    Trust("the checkpoint", [*modules, kind.__module__]).check(spec, kind, "model")


def check_way(content: dict[str, Any], values: Any, kind: type) -> None:
    """Checks that ``load_from_checkpoint`` of Lightning makes a class of the hyperparameters that are looked at here.

    Args:
        content: the checkpoint.
        values: its hyperparameters.
        kind: the class that is loaded.

    Raises:
        UsageError: if it would add others, make something else of them, or call another function for it.
    """
    from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS  # slow, and not needed to read configs

    arguments = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    argument = content.get(getattr(kind, "CHECKPOINT_HYPER_PARAMS_NAME", ""))
    found = [f"hyperparameters in {old}" for old in CHECKPOINT_PAST_HPARAMS_KEYS if old in content]
    if not isinstance(values, dict):
        found.append(f"hyperparameters that are a {type(values).__name__}")
    elif values.get("_instantiator", _MAKER) != _MAKER:
        found.append(f"{values['_instantiator']} to make its class by")
    if argument in arguments:
        found.append(f"its hyperparameters for {argument}")
    if found:
        raise UsageError(
            f"the checkpoint names {found[0]}, which no checkpoint of this package does; nothing was called. Give "
            "another one."
        )


def checked_file(given: Any, key: str, kind: type, modules: Collection[str] = ()) -> tuple[Any, Any]:
    """Checks what a checkpoint names, before Lightning's ``load_from_checkpoint`` of a class makes it.

    Args:
        given: path of the checkpoint, or an open file.
        key: where it keeps the hyperparameters.
        kind: the class that is loaded.
        modules: modules of the user's that may be named.

    Returns:
        The path on this machine, or the open file as it was; and the class that the checkpoint names, ``kind`` or one
        that derives from it.

    Raises:
        UsageError: if it names what it may not name, or does not lie on this machine.
    """
    if isinstance(given, (str, os.PathLike)):
        given = local_path(given)
        content = torch.load(given, map_location="cpu", weights_only=True, mmap=True)
    else:
        place = given.tell()
        content = torch.load(given, map_location="cpu", weights_only=True)
        given.seek(place)
    values = content.get(key) or {}
    check_way(content, values, kind)
    check_hyperparameters(values, kind, modules)
    return given, imported(values["_class_path"]) if "_class_path" in values else kind


def imported(path: str) -> Any:
    """What a path names: an attribute of a module, or of a class in it.

    Raises:
        ImportError: if there is no such module or attribute.
    """
    if not all(word.isidentifier() for word in path.split(".")):
        raise ImportError(f"{path} is no path of a class")
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise ImportError(str(error)) from error


def signature_of(part: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types and defaults of the arguments of a class or function; with ``**kwargs`` also those of its base classes."""
    hints: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    chain: Iterable[Any] = [part]
    if inspect.isclass(part):
        chain = [vars(kind)["__init__"] for kind in part.__mro__ if "__init__" in vars(kind) and kind is not object]
    for function in chain:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (ValueError, TypeError):
            break
        known = _hints_of(function)
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name == "self":
                continue
            if parameter.name not in hints:
                hints[parameter.name] = known.get(parameter.name)
                defaults[parameter.name] = parameter.default
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return hints, defaults


def _hints_of(function: Any) -> dict[str, Any]:
    """Types of a function's arguments, as far as they can be resolved."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that its module imports for type checkers only
        found = {}
        for name, annotation in getattr(function, "__annotations__", {}).items():
            try:
                single = types.SimpleNamespace(__annotations__={name: annotation})
                found[name] = typing.get_type_hints(single, getattr(function, "__globals__", {}))[name]
            except Exception:
                continue
        return found


def _alternatives(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if origin is typing.Union or origin is types.UnionType:
        for kind in typing.get_args(hint):
            yield from _alternatives(kind)
    elif origin is typing.Annotated:
        yield from _alternatives(typing.get_args(hint)[0])
    elif hint is not None:
        yield hint


def takes_null(hint: Any) -> bool:
    """Whether a place of this type may hold None; also where the type is not known."""
    kinds = list(_alternatives(hint))
    return not kinds or any(
        kind in (type(None), Any, object) or isinstance(kind, TypeVar) or None in typing.get_args(kind)
        for kind in kinds
    )


def _union(kinds: list[Any]) -> Any:
    """Type of all kinds; None where nothing is known."""
    return typing.Union[tuple(kinds)] if kinds else None  # noqa: UP007


def _is_callable(kind: Any) -> bool:
    return kind in (Callable, typing.Callable) or typing.get_origin(kind) in (Callable, type) or kind is type


def _part_types(kind: Any) -> Iterator[type]:
    """Classes whose subclasses may be named where this type is asked for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Callable, typing.Callable):
        yield torch.nn.Module  # such as the transforms in a transform
    elif origin is Callable and arguments:
        for result in _alternatives(arguments[-1]):
            yield from _part_types(result)
    elif origin is type and arguments:
        for result in _alternatives(arguments[0]):
            yield from _part_types(result)
    elif inspect.isclass(origin) and origin.__module__ not in ("builtins", "collections.abc", "collections"):
        yield origin
    elif inspect.isclass(kind) and origin is None and not _is_plain(kind):
        yield kind


def _holds_parts(kind: Any) -> bool:
    """Whether this is a list or dict of things that name classes, at any depth."""
    inner = [part for item in (*_item_types(kind), *_value_types(kind)) for part in _alternatives(item)]
    return any(_asks_for_names([part], tuple(_part_types(part))) or _holds_parts(part) for part in inner)


def _is_plain(kind: type) -> bool:
    if kind.__module__ in _PLAIN_MODULES or kind.__module__.startswith(("collections", "_")):
        return True
    return kind.__module__ == "torch" and kind.__name__ in _PLAIN_TORCH


def _item_types(kind: Any) -> Iterator[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if inspect.isclass(origin) and issubclass(origin, (list, tuple, set, Iterable)) and not issubclass(origin, dict):
        yield from (argument for argument in arguments if argument is not Ellipsis)


def _value_types(kind: Any) -> Iterator[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if inspect.isclass(origin) and issubclass(origin, typing.Mapping) and len(arguments) == 2:
        yield arguments[1]


def _asks_for_names(kinds: list[Any], parts: tuple[type, ...]) -> bool:
    return bool(parts) or any(_is_callable(kind) or kind is types.ModuleType for kind in kinds)


def _is_choice(value: str, kinds: list[Any]) -> bool:
    """Whether a text is one of the texts that a place lists, or any text without a dot where text is allowed."""
    if any(typing.get_origin(kind) is typing.Literal and value in typing.get_args(kind) for kind in kinds):
        return True
    return str in kinds and "." not in value


def _is_own_default(name: str, default: Any) -> bool:
    """Whether a name is that of the function which the argument has anyway."""
    if not inspect.isfunction(default) or not default.__module__.startswith("routing_lightning."):
        return False
    return name == _path_of(default)


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: type
    for below in type.__subclasses__(kind):
        yield from _subclasses(below)


def _path_of(part: Any) -> str:
    return f"{getattr(part, '__module__', None)}.{getattr(part, '__qualname__', None)}"


def _described(parts: tuple[type, ...]) -> str:
    return " or ".join(dict.fromkeys(part.__name__ for part in parts)) or "part"
