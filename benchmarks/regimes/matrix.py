"""The matrix of runs: regimes x methods x seeds, from matrix.yaml."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("matrix.yaml")
FILTERS = 32  # of the paper's network


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        regime: name of the regime.
        method: name of the method.
        seed: seed of the training.
        epochs: epochs.
        config: config of ``fit``, with ``$name`` where something is filled in.
        filters: channels of a convolution.
    """

    regime: str
    method: str
    seed: int
    epochs: int
    config: dict[str, Any]
    filters: int

    @property
    def key(self) -> str:
        """The same for the same training, wherever the data lie."""
        said = json.dumps([self.config, self.seed, self.epochs, self.filters], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What it is, for a person."""
        return f"{self.regime}: {self.method}, seed {self.seed}"


def read(file: Path = FILE) -> dict[str, Any]:
    """The regimes, methods and protocol of a file."""
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content


def runs(
    matrix: Mapping[str, Any],
    seeds: Sequence[int],
    regimes: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    epochs: int | None = None,
) -> list[Run]:
    """All runs of a matrix, regime by regime, or of some regimes and methods; with other epochs if they are given.

    Raises:
        ValueError: if there is no such regime or method.
    """
    for what, wanted in (("regimes", regimes), ("methods", methods)):
        unknown = [name for name in wanted or () if name not in matrix[what]]
        if unknown:
            raise ValueError(f"there are no {what} {', '.join(unknown)}; give any of {', '.join(matrix[what])}")
    found = []
    for regime, options in matrix["regimes"].items():
        for seed in seeds:
            for method, model in matrix["methods"].items():
                if (regimes and regime not in regimes) or (methods and method not in methods):
                    continue
                config = merged(matrix["protocol"], {"model": model, "data": options["data"]})
                found.append(
                    Run(regime, method, seed, epochs or options["epochs"], config, options.get("filters", FILTERS))
                )
    return found


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested dicts as one; where both have a value the second one's counts."""
    result = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if both else value
    return result


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """A config with ``values`` in place of ``$name``.

    Raises:
        KeyError: if one is not given.
    """
    if isinstance(value, Mapping):
        return {name: filled(inner, values) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, values) for inner in value]
    return values[value[1:]] if isinstance(value, str) and value.startswith("$") else value
