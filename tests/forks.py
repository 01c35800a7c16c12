"""Programs in forks of a process that has imported everything: as clean as a process of their own, seconds faster.

What is about starting itself (imports, arguments of the interpreter, how a process ends) needs a process of its own.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only

from routing_lightning.cli.start import READERS

ROOT = Path(__file__).parents[1]
PROGRAM = "from routing_lightning.cli import main\nmain()"
LIMIT = 300  # seconds for a program that is asked for
OF_PROCESSES = ("LOCAL_RANK", "PL_GLOBAL_SEED", "MASTER_PORT", "MASTER_ADDR", "NODE_RANK", "WORLD_SIZE")


OF_TRAINING = [
    "routing_lightning.cli.app", "matplotlib.backends.backend_agg", "rich.console", "rich.progress",
    "torch.utils.tensorboard", "attr", "fsspec.implementations.local", "sklearn.datasets",
]  # fmt: skip
OF_THE_REST = [
    *READERS.values(), "routing_lightning.report", "routing_lightning.export", "matplotlib.backends.backend_svg",
    "tensorboard.backend.event_processing.event_accumulator", "tensorboard.plugins.image.metadata", "torch._dynamo",
    "torch.export", "networkx", "torchvision.models",
]  # fmt: skip
OF_EXTRAS = ["onnx", "onnxscript", "onnxruntime", "torch.onnx._internal.exporter", "torchjd.aggregation"]


def warm_up(everything: bool) -> None:
    """Imports and compiles what commands need, so that forks need not; nothing here starts a thread of torch.

    Args:
        everything: also what commands need that train nothing, which takes as long again.
    """
    for name in (*OF_TRAINING, *(OF_THE_REST if everything else [])):
        import_module(name)
    for name in OF_EXTRAS if everything else []:
        with contextlib.suppress(ImportError):
            import_module(name)
    import torch
    from PIL import Image

    from routing_lightning.routers.wpl import wpl_update

    Image.init()
    rows, averages, first = torch.full((1, 1, 2), 0.5), torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    wpl_update(rows, averages, first, first[:, None], torch.ones(1, 1), policy_lr=0.1)


def forked(code: str, words: Sequence[str], out: Path, err: Path, folder: Path, environment: dict[str, str]) -> int:
    """Starts a program in a fork of this process, which is warmed up.

    Args:
        code: its source; runs as ``__main__``.
        words: its arguments.
        out: file for stdout.
        err: file for stderr.
        folder: its working directory.
        environment: variables that it has besides those of this process.

    Returns:
        Number of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    status = 0
    try:
        for descriptor, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ.update(environment)
        rank_zero_only.rank = _get_rank() or 0  # which Lightning looks up when it is imported
        sys.argv = [str(ROOT / "train.py"), *words]
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(number: int, limit: float) -> int | None:
    """Exit code of a process; None where it takes longer than ``limit`` seconds and is ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return None


@cache
def server() -> subprocess.Popen[str]:
    """The process that forks, of its own since that of the tests has run much else."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_PROCESSES}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "", "OMP_NUM_THREADS": "1"}
    environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the command line sets it before it imports torch
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks"],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.stdin.close)
    return process


Job = tuple[Sequence[str], dict[str, str]]
"""Arguments of a program, and variables of its environment."""


def run(folder: Path, *words: str, code: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program."""
    (done,) = run_together(folder, [(words, environment)], code)
    return done


def run_processes(folder: Path, count: int, *words: str, code: str = PROGRAM) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program in several processes that find each other."""
    shared = {**meeting_place(), "NODE_RANK": "0"}
    return run_together(folder, [(words, {**shared, "LOCAL_RANK": str(rank)}) for rank in range(count)], code)


def meeting_place() -> dict[str, str]:
    """Variables by which processes find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def run_together(folder: Path, jobs: Sequence[Job], code: str = PROGRAM) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program several times at once; returns what came of each."""
    asked, outputs = [], []
    for number, (words, environment) in enumerate(jobs):
        outputs.append([folder / f".{stream}_{number}" for stream in ("stdout", "stderr")])
        asked.append([code, list(words), *map(str, outputs[-1]), str(folder), environment])
    answering = server()
    print(json.dumps(asked), file=answering.stdin, flush=True)
    codes = json.loads(answering.stdout.readline())
    done = []
    for status, (words, _), paths in zip(codes, jobs, outputs, strict=True):
        done.append(subprocess.CompletedProcess(words, status, *(path.read_text(encoding="utf-8") for path in paths)))
        for path in paths:
            path.unlink()
    return done


def serve() -> None:
    """Starts what is asked for, line by line, and answers with the exit codes."""
    warm_up(everything=False)
    for line in sys.stdin:
        jobs = json.loads(line)
        numbers = [
            forked(code, words, Path(out), Path(err), Path(folder), environment)
            for code, words, out, err, folder, environment in jobs
        ]
        codes = [wait(number, LIMIT) for number in numbers]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    serve()
