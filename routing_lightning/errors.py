"""What is told in one sentence: mistakes that the user can mend, and numbers that are none."""


class UsageError(ValueError):
    """A user's mistake, told in one sentence.

    The sentence names the value and where it stands, what is allowed, and what to do. The command line prints it
    without a traceback and exits with a code other than 0.
    """


class NonFiniteError(UsageError):
    """NaN or infinity within a run, whose state must not be saved any more."""
