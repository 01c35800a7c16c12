"""Command line of the benchmarks.

Example:
    python -m benchmarks                          # all
    python -m benchmarks step wpl --quick         # two of them, a first look
    python -m benchmarks step --device cuda
    python -m benchmarks fit input --root data    # on real data
    python -m benchmarks gpu --device cuda --root data    # all that needs a GPU, within 8 minutes

Each writes a JSON and a Markdown file to ``benchmarks/results``.
"""

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks.harness import Options, write
from routing_lightning.allocator import keep_freed_memory

NAMES = (
    "step",
    "conv",
    "branching",
    "blocks",
    "fit",
    "wpl",
    "input",
    "ddp",
    "dispatch",
    "accuracy",
    "detect",
    "threads",
    "memory",
    "precision",
)
APART = ("gpu",)  # runs when it is named


def main() -> None:
    """Runs the named benchmarks one after the other."""
    parser = argparse.ArgumentParser("benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join([*NAMES, *APART])}; by default all but gpu")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch, 1 by default")
    parser.add_argument("--quick", action="store_true", help="rougher, and without the largest sizes")
    parser.add_argument("--root", help="folder of CIFAR for fit, input, ddp and accuracy; noise by default")
    words = parser.parse_args()
    unknown = set(words.names) - {*NAMES, *APART}
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; give any of {', '.join(NAMES)}")
    if words.threads < 1:
        parser.error(f"--threads is {words.threads}; give at least 1")
    if words.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, but PyTorch finds no GPU here; give cpu")
    if words.root is not None and not Path(words.root).is_dir():
        parser.error(f"--root {words.root} is no folder; give one with CIFAR-100, or leave it out")
    options = Options(words.device, words.threads, words.quick, words.root)
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the command line does; the processes that a benchmark starts decide for themselves
    for name in words.names or NAMES:
        tables = importlib.import_module(f"benchmarks.{name}").run(options)
        write(name, tables, options)
        print(f"## {name}\n\n" + "\n".join(table.markdown() for table in tables), flush=True)


if __name__ == "__main__":
    main()
