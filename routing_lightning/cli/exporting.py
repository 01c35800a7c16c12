"""The commands that take a trained network away or change its size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from routing_lightning.export.checkpoint import Exported

from routing_lightning.cli.arguments import Arguments
from routing_lightning.errors import UsageError
from routing_lightning.paths import argument

TRUST_HELP = "a module of yours that the checkpoint may name; may be given several times"


def export(words: Sequence[str]) -> None:
    """Writes a network per task: ``export CKPT --out DIR [--task NAME] [--format torch|onnx] [--int8]``."""
    parser = Arguments(
        prog="train.py export",
        description="Write the network of each task as a file that needs nothing of this package.",
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help="checkpoint of a run")
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

    written = export_checkpoint(
        options.checkpoint, options.out, options.task, options.format, options.int8, options.input, options.trust
    )
    Console().print(table_of(written))
    print(f"{len(written)} networks and {MANIFEST} in {options.out}")


def prune(words: Sequence[str]) -> None:
    """Writes a checkpoint without unused blocks: ``prune CKPT --out NEW.ckpt``."""
    parser = Arguments(
        prog="train.py prune", description="Write a checkpoint without the blocks that no task uses; it trains on."
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help="checkpoint of a run")
    parser.add_argument("--out", required=True, type=argument, metavar="NEW", help="the new checkpoint")
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE", help=TRUST_HELP)
    options = parser.parse_args(words)
    from routing_lightning.export.prune import prune_checkpoint

    layers = prune_checkpoint(options.checkpoint, options.out, options.trust)
    show_blocks(layers, "Pruned network")
    print(f"Train on with: fit --ckpt_path {options.out}; the history of routes begins anew")


def extend(words: Sequence[str]) -> None:
    """Writes a checkpoint that new tasks have joined: ``extend CKPT --data PATH --out NEW.ckpt``."""
    parser = Arguments(
        prog="train.py extend", description="Write a checkpoint that new tasks have joined; fit --ckpt_path trains it."
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help="checkpoint of a run")
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
        options.checkpoint, options.data, options.out, options.blocks, factor_of(options.old), options.trust
    )
    show_blocks(layers, "Extended network")
    print(f"New tasks: {', '.join(joined)}\nTrain them with: fit --ckpt_path {options.out}")


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
    """Parameters, size and time before and after."""
    from rich.table import Table

    table = Table(
        title="Exported networks: before (whole model) -> after (file)", caption="Time of one image, on the CPU"
    )
    for column in ("task", "file"):
        table.add_column(column)
    for column in ("parameters", "MB", "ms", "difference", "same predictions"):
        table.add_column(column, justify="right")
    for found in written:
        table.add_row(
            found.task,
            found.path.name,
            f"{found.parameters[0]:,} -> {found.parameters[1]:,}",
            f"{found.megabytes[0]:.2f} -> {found.megabytes[1]:.2f}",
            f"{found.milliseconds[0]:.2f} -> {found.milliseconds[1]:.2f}",
            f"{found.difference:.1g}",
            f"{100 * found.agreement:.1f} %",
        )
    return table
