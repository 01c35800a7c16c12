"""The commands that take a trained network away or change its size."""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from routing_lightning.export.checkpoint import MANIFEST, Exported, export_checkpoint
from routing_lightning.export.prune import prune_checkpoint
from routing_lightning.paths import argument

TRUST_HELP = "a module of yours that the checkpoint may name; may be given several times"


def export(words: Sequence[str]) -> None:
    """Writes a network per task: ``export CKPT --out DIR [--task NAME] [--format torch|onnx] [--int8]``."""
    parser = argparse.ArgumentParser(
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
    written = export_checkpoint(
        options.checkpoint, options.out, options.task, options.format, options.int8, options.input, options.trust
    )
    Console().print(table_of(written))
    print(f"{len(written)} networks and {MANIFEST} in {options.out}")


def prune(words: Sequence[str]) -> None:
    """Writes a checkpoint without unused blocks: ``prune CKPT --out NEW.ckpt``."""
    parser = argparse.ArgumentParser(
        prog="train.py prune", description="Write a checkpoint without the blocks that no task uses; it trains on."
    )
    parser.add_argument("checkpoint", metavar="CKPT", type=argument, help="checkpoint of a run")
    parser.add_argument("--out", required=True, type=argument, metavar="NEW", help="the new checkpoint")
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE", help=TRUST_HELP)
    options = parser.parse_args(words)
    layers = prune_checkpoint(options.checkpoint, options.out, options.trust)
    table = Table("routed layer", "blocks before", "blocks after", title="Pruned network")
    for name, (before, after) in layers.items():
        table.add_row(name, str(before), str(after))
    Console().print(table)
    print(f"Train on with: fit --ckpt_path {options.out}; the history of routes begins anew")


def table_of(written: Sequence[Exported]) -> Table:
    """Parameters, size and time before and after."""
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
