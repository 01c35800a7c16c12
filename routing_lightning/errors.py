"""The one exception type for mistakes that the user can mend."""


class UsageError(ValueError):
    """A user's mistake, told in one sentence.

    The sentence names the value and where it stands, what is allowed, and what to do. The command line prints it
    without a traceback and exits with a code other than 0.
    """
