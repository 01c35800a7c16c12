"""Runs that are stopped again and again at random moments: see :mod:`tests.soak.__main__`."""
