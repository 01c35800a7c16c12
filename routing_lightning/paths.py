"""Paths as people write them: the one place where ``~``, ``$HOME`` and ``file://`` are understood."""

import os
import re
from argparse import ArgumentTypeError
from pathlib import Path
from urllib.parse import unquote

from routing_lightning.errors import UsageError

# One slash is what pathlib leaves of two; a single letter is a drive of Windows.
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def local_path(path: str | os.PathLike[str]) -> str:
    """A path on this machine: ``~`` is the home folder, ``$NAME`` a variable, ``file://`` may stand in front.

    After ``file://`` a %20 is a space. What is there under the name as it stands, such as ``a$b``, is taken so.

    Raises:
        UsageError: if it lies elsewhere, such as ``s3://...`` or ``memory://...``, in the home folder of nobody, or
            names a variable that is not set.
    """
    text = os.fspath(path)
    names = [short or long for short, long in _VARIABLE.findall(text)]
    if names and not os.path.lexists(text):
        unset = [name for name in names if name not in os.environ]
        if unset:
            raise UsageError(f"{text} names the variable {unset[0]}, which is not set; set it, or write the path out.")
        path = text = os.path.expandvars(text)
    scheme = _SCHEME.match(text)
    if scheme is None:
        path = os.path.expanduser(text)
        if path == text and re.match(r"~\w", text):
            raise UsageError(
                f"{text} is in the home folder of a user who does not exist; write ./{text} if it is a name."
            )
        return path
    if scheme[1] != "file":
        raise UsageError(f"{text} lies on {scheme[1]}, not on this machine; give the path of a folder or file here.")
    return "/" + unquote(text[scheme.end() :]).lstrip("/")


def run_folder(folder: Path) -> Path:
    """The folder of the run that a folder with checkpoints belongs to: what holds ``checkpoints``, else itself.

    A file name with a slash, such as ``{epoch}-{val/acc:.2f}``, puts it into a folder of its own below.
    """
    return next((place.parent for place in (folder, *folder.parents) if place.name == "checkpoints"), folder)


def argument(text: str) -> Path:
    """The same for an argument that argparse reads, with the error that it expects."""
    try:
        return Path(local_path(text))
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from error
