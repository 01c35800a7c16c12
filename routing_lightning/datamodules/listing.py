"""Which image has which label in which task: read off the names of folders and files."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from routing_lightning.errors import UsageError
from routing_lightning.targets import Kind

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
        labels: in-task label of each entry, (E,), int64; entries of one task and label are split alike. Of several
            labels it is the rarest, and their number if there is none; of values it is 0.
        parts: position in ``PARTS`` of each entry, or ``DRAWN``, (E,), int64.
        task_names: names of the tasks, sorted.
        class_names: for each task the names of its labels, sorted; ``["value"]`` for one of values.
        columns: further columns of a table by name, (E,) texts each.
        notes: sentences about what was left out.
        kinds: kind of each task.
        rows: what each entry says where not all tasks are of classes, (E, K), float64, as
            :class:`~routing_lightning.datamodules.base.MultiTaskDataset` describes it; None: ``labels`` says it.
    """

    paths: list[str]
    tasks: np.ndarray
    labels: np.ndarray
    parts: np.ndarray
    task_names: list[str]
    class_names: list[list[str]]
    columns: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    rows: np.ndarray | None = None


def listing_of(
    source: str | Path,
    paths: Sequence[str],
    tasks: Sequence[str],
    labels: Sequence[str],
    parts: Sequence[int],
    columns: dict[str, list[str]] | None = None,
    notes: Sequence[str] = (),
    kinds: Mapping[str, Kind] | None = None,
) -> Listing:
    """Numbers tasks and labels in the order of their names.

    Args:
        source: what the entries come from, for the sentences.
        paths: path of each entry's image, (E,).
        tasks: name of each entry's task, (E,).
        labels: name of each entry's label, or what a table says in its place, (E,).
        parts: position in ``PARTS`` of each entry, or ``DRAWN``, (E,).
        columns: further columns.
        notes: sentences about what was left out.
        kinds: kinds of tasks by name; those that are not named are of classes.

    Raises:
        UsageError: if there is no entry, a task of classes has a single one, values are no numbers or differ too little
            for float32, or ``kinds`` names a task that is not there.
    """
    if not paths:
        raise UsageError(f"{source} names no labelled image: check root, or the manifest, and the layout")
    # one name may be written in two ways, with accents composed or apart, by different systems
    tasks = [unicodedata.normalize("NFC", name) for name in tasks]
    labels = [unicodedata.normalize("NFC", name) for name in labels]
    kind_of = {unicodedata.normalize("NFC", name): kind for name, kind in (kinds or {}).items()}
    task_names = sorted(set(tasks))
    unknown = sorted(set(kind_of) - set(task_names))
    if unknown:
        raise UsageError(
            f"kinds names {some(unknown, 'task', 'tasks')} that {source} does not have: it has "
            f"{some(task_names, 'task', 'tasks')}, so correct kinds or the table"
        )
    number = {name: position for position, name in enumerate(task_names)}
    task_numbers = np.array([number[name] for name in tasks], np.int64)
    label_numbers = np.zeros(len(paths), np.int64)
    class_names: list[list[str]] = []
    single, rows = [], []
    for task, name in enumerate(task_names):
        entries = np.flatnonzero(task_numbers == task).tolist()
        kind = kind_of.get(name, "classes")
        texts = [labels[entry] for entry in entries]
        if kind == "value":
            found, own, values = ["value"], np.zeros(len(texts), np.int64), _values(source, name, paths, entries, texts)
        elif kind == "labels":
            found, own, values = _label_sets(source, name, texts)
        else:
            found = sorted(set(texts))
            within = {label: position for position, label in enumerate(found)}
            own = np.array([within[text] for text in texts], np.int64)
            values = own[:, None].astype(np.float64)
            if len(found) < 2:
                single.append(name)
        class_names.append(found)
        label_numbers[entries] = own
        rows.append((entries, values))
    if single:
        raise UsageError(
            f"{source} has {some(single, 'task', 'tasks')} with a single label, but a task needs at least 2 to tell "
            "apart: add labels, or leave the task out"
        )
    all_kinds: list[Kind] = [kind_of.get(name, "classes") for name in task_names]
    in_rows = None
    if set(all_kinds) != {"classes"}:
        in_rows = np.zeros((len(paths), max(len(names) for names in class_names)))
        for entries, values in rows:
            in_rows[entries, : values.shape[1]] = values
    return Listing(
        list(paths),
        task_numbers,
        label_numbers,
        np.array(parts, np.int64),
        task_names,
        class_names,
        columns or {},
        list(notes),
        all_kinds,
        in_rows,
    )


def _values(
    source: str | Path, task: str, paths: Sequence[str], entries: Sequence[int], texts: Sequence[str]
) -> np.ndarray:
    """The numbers of a task of values, (E, 1)."""
    values = np.array([_number(text) for text in texts], np.float64)
    wrong = np.flatnonzero(~(np.abs(values) < np.finfo(np.float32).max))
    if len(wrong):
        named = [f"{texts[place]!r} of {paths[entries[place]]}" for place in wrong.tolist()]
        raise UsageError(
            f"{source} has {some(named, 'value', 'values')} in task {task} that "
            f"{'is no finite number' if len(wrong) == 1 else 'are no finite numbers'}: write them like 3.5 or -2e3, or "
            "leave the cell empty to leave the line out"
        )
    if len(values) > 1 and values.min() == values.max():  # a task may begin with one sample
        raise UsageError(
            f"{source} has task {task} of kind value with the single value {texts[0]}, so nothing could be learned: "
            "add others, or leave the task out"
        )
    mean, spread = float(values.mean()), float(values.std())
    if 0 < spread < 1e-5 * abs(mean):
        raise UsageError(
            f"{source} has values in task {task} that are {mean:g} on average and differ by {spread:.2g}, which is too "
            "little for numbers of 7 digits: take off a constant from all of them"
        )
    return values[:, None]


def _number(text: str) -> float:
    try:
        return np.nan if "_" in text else float(text)
    except ValueError:
        return np.nan


def _label_sets(source: str | Path, task: str, texts: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of a task's labels; the rarest of each entry, (E,), their number where it has none; (E, K) of 0 or 1."""
    sets = [{name.strip() for name in re.split("[|;]", text)} - {""} for text in texts]
    counts = Counter(name for names in sets for name in names)
    found = sorted(counts)
    if not found:
        raise UsageError(f"{source} has task {task} of kind labels without any label: add some, or leave the task out")
    within = {label: position for position, label in enumerate(found)}
    rarest = [min((counts[name], within[name]) for name in names)[1] if names else len(found) for names in sets]
    values = np.zeros((len(texts), len(found)))
    for entry, names in enumerate(sets):
        values[entry, [within[name] for name in names]] = 1
    return found, np.array(rarest, np.int64), values


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
