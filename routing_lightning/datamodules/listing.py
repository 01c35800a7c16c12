"""Which image has which label in which task: read off the names of folders and files."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from routing_lightning.errors import UsageError

PARTS = ("train", "val", "test")
"""Names of the parts of a split, by their numbers."""

DRAWN = -1
"""Number in place of a part where the split is still to be drawn."""


@dataclass(frozen=True)
class Listing:
    """Labelled images, as a folder or a table names them; no image was opened.

    Attributes:
        paths: path of each entry's image, relative to the root or absolute, (E,).
        tasks: task of each entry, (E,), int64.
        labels: in-task label of each entry, (E,), int64.
        parts: position in ``PARTS`` of each entry, or ``DRAWN``, (E,), int64.
        task_names: names of the tasks, sorted.
        class_names: for each task the names of its labels, sorted.
        columns: further columns of a table by name, (E,) texts each.
        notes: sentences about what was left out.
    """

    paths: list[str]
    tasks: np.ndarray
    labels: np.ndarray
    parts: np.ndarray
    task_names: list[str]
    class_names: list[list[str]]
    columns: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def listing_of(
    source: str | Path,
    paths: Sequence[str],
    tasks: Sequence[str],
    labels: Sequence[str],
    parts: Sequence[int],
    columns: dict[str, list[str]] | None = None,
    notes: Sequence[str] = (),
) -> Listing:
    """Numbers tasks and labels in the order of their names.

    Args:
        source: what the entries come from, for the sentences.
        paths: path of each entry's image, (E,).
        tasks: name of each entry's task, (E,).
        labels: name of each entry's label, (E,).
        parts: position in ``PARTS`` of each entry, or ``DRAWN``, (E,).
        columns: further columns.
        notes: sentences about what was left out.

    Raises:
        UsageError: if there is no entry, or a task has a single label.
    """
    if not paths:
        raise UsageError(f"{source} names no labelled image: check root, or the manifest, and the layout")
    # one name may be written in two ways, with accents composed or apart, by different systems
    tasks = [unicodedata.normalize("NFC", name) for name in tasks]
    labels = [unicodedata.normalize("NFC", name) for name in labels]
    found: dict[str, set[str]] = {}
    for task, label in zip(tasks, labels, strict=True):
        found.setdefault(task, set()).add(label)
    task_names = sorted(found)
    class_names = [sorted(found[name]) for name in task_names]
    single = [name for name, classes in zip(task_names, class_names, strict=True) if len(classes) < 2]
    if single:
        raise UsageError(
            f"{source} has {some(single, 'task', 'tasks')} with a single label, but a task needs at least 2 to tell "
            "apart: add labels, or leave the task out"
        )
    number = {name: position for position, name in enumerate(task_names)}
    within = [{name: position for position, name in enumerate(classes)} for classes in class_names]
    task_numbers = np.array([number[name] for name in tasks], np.int64)
    label_numbers = np.array([within[number[task]][label] for task, label in zip(tasks, labels, strict=True)], np.int64)
    return Listing(
        list(paths),
        task_numbers,
        label_numbers,
        np.array(parts, np.int64),
        task_names,
        class_names,
        columns or {},
        list(notes),
    )


def scan_folder(root: Path) -> Listing:
    """Lists ``root/<task>/<split>/<label>/*`` or ``root/<task>/<label>/*``; each task may have either layout.

    A task has a split if all its folders are called train, val or test. Hidden files and folders are passed over, as
    are files whose ending is none of an image; symbolic links are followed.

    Args:
        root: folder of the tasks.

    Raises:
        UsageError: if the folder is missing or has none of these layouts, or a task has a single label.
    """
    if not root.is_dir():
        raise UsageError(f"root {root} is no folder: set root to the folder that holds one folder per task")
    tasks = folder_contents(root).folders
    if not tasks:
        raise UsageError(f"root {root} holds no folders, but must hold one folder per task: set root, or a manifest")
    if len(tasks) > 1 and set(tasks) <= set(PARTS):
        raise UsageError(
            f"root {root} holds the folders {', '.join(tasks)}, but splits stand below the tasks, as in "
            "<task>/train/<label>/: move them, set root to the folder above for a single task, or write a manifest"
        )
    scan = _Scan(root)
    for task in tasks:
        scan.add_task(task)
    return listing_of(root, scan.paths, scan.tasks, scan.labels, scan.parts, notes=scan.notes())


class _Scan:
    """Entries found so far, and what was passed over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: list[str] = []
        self.tasks: list[str] = []
        self.labels: list[str] = []
        self.parts: list[int] = []
        self.no_images: list[str] = []
        self.empty: list[str] = []
        self.beside: list[str] = folder_contents(root).images
        self.deeper: list[str] = []

    def add_task(self, task: str) -> None:
        """Adds the images of a task, whichever layout it has."""
        loose, _, folders = folder_contents(self.root / task)
        if loose:
            raise UsageError(
                f"{self.root / task} holds {some(loose, 'image', 'images')} that stand in no folder of a label: the "
                "layout is <task>/<label>/* or <task>/<split>/<label>/*, so move them, set root to the folder above "
                "if this folder is a label, or write a manifest"
            )
        found = {name: folder_contents(self.root / task / name) for name in folders}
        if not folders:
            self.empty.append(task)
        elif set(folders) <= set(PARTS):
            for part, contents in found.items():
                if contents.images:
                    raise UsageError(
                        f"{self.root / task / part} holds images, but a folder of a split must hold one folder per "
                        "label: move them there, or write a manifest if this is the name of a label"
                    )
                for label in contents.folders:
                    prefix = f"{task}/{part}/{label}"
                    self._add(task, label, prefix, PARTS.index(part), folder_contents(self.root / prefix))
        else:
            self._check_depth(task, found)
            for label, contents in found.items():
                self._add(task, label, f"{task}/{label}", DRAWN, contents)

    def _check_depth(self, task: str, found: dict[str, "Contents"]) -> None:
        """Refuses a split of another name, and folders deeper than labels, rather than miss their images."""
        deeper = [name for name, contents in found.items() if contents.folders and not contents.images]
        unknown = [name for name in deeper if name not in PARTS]
        if deeper:
            names = [f"{task}/{name}" for name in unknown or [name for name in found if name not in deeper]]
            raise UsageError(
                f"{self.root} has {some(names, 'folder', 'folders')} that fit neither <task>/<label>/* nor "
                f"<task>/<split>/<label>/*: a split is called {', '.join(PARTS[:-1])} or {PARTS[-1]}, and all folders "
                "of a task are splits or all are labels; rename or move them"
            )

    def _add(self, task: str, label: str, prefix: str, part: int, contents: "Contents") -> None:
        names = contents.images
        self.no_images += [f"{prefix}/{name}" for name in contents.others]
        self.deeper += [f"{prefix}/{name}" for name in contents.folders]
        if not names:
            self.empty.append(prefix)
        self.paths += [f"{prefix}/{name}" for name in names]
        self.tasks += [task] * len(names)
        self.labels += [label] * len(names)
        self.parts += [part] * len(names)

    def notes(self) -> list[str]:
        """Sentences about what was passed over."""
        passed_over = (
            (self.empty, "folder", "folders", "without images"),
            (self.deeper, "folder", "folders", "that stand inside those of labels"),
            (self.no_images, "file", "files", "that are no images by name"),
            (self.beside, "image", "images", "that stand beside the tasks"),
        )
        return [
            f"left out {some(names, one, many)} of {self.root} {reason}"
            for names, one, many, reason in passed_over
            if names
        ]


def some(names: Sequence[str], one: str, many: str) -> str:
    """How many there are, and the first five by name: "7 images (a, b, c, d, e, ...)"."""
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} {one if len(names) == 1 else many} ({listed})"


class Contents(NamedTuple):
    """Names in a folder, sorted, without hidden ones.

    Attributes:
        images: files that are images by their endings.
        others: all other files.
        folders: folders, or links to them.
    """

    images: list[str]
    others: list[str]
    folders: list[str]


def folder_contents(folder: Path) -> Contents:
    """What is in a folder."""
    endings = _endings()
    contents = Contents([], [], [])
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                contents.folders.append(entry.name)
            # a link that leads nowhere is a file that is missing, which is told later
            elif os.path.splitext(entry.name)[1].lower() in endings:
                contents.images.append(entry.name)
            else:
                contents.others.append(entry.name)
    return Contents(*(sorted(names) for names in contents))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle
        return False


@cache
def _endings() -> frozenset[str]:
    """Endings of the formats that Pillow can read."""
    known: Iterable[tuple[str, str]] = Image.registered_extensions().items()
    return frozenset(ending for ending, name in known if name in Image.OPEN)
