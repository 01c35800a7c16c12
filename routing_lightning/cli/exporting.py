"""The commands that take a trained network away or change its size."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from routing_lightning.export.checkpoint import Exported

from routing_lightning.cli.arguments import Arguments
from routing_lightning.errors import UsageError
from routing_lightning.paths import argument

CHECKPOINT_HELP = "checkpoint of a run; last: the newest one; best: the best of its run"
TRUST_HELP = "a module of yours that the checkpoint may name; may be given several times"


def export(words: Sequence[str]) -> None:
    """Writes a network per task: ``export CKPT --out DIR [--task NAME] [--format torch|onnx] [--int8]``."""
    parser = Arguments(
        prog="train.py export",
        description="Write the network of each task as a file that needs nothing of this package.",
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help=CHECKPOINT_HELP)
    parser.add_argument(
        "--out", required=True, type=argument, metavar="DIR", help="folder for the files and their manifest"
    )
    parser.add_argument("--task", default="all", metavar="NAME", help="name or number of a task; by default all")
    parser.add_argument("--format", choices=["torch", "onnx"], default="torch", help="torch.export's .pt2, or ONNX")
    parser.add_argument("--int8", action="store_true", help="weights as 8-bit integers; with --format onnx")
    parser.add_argument(
        "--input",
        choices=["uint8", "float"],
        default="uint8",
        help="what the network takes: images of 0 to 255, or the same divided by 255; normalisation is inside",
    )
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE", help=TRUST_HELP)
    options = parser.parse_args(words)
    # Only now, here and below: these imports take seconds, and help needs none of them.
    from rich.console import Console

    from routing_lightning.export.checkpoint import MANIFEST, export_checkpoint

    path = meant(options.checkpoint)
    written = export_checkpoint(
        path, options.out, options.task, options.format, options.int8, options.input, options.trust
    )
    Console().print(table_of(written))
    print(f"{len(written)} network{'s' if len(written) > 1 else ''} and {MANIFEST} in {options.out}")


def prune(words: Sequence[str]) -> None:
    """Writes a checkpoint without unused blocks: ``prune CKPT --out NEW.ckpt``."""
    parser = Arguments(
        prog="train.py prune", description="Write a checkpoint without the blocks that no task uses; it trains on."
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help=CHECKPOINT_HELP)
    parser.add_argument("--out", required=True, type=argument, metavar="NEW", help="the new checkpoint")
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE", help=TRUST_HELP)
    options = parser.parse_args(words)
    from routing_lightning.cli.checkpoints import load
    from routing_lightning.export.prune import prune_checkpoint

    layers = prune_checkpoint(meant(options.checkpoint), options.out, options.trust)
    show_blocks(layers, "Pruned network")
    epochs = load(options.out).get("epoch", -1) + 1
    print(f"Train on with: {fit_from(options.out, epochs + 20)}\nThe history of routes begins anew.")


def extend(words: Sequence[str]) -> None:
    """Writes a checkpoint that new tasks have joined: ``extend CKPT --data PATH --out NEW.ckpt``."""
    parser = Arguments(
        prog="train.py extend", description="Write a checkpoint that new tasks have joined; fit --ckpt_path trains it."
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help=CHECKPOINT_HELP)
    parser.add_argument(
        "--data", required=True, type=argument, metavar="PATH", help="folder or manifest of the new tasks' images"
    )
    parser.add_argument("--out", required=True, type=argument, metavar="NEW", help="the new checkpoint")
    parser.add_argument(
        "--blocks",
        type=int,
        nargs="+",
        default=[1],
        metavar="N",
        help="new blocks: one number for all routed layers, or one for each; by default 1",
    )
    parser.add_argument(
        "--old",
        default="frozen",
        metavar="HOW",
        help="what was there: frozen (default), free, or a factor on its learning rate",
    )
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE", help=TRUST_HELP)
    options = parser.parse_args(words)
    from routing_lightning.export.join import extend_checkpoint

    joined, layers = extend_checkpoint(
        meant(options.checkpoint), options.data, options.out, options.blocks, factor_of(options.old), options.trust
    )
    show_blocks(layers, "Extended network")
    print(f"New tasks: {', '.join(joined)}\nTrain them with: {fit_from(options.out, 20)}")


def fit_from(checkpoint: Path, epochs: int) -> str:
    """The command that trains a checkpoint up to an epoch."""
    from routing_lightning.cli.tables import program

    return shlex.join([*program(), "fit", "--ckpt_path", str(checkpoint), "--trainer.max_epochs", str(epochs)])


def meant(given: Path) -> Path:
    """The checkpoint that is given by its path, as last or as best; says which one that is.

    Raises:
        UsageError: if there is none.
    """
    from routing_lightning.cli.checkpoints import find

    path = find(str(given), Path())
    if str(given) in ("last", "best"):
        print(f"ckpt_path {given}: {path}", flush=True)
    return path


def factor_of(text: str) -> float:
    """The factor on the learning rate of what was there that ``--old`` means.

    Raises:
        UsageError: if it is none.
    """
    known = {"frozen": 0.0, "free": 1.0}
    try:
        return known[text] if text in known else float(text)
    except ValueError:
        raise UsageError(f"old is {text!r}; give frozen, free, or a factor on the learning rate from 0 to 1.") from None


def show_blocks(layers: dict[str, tuple[int, int]], title: str) -> None:
    """Prints the number of blocks of each routed layer before and after."""
    from rich.console import Console
    from rich.table import Table

    table = Table("routed layer", "blocks before", "blocks after", title=title)
    for name, (before, after) in layers.items():
        table.add_row(name, str(before), str(after))
    Console().print(table)


def table_of(written: "Sequence[Exported]") -> "Table":
    """Parameters, size and time of the whole model and of each file; names are never cut off."""
    from rich.table import Table

    table = Table(
        title="Exported networks",
        caption="ms: one image on the CPU; difference: the largest of a logit; same: predictions",
    )
    for column in ("task", "file"):
        table.add_column(column, overflow="fold")
    for column in ("parameters", "MB", "ms", "difference", "same"):
        table.add_column(column, justify="right", no_wrap=True)
    whole = sorted(found.milliseconds[0] for found in written)[len(written) // 2]
    (parameters, _), (megabytes, _) = written[0].parameters, written[0].megabytes
    table.add_row("whole model", "", f"{parameters:,}", f"{megabytes:.2f}", f"{whole:.2f}")
    table.add_section()
    for found in written:
        table.add_row(
            found.task,
            found.path.name,
            f"{found.parameters[1]:,}",
            f"{found.megabytes[1]:.2f}",
            f"{found.milliseconds[1]:.2f}",
            f"{found.difference:.1g}",
            f"{100 * found.agreement:.1f} %",
        )
    return table
