"""Splits of images that may be labelled for several tasks: each image is in one part, for all its tasks."""

import hashlib
from collections.abc import Sequence

import numpy as np

from routing_lightning.datamodules.listing import DRAWN, PARTS

TRAIN, VAL, TEST = range(len(PARTS))


def draw_parts(
    rows: np.ndarray,
    groups: np.ndarray,
    given: np.ndarray,
    names: Sequence[str],
    val_fraction: float,
    test_fraction: float,
    seed: int,
) -> np.ndarray:
    """Draws the parts that are not given, so that each group is split in the same proportions.

    A group is a label of a task. As an image goes to one part for all its tasks, groups are filled one after the other,
    the smallest first, and what smaller ones have settled counts for the larger. Each group has an image to train on;
    of the others one goes to validation and one to test where the fraction is above 0 and there are enough. Where the
    split of some images is given and none of them is for validation, ``val_fraction`` of those for training are held
    out.

    Which images are drawn depends on ``seed`` and their names alone, so that a few more images move few others.

    Args:
        rows: image of each entry, in [0, M), (E,).
        groups: group of each entry, (E,).
        given: position in ``PARTS`` of each entry, or ``DRAWN``, (E,).
        names: name of each image, (M,).
        val_fraction: part of the images for validation.
        test_fraction: part of the images for testing, of those whose split is drawn.
        seed: seed of the draw.

    Returns:
        Position in ``PARTS`` of each entry, (E,).
    """
    keys = [
        hashlib.blake2b(f"{seed}\0{name}".encode(errors="surrogateescape"), digest_size=8).digest() for name in names
    ]
    turn = np.empty(len(names), np.int64)
    turn[np.argsort(np.array(keys, dtype="S8") if keys else np.empty(0), kind="stable")] = np.arange(len(names))
    parts = np.full(len(names), DRAWN)
    np.maximum.at(parts, rows, given)  # where two entries differ the image is kept out of training
    members = _members(rows, groups, turn)
    drawn = parts == DRAWN
    _fill(parts, drawn, members, val_fraction, test_fraction)
    result = np.where(given == DRAWN, parts[rows], given)
    if val_fraction > 0 and not (result == VAL).any():
        pool = parts == TRAIN
        parts[pool] = DRAWN
        _fill(parts, pool, members, val_fraction, 0)
        result = np.where((result == TRAIN) & pool[rows], parts[rows], result)
    return result


def _members(rows: np.ndarray, groups: np.ndarray, turn: np.ndarray) -> list[np.ndarray]:
    """The images of each group, each once, in the order of ``turn``."""
    order = np.lexsort((turn[rows], groups))
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    return np.split(rows[order], ends)


def _fill(
    parts: np.ndarray, pool: np.ndarray, members: list[np.ndarray], val_fraction: float, test_fraction: float
) -> None:
    """Settles the parts of the images in ``pool``, in place."""
    within = [images[pool[images]] for images in members]
    for images in sorted(within, key=len):
        count = len(images)
        if count == 0:
            continue
        val = min(max(round(val_fraction * count), 1), count - 1) if val_fraction > 0 else 0
        test = min(max(round(test_fraction * count), 1), count - 1 - val) if test_fraction > 0 else 0
        settled = parts[images]
        free = images[settled == DRAWN]
        room = len(free) if (settled == TRAIN).any() else len(free) - 1
        for part, wanted in ((TEST, test), (VAL, val)):
            taken = max(0, min(wanted - int((settled == part).sum()), room))
            parts[free[:taken]] = part
            free, room = free[taken:], room - taken
        parts[free] = TRAIN
