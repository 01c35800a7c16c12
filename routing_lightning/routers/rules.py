"""What options have to do with what a checkpoint holds.

Routers, policies and learners say it of theirs in ``option_rules``; ``null_means`` names classes that null means.
"""

from collections.abc import Mapping
from enum import Enum, auto


class Rule(Enum):
    """What an option has to do with what is saved."""

    READS = auto()
    """What is saved is read by it: with another value it would mean something else, or not fit."""
    SETTLED = auto()
    """What it asks for lies in the saved state, which holds."""
    OPTIMIZER = auto()
    """What it asks for lies in the state of an optimizer or schedule, which a new run makes anew."""
    COUNTS = auto()
    """What a schedule has counted is in its unit."""
    PARTS = auto()
    """It says which weights learn, and so what the optimizer holds; the saved policies do not depend on it."""
    FREE = auto()
    """It holds from here on."""


OptionRules = Mapping[str, Rule]
"""Rules of a class's own options, by name; those of its base classes hold, too, and all others are free."""
