"""Completion in an interactive zsh, where one is installed."""

import os
import pty
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed (Debian: apt-get install zsh)")
@pytest.mark.parametrize(
    "begun, completed",
    [
        ("va", "validate"),
        ("fit --config configs/dig", "configs/digits_mtl.yaml"),
        ("fit --trainer.max_ep", "max_epochs"),
    ],
)
def test_zsh_completes_words(begun, completed):
    """Without any set-up of completion of one's own (``-f``)."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.environ |= {"TERM": "dumb", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        os.write(terminal, b'eval "$(python train.py completion zsh)"; echo rea""dy\n')
        assert "ready" in read_until(terminal, "ready")
        os.write(terminal, f"python train.py {begun}\t".encode())
        assert completed in read_until(terminal, completed)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, word: str, seconds: float = 30) -> str:
    text, end = "", time.monotonic() + seconds
    while word not in text and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    return text
