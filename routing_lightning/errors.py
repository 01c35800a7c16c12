"""What is told in one sentence: mistakes that the user can mend, and numbers that are none."""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """A user's mistake, told in one sentence.

    The sentence names the value and where it stands, what is allowed, and what to do. The command line prints it
    without a traceback and exits with a code other than 0.
    """


class NonFiniteError(UsageError):
    """NaN or infinity within a run, whose state must not be saved any more."""


def hint(word: str, known: Iterable[str]) -> str:
    """A question that names the nearest known word; empty if none is near."""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""
