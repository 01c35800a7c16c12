"""Tables of labelled images: CSV or Parquet with the columns path, task, label and split."""

import csv
import io
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from routing_lightning.datamodules.listing import DRAWN, PARTS, Listing, listing_of, some
from routing_lightning.errors import UsageError
from routing_lightning.targets import SEPARATOR, Kind

NEEDED = ("path", "task", "label")
SPLIT = "split"
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt")


def read_manifest(path: Path, kinds: Mapping[str, Kind] | None = None) -> Listing:
    """Reads a table of labelled images; one line says that an image has a label in a task.

    The columns are path, task, label and, where the split is given, split: train, val, test, or nothing where it is to
    be drawn. Columns may stand in any order; further ones are kept as text. A CSV file is UTF-8, with commas, or
    semicolons or tabs if its first line has no comma. Spaces around values count for nothing. Lines without a path,
    task or label are left out and counted, but in a task of kind labels an empty label says that there is none.

    Args:
        path: file whose name ends in .csv, .tsv, .txt or .parquet.
        kinds: kinds of tasks by name; those that are not named are of classes. With ``"labels"`` the column label has
            any number of names with ``|`` or ``;`` between them (in Parquet also lists), with ``"value"`` a number.

    Raises:
        UsageError: if the file cannot be read, a column is missing, a split is unknown, a task of classes has a single
            one, a value is no number, or ``kinds`` names a task that is not there; also if it is Parquet and pyarrow is
            not installed.
    """
    names, columns = read_table(path)
    first_line = 1 if path.suffix.lower() in PARQUET else 2  # as an editor counts
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise UsageError(
            f"manifest {path} has the columns {', '.join(names) or 'none'}, but needs {', '.join(NEEDED)} and, where "
            f"the split is given, {SPLIT}: add {', '.join(missing)} to its first line"
        )
    table = dict(zip(names, columns, strict=True))
    count = len(table["path"])
    without = {unicodedata.normalize("NFC", name) for name, kind in (kinds or {}).items() if kind == "labels"}
    may_be_empty = [unicodedata.normalize("NFC", name) in without for name in table["task"]]
    kept = [
        row
        for row in range(count)
        if table["path"][row] and table["task"][row] and (table["label"][row] or may_be_empty[row])
    ]
    notes = []
    complete = set(kept)
    lines = [
        str(row + first_line)
        for row in range(count)
        if row not in complete and any(values[row] for values in columns)  # lines of nothing are no mistake
    ]
    if lines:
        notes.append(f"left out {some(lines, 'line', 'lines')} of {path} without a path, task or label")
    splits = [table[SPLIT][row].lower() for row in kept] if SPLIT in table else [""] * len(kept)
    unknown = [
        f"{split!r} in line {row + first_line}"
        for row, split in zip(kept, splits, strict=True)
        if split and split not in PARTS
    ]
    if unknown:
        raise UsageError(
            f"manifest {path} has {some(unknown, 'split', 'splits')} other than {', '.join(PARTS)}: correct them, or "
            "leave them empty where the split is to be drawn"
        )
    path_column, tasks, labels = ([table[name][row] for row in kept] for name in NEEDED)
    further = {
        name: [values[row] for row in kept] for name, values in table.items() if name and name not in (*NEEDED, SPLIT)
    }
    parts = [PARTS.index(split) if split else DRAWN for split in splits]
    return listing_of(path, path_column, tasks, labels, parts, further, notes, kinds)


Columns = tuple[list[str], Sequence[list[str]]]


def read_table(path: Path) -> Columns:
    """Names, in lower case, and columns of a table, as text.

    Args:
        path: file whose name ends in .csv, .tsv, .txt or .parquet.

    Raises:
        UsageError: if the file cannot be read; also if it is Parquet and pyarrow is not installed.
    """
    if not path.is_file():
        raise UsageError(f"manifest {path} is no file: give a CSV or Parquet file")
    if path.suffix.lower() in PARQUET:
        return _read_parquet(path)
    if path.suffix.lower() in TEXT:
        return _read_csv(path)
    raise UsageError(f"manifest {path} ends in {path.suffix or 'nothing'}, but must be .csv or .parquet: rename it")


def _read_csv(path: Path) -> Columns:
    """Names and columns; utf-8-sig, since spreadsheets put a byte order mark in front."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"manifest {path} is no UTF-8 text ({error}): save it as CSV in UTF-8") from error
    first = text.partition("\n")[0]
    separator = next((sign for sign in ",;\t" if sign in first), ",")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise UsageError(f"manifest {path} is no table ({error}): save it as CSV in UTF-8") from error
    names = [name.strip().lower() for name in lines[0]] if lines else []
    _check_names(path, names)
    uneven = [str(number) for number, line in enumerate(lines[1:], start=2) if any(line) and len(line) != len(names)]
    if uneven:
        raise UsageError(
            f"manifest {path} has {some(uneven, 'line', 'lines')} with another number of values than its first line "
            f"({len(names)}): put values that hold a {separator!r} in double quotes"
        )
    # lines of nothing stay, as nothing, so that lines are numbered as an editor does
    rows = [[value.strip() for value in line] if any(line) else [""] * len(names) for line in lines[1:]]
    while rows and not any(rows[-1]):
        rows.pop()
    return names, [[row[column] for row in rows] for column in range(len(names))]


def _read_parquet(path: Path) -> Columns:
    """Names and columns, all values as text, missing ones as nothing."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UsageError(
            f"manifest {path} is Parquet, which needs pyarrow: pip install 'routing-lightning[parquet]', or save it "
            "as CSV"
        ) from error
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise UsageError(f"manifest {path} is no Parquet file ({error}): write it again, or save it as CSV") from error
    names = [name.strip().lower() for name in table.column_names]
    _check_names(path, names)
    columns = [[_as_text(value) for value in column.to_pylist()] for column in table.columns]
    return names, columns


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return SEPARATOR.join(_as_text(item) for item in value)
    return "" if value is None or value != value else str(value).strip()


def _check_names(path: Path, names: list[str]) -> None:
    double = sorted({name for name in names if name and names.count(name) > 1})
    if double:
        raise UsageError(f"manifest {path} has more than one column {', '.join(double)}: rename or remove all but one")
