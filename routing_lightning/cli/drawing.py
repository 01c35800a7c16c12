"""The commands ``plot`` and ``report``, which read runs and train nothing."""

from collections.abc import Sequence
from pathlib import Path

from routing_lightning.cli.arguments import Arguments
from routing_lightning.errors import UsageError
from routing_lightning.paths import argument

RUN_HELP = "a version folder, or a folder with several somewhere in it"


def plot(words: Sequence[str]) -> None:
    """Draws what the router of each run learned: ``plot RUN... [--out DIR] [--block K]``."""
    parser = Arguments(prog="train.py plot", description="Draw what the router of a run learned.")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=argument, help=RUN_HELP)
    parser.add_argument("--out", type=argument, help="folder for the figures; by default plots/ in each run's folder")
    parser.add_argument(
        "--block", type=int, help="block of the curves, from 0; by default at each depth the one most tasks want"
    )
    options = parser.parse_args(words)
    # Only now, here and below: these imports take seconds, and help needs none of them.
    from routing_lightning.record import FILE_NAME
    from routing_lightning.report import draw_run, find_runs

    folders = find_runs(options.runs)
    recorded = [folder for folder in folders if (folder / FILE_NAME).is_file()]
    if not recorded:
        raise UsageError(
            f"no {FILE_NAME} in {', '.join(map(str, options.runs))}; give a run of a model with a router, trained "
            "with the callbacks of record."
        )
    for number, folder in enumerate(recorded):
        out = folder / "plots" if options.out is None else options.out
        if options.out is not None and len(recorded) > 1:
            out = out / f"{number + 1}_{folder.name}"
        print(f"{len(draw_run(folder, out, options.block))} figures in {out}")


def report(words: Sequence[str]) -> None:
    """Writes a page about runs: ``report RUN... [--out DIR]``."""
    parser = Arguments(prog="train.py report", description="Write one HTML page about runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=argument, help=RUN_HELP)
    parser.add_argument(
        "--out", type=argument, default=Path("report"), help="folder for report.html; by default report/"
    )
    options = parser.parse_args(words)
    from routing_lightning.report import find_runs, write_report

    print(f"Report: {write_report(find_runs(options.runs), options.out)}")
