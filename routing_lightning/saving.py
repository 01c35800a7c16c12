"""Checkpoints are written whole: a reader sees the old file or the new one."""

import io
import os
from pathlib import Path
from typing import Any

import torch

from routing_lightning.errors import UsageError


def save_whole(checkpoint: dict[str, Any], target: Path) -> None:
    """Writes a checkpoint beside its place and then puts it there; its folder is made if it is missing.

    Raises:
        OSError: if it cannot be written; what was there stays.
    """
    content = io.BytesIO()
    torch.save(checkpoint, content)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def check_new(out: str | Path, source: str | Path) -> Path:
    """The file for a checkpoint that is made from another.

    Args:
        out: where it is to be written.
        source: the one that it is made from.

    Raises:
        UsageError: if that is a folder, or the other checkpoint itself.
    """
    target = Path(out)
    if target.is_dir():
        raise UsageError(f"out {out} is a folder; give the path of the new checkpoint, such as {target / 'new.ckpt'}.")
    if target.exists() and target.samefile(source):
        raise UsageError(f"out {out} is the checkpoint that is read; give another path, so that it is kept.")
    return target
