"""Every command with every config, every logger and Lightning's own switches: ``python -m tests.nightly``.

Takes about half an hour on one core, so it is no part of the suite.
"""
