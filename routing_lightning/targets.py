"""What tasks ask for: one of several classes, any number of labels, or a value."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal["classes", "labels", "value"]
KINDS: tuple[str, ...] = get_args(Kind)
SEPARATOR = "|"  # between the names of several labels


@dataclass(frozen=True)
class Targets:
    """What each of T tasks asks for.

    Attributes:
        kinds: of each task: ``"classes"``: one of its classes; ``"labels"``: any number of its labels; ``"value"``: a
            number.
        sizes: number of outputs of each task: its classes, its labels, or 1.
        means: mean of each task's values in training, in the user's units; 0 for tasks of another kind.
        stds: standard deviation likewise, above 0; 1 for tasks of another kind.
    """

    kinds: list[str]
    sizes: list[int]
    means: list[float]
    stds: list[float]

    def state(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def number(self, kind: Kind) -> int:
        """Number of tasks of a kind."""
        return self.kinds.count(kind)


def in_words(kind: str, values: Sequence[float], names: Sequence[str] | None) -> str:
    """What a row of a batch's labels, or of predictions, says.

    Args:
        kind: kind of the row's task.
        values: the row: the class's number first; or 0 or 1 for each label; or the value first.
        names: names of the task's classes or labels; None: numbers.
    """
    if kind == "value":
        return str(np.float32(values[0]))  # as few digits as tell it from its neighbours
    if kind == "classes":
        number = int(values[0])
        return names[number] if names and number < len(names) else str(number)
    chosen = [number for number, value in enumerate(values[: len(names) if names else None]) if value > 0]
    return SEPARATOR.join(names[number] if names else str(number) for number in chosen)
