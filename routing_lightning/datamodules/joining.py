"""Tasks that join others: the old ones keep their numbers, whether their images are there or not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from routing_lightning.datamodules.listing import Listing, some
from routing_lightning.errors import UsageError


def with_known_tasks(listing: Listing, old: Mapping[str, Sequence[str]], source: str | Path) -> Listing:
    """Numbers the tasks of a listing behind old ones, which keep the order of their labels.

    Args:
        listing: the images that are there, of old tasks, new tasks or both.
        old: labels of each old task, in their order.
        source: what the listing comes from, for the sentence.

    Raises:
        UsageError: if an old task has a label that it did not have, or not all tasks are of classes.
    """
    if listing.rows is not None:
        raise UsageError(f"{source} has tasks of other kinds than classes: only tasks of classes can join others")
    found = dict(zip(listing.task_names, listing.class_names, strict=True))
    unknown = [f"{task}/{name}" for task in old for name in found.get(task, ()) if name not in old[task]]
    if unknown:
        raise UsageError(
            f"{source} has {some(unknown, 'label', 'labels')} that the old task did not have when the network was "
            "trained on it: leave these images out, or give them as a task of another name"
        )
    names = [*old, *(name for name in listing.task_names if name not in old)]
    classes = [list(old[name]) if name in old else found[name] for name in names]
    tasks, labels = listing.tasks.copy(), listing.labels.copy()
    for before, name in enumerate(listing.task_names):
        after = names.index(name)
        chosen = listing.tasks == before
        tasks[chosen] = after
        moved = np.array([classes[after].index(label) for label in listing.class_names[before]], np.int64)
        labels[chosen] = moved[listing.labels[chosen]]
    return replace(
        listing, tasks=tasks, labels=labels, task_names=names, class_names=classes, kinds=["classes"] * len(names)
    )
