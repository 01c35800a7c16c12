"""Command line of the regimes.

Example:
    python -m benchmarks.regimes --root data --mini-root data/mini-imagenet       # all, for two seeds: hours
    python -m benchmarks.regimes --regimes Digits-MTL "CIFAR-MTL, 2 %" --seeds 0  # some of them
    python -m benchmarks.regimes --no-runs --picture docs/regimes.svg             # what there is so far

Each run adds a line to a file, and is not run again while it stands there; a run of another config, or with other
epochs, is another run. The tables are of the runs that were asked for.
"""

import argparse
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase

from benchmarks.harness import RESULTS
from benchmarks.regimes import matrix, summary
from benchmarks.regimes.runner import rows, run_all
from routing_lightning.plots import save


def main(words: list[str] | None = None) -> int:
    """Runs what is asked for and prints the tables; 1 if a run failed, 130 if it was stopped."""
    parser = argparse.ArgumentParser(
        "benchmarks.regimes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--regimes", nargs="+", metavar="NAME", help="some regimes of matrix.yaml; all by default")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="some methods; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], metavar="SEED")
    parser.add_argument("--epochs", type=int, help="in place of those of the regime, for a first look")
    parser.add_argument("--root", default="data", help="folder of CIFAR-100 and MNIST")
    parser.add_argument("--mini-root", default="data/mini-imagenet", help="folder of mini-ImageNet")
    parser.add_argument("--cache-dir", help="folder of decoded images; by default .cache in each root")
    parser.add_argument("--out", type=Path, default=RESULTS / "regimes.jsonl", help="file of the measurements")
    parser.add_argument("--no-runs", action="store_true", help="only the tables")
    parser.add_argument("--picture", type=Path, help="draws the routes of the method 'learned' to this file")
    given = parser.parse_args(words)
    if given.epochs is not None and given.epochs < 1:
        parser.error(f"--epochs is {given.epochs}; give at least 1")
    if not all(0 <= seed < 2**32 for seed in given.seeds):
        parser.error(f"--seeds is {' '.join(map(str, given.seeds))}; give integers from 0 to {2**32 - 1}")
    if given.out.is_dir():
        parser.error(f"--out is {given.out}, a folder; give a file")
    if given.picture is not None and given.picture.suffix[1:] not in FigureCanvasBase.get_supported_filetypes():
        parser.error(f"--picture is {given.picture}; give a file whose name ends with .svg, .png or .pdf")
    content = matrix.read()
    try:
        wanted = matrix.runs(content, given.seeds, given.regimes, given.methods, given.epochs)
        rows(given.out)
    except ValueError as error:
        parser.error(str(error))
    places = {"root": given.root, "mini": given.mini_root, "cache": given.cache_dir}
    places = {name: place and str(Path(place).expanduser().resolve()) for name, place in places.items()}
    try:
        failed = [] if given.no_runs else run_all(wanted, given.out, places)
    except KeyboardInterrupt:
        print("stopped; the same command goes on with the run that was under way")
        return 130
    keys = {run.key: position for position, run in enumerate(wanted)}
    found = sorted((row for row in rows(given.out) if row["key"] in keys), key=lambda row: keys[row["key"]])
    methods = [name for name in content["methods"] if not given.methods or name in given.methods]
    if found:
        print("\n" + "\n".join(table.markdown() for table in summary.tables(found, methods)))
    else:
        print(f"{given.out} has none of these runs")
    learned = [row for row in found if row["method"] == "learned"]
    if given.picture is not None:
        if not learned:
            parser.error("--picture needs runs of the method learned; run some first")
        save(summary.picture(learned, "where tasks part: learned routes"), given.picture)
        print(f"wrote {given.picture}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
