"""Keeps what does not concern the user off the terminal: on success stderr stays empty."""

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

# Warnings that do not concern the user, each with its reason.
_IDLE_WARNINGS = (
    # The data lies in memory and a batch is one index operation: workers would only cost.
    ".*does not have many workers.*",
    # A run of a few steps is meant to be one, and the last value of each curve is written anyway.
    ".*smaller than the logging interval.*",
    # Each run has a folder of its own; what this one holds was put there by itself.
    "Checkpoint directory .* exists and is not empty.*",
    # Said of each run that goes on from a checkpoint: sizes and paths of the callbacks are the new run's.
    ".*the dirpath has changed from.*",
    # Modules that a user's network keeps in evaluation mode are the user's choice.
    ".*module\\(s\\) in eval mode.*",
    # Nothing is logged where the user has switched that off.
    ".*but `Trainer\\(barebones=True\\)` is configured.*",
    # Lightning takes what torch's profiler has found at the end of each cycle.
    ".*Profiler clears events at the end of each cycle.*",
    # The strategies are told how to treat blocks without samples, where that is needed.
    ".*find_unused_parameters=True was specified.*",
)
_PACKAGE = str(Path(__file__).parents[1])
# Lightning's own messages that were asked for with an option, such as `verbose`.
_ASKED_FOR = ("lightning.pytorch.callbacks.", "lightning.pytorch.tuner", "lightning.pytorch.profilers")


class Teller(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes warnings to stderr, messages of this package to stdout, and drops chatter of Lightning."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a message where it belongs."""
        if record.levelno >= logging.WARNING:
            self.stream = sys.stderr
        elif record.pathname.startswith(_PACKAGE) or record.name.startswith(_ASKED_FOR):
            self.stream = sys.stdout
        else:
            return
        if self.stream is not None:  # as it is where the output was closed
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Says nothing where a message cannot be written: whoever has closed the output does not listen."""


def _as_told(plain: Callable[..., str]) -> Callable[..., str]:
    """A way to write warnings by which those of this package stand without their place in the code."""

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if filename.startswith(_PACKAGE) and issubclass(category, UserWarning):
            return f"note: {message}\n"
        return plain(message, category, filename, lineno, line)

    formatted.told = True  # type: ignore[attr-defined]
    return formatted


def keep_quiet() -> None:
    """Sets up warnings and logging for a command line; does no more the second time."""
    if not hasattr(warnings.formatwarning, "told"):
        warnings.formatwarning = _as_told(warnings.formatwarning)
    for message in _IDLE_WARNINGS:
        warnings.filterwarnings("ignore", message)
    # What libraries say to their developers.
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        for module in ("lightning", "torch", "tensorboard", "jsonargparse", "torchmetrics", "pkg_resources"):
            warnings.filterwarnings("ignore", category=category, module=rf"{module}(\.|$)")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning", "lightning_utilities"):
        logger = logging.getLogger(name)
        if any(type(handler) is logging.StreamHandler for handler in logger.handlers):
            logger.handlers = [h for h in logger.handlers if type(h) is not logging.StreamHandler]
            logger.addHandler(Teller())


class QuietInChildren:
    """Held by a Trainer, makes the processes that it spawns as quiet as this one: they come to it by pickling alone."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Is made again by making quiet, of which nothing is left."""
        return keep_quiet, ()
