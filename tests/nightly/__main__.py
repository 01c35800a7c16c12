"""Runs the cases and writes the table: ``python -m tests.nightly [--docs] [--only TEXT]``."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests import forks
from tests.nightly.cases import Case, configs, small_data, switches
from tests.nightly.table import Outcome, Tables, page, read, write

ROOT = Path(__file__).parents[2]
LIMIT = 180  # seconds for a command


@dataclass
class Place:
    """A folder in which the commands of a case run."""

    folder: Path

    def run(self, words: list[str], apart: bool) -> Outcome:
        """Runs a command."""
        checkpoint = self.checkpoint()
        places = {"{root}": self.folder, "{ckpt}": checkpoint, "{run}": checkpoint.parents[1]}
        given = list(words)
        for place, path in places.items():
            given = [word.replace(place, str(path)) for word in given]
        out, err = self.folder / "stdout.txt", self.folder / "stderr.txt"
        out.unlink(missing_ok=True)
        err.unlink(missing_ok=True)
        before = set(self.folder.iterdir())
        if apart:
            code = self.run_apart(given, out, err)
        else:
            code = forks.wait(forks.forked(forks.PROGRAM, given, out, err, self.folder, {}), LIMIT)
        left = {path.name for path in set(self.folder.iterdir()) - before} - {out.name, err.name}
        return Outcome.of(code, out.read_text(), err.read_text(), left)

    def run_apart(self, words: list[str], out: Path, err: Path) -> int | None:
        """Runs a command as a user does; None where it takes too long."""
        with open(out, "w") as stdout, open(err, "w") as stderr:
            command = [sys.executable, str(ROOT / "train.py"), *words]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            try:
                return subprocess.run(
                    command, stdout=stdout, stderr=stderr, cwd=self.folder, timeout=LIMIT, check=False, env=environment
                ).returncode
            except subprocess.TimeoutExpired:
                return None

    def checkpoint(self) -> Path:
        """The newest checkpoint of the folder."""
        found = sorted(self.folder.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
        return next((path for path in reversed(found) if path.name != "pruned.ckpt"), self.folder / "none.ckpt")


def run(case: Case) -> dict[str, Outcome]:
    """Runs the commands of a case: those of configs one after the other in a folder, switches each in its own."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (column, words) in enumerate(case.steps.items()):
            folder = Path(name) if "fit" in case.steps else Path(name) / str(number)
            folder.mkdir(exist_ok=True)
            found[column] = Place(folder).run(words, case.apart).judged(column in case.refused, column in case.warns)
            if not found[column].right:
                print(f"WRONG {case.row} | {column}: {found[column].cell} {found[column].told}\n  {' '.join(words)}")
    return found


def done(cells: dict[str, Outcome] | None, commands: int) -> bool:
    """Whether all commands of a row were run and are as they should be."""
    if cells is None or sum(one.times for one in cells.values()) < commands:
        return False
    return all(one.right for one in cells.values())


def main() -> None:
    """Runs all cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/lightning.md")
    parser.add_argument("--only", default="", help="only rows that hold this text")
    parser.add_argument("--part", choices=["configs", "switches"], help="only one of the two tables")
    parser.add_argument("--results", type=Path, help="JSON file of outcomes: those of other rows in it are kept")
    parser.add_argument("--again", action="store_true", help="only rows that are not in it, or were not right")
    options = parser.parse_args()

    forks.warm_up(everything=True)
    tables: Tables = {"configs": {}, "switches": {}}
    if options.results and options.results.is_file():
        tables = read(options.results)
    with tempfile.TemporaryDirectory() as name:
        cases = {
            "switches": list(switches()),
            "configs": [case for _, case in configs(small_data(Path(name)))],
        }
        for part, chosen in cases.items():
            chosen = [case for case in chosen if options.only in case.row and options.part in (part, None)]
            if options.again:
                commands = Counter(case.row for case in cases[part] for _ in case.steps)
                chosen = [case for case in chosen if not done(tables[part].get(case.row), commands[case.row])]
            for row in {case.row for case in chosen}:
                tables[part].pop(row, None)
            for case in sorted(chosen, key=lambda case: case.apart):  # the slow ones last
                print(case.row, flush=True)
                row = tables[part].setdefault(case.row, {})
                for column, outcome in run(case).items():
                    row[column] = row[column].with_other(outcome) if column in row else outcome
                if options.results:
                    write(options.results, tables)
            tables[part] = {case.row: tables[part][case.row] for case in cases[part] if case.row in tables[part]}
    text = page(tables)
    print(text)
    if options.docs:
        target = ROOT / "docs" / "lightning.md"
        before = target.read_text().partition("<!-- tables -->")[0]
        target.write_text(f"{before}<!-- tables -->\n\n{text.rstrip()}\n")
    wrong = [one for rows in tables.values() for row in rows.values() for one in row.values() if not one.right]
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
