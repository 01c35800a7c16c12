"""Where a command line begins: answers at once what needs no torch, and hands on the rest."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

from routing_lightning import __version__
from routing_lightning.cli.threads import wait_passively
from routing_lightning.cli.words import TRAINER_COMMANDS, Words
from routing_lightning.errors import UsageError

READERS = {
    "plot": "routing_lightning.cli.drawing",
    "report": "routing_lightning.cli.drawing",
    "export": "routing_lightning.cli.exporting",
    "prune": "routing_lightning.cli.exporting",
    "extend": "routing_lightning.cli.exporting",
}
"""Commands that read what runs left, and where their functions of the same name are."""

if TYPE_CHECKING:
    from routing_lightning.cli.app import RoutingCLI


def main(args: Sequence[str] | None = None) -> "RoutingCLI | None":
    """Runs the command line: a method of the Trainer, or one of the commands that train nothing.

    Args:
        args: the words after ``train.py``; those of the process by default.

    Returns:
        The CLI after its run, with ``trainer``, ``model`` and ``datamodule``; None after a command that trains nothing.

    Raises:
        SystemExit: with code 1 after a user's mistake, told in one sentence; with 2 for wrong arguments; with 130
            after Ctrl-C outside of a training.
    """
    words = list(sys.argv[1:] if args is None else args)
    try:
        if run_quick(words):
            return None
        return import_run()(words)
    except BrokenPipeError:  # who read what is said, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1) from None
    except (UsageError, OSError, ModuleNotFoundError) as error:
        print(f"error: {sentence_of(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        raise SystemExit(130) from None


def import_run() -> "Callable[[list[str]], RoutingCLI]":
    """Imports what trains.

    Raises:
        KeyboardInterrupt: after Ctrl-C, also where a library in the midst of its import made another error of it, or
            none.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if is_main else None
    try:
        from routing_lightning.cli.app import run
    except Exception:
        if not pressed:
            raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
    return run


def sentence_of(error: Exception) -> str:
    """A user's mistake in a sentence.

    Raises:
        ModuleNotFoundError: again, where it is of no library that this package needs: a fault of the code.
    """
    if isinstance(error, ModuleNotFoundError):
        from routing_lightning.cli.doctor import needed

        library = (error.name or "").partition(".")[0]
        if library not in {name.partition("[")[0].lower() for name, _ in needed()}:
            raise error
        return f"{library} is not installed; install it with: pip install -e . (train.py doctor looks at the rest)."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; give a path that can be read or written."
    if isinstance(error, OSError):  # of a file that is open, or of what is printed
        return f"what comes out cannot be written ({error.strerror or error}); make room, or write to another place."
    return str(error)


def run_quick(words: list[str]) -> bool:
    """Answers what needs no Trainer; else greets, since the imports to come take seconds.

    Returns:
        Whether all is said.
    """
    from routing_lightning.cli import help as texts

    command = words[0] if words else ""
    if command in READERS:
        if not {"-h", "--help"} & set(words):
            print(f"routing_lightning {__version__}: {command}", flush=True)
        getattr(import_module(READERS[command]), command)(words[1:])
        return True
    if command in texts.QUICK:
        texts.QUICK[command](words[1:])
        return True
    if texts.answer(words):
        return True
    parts = Words.of(words)
    parts.check_configs()
    wait_passively()
    # DDP says of every model all of whose parameters a batch used that it need not have looked for unused ones.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Torch's profiler notes on stderr when it starts and stops, and that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    quiet = any(word.startswith(("--print_config", "--print_shtab")) or ".help" in word for word in words)
    if parts.command in TRAINER_COMMANDS and not quiet and int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(f"routing_lightning {__version__}: {parts.command}", flush=True)
    return False
