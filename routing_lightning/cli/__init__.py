"""The command line. Nothing is imported before it is known what is asked for: torch alone takes seconds."""

from routing_lightning.cli.start import main

__all__ = ["main"]
