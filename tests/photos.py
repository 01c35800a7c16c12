"""A small folder of tasks, as a user would have it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Labels = Mapping[str, Sequence[str]]


def write_photos(root: Path, tasks: Labels, count: int = 10) -> Path:
    """Writes root/<task>/<label>/*.jpg: each label has a colour of its own, each picture a size of its own."""
    generator = np.random.default_rng(0)
    for task, labels in tasks.items():
        for label in labels:
            colour = generator.integers(0, 200, 3)
            folder = root / task / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = colour + generator.integers(0, 50, (20 + i, 30, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.jpg")
    return root
