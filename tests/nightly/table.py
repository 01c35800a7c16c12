"""The outcome of a command, and the tables of all."""

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_LINE = re.compile(r"^error: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What came of a command.

    Attributes:
        cell: ``passes``, ``refused``, or what went wrong.
        told: the sentence of a refusal, or the end of what was said.
        right: whether it is what should be.
        times: how often it was run.
    """

    cell: str
    told: str
    right: bool = False
    times: int = 1

    @classmethod
    def of(cls, code: int | None, out: str, err: str, left: set[str]) -> "Outcome":
        """Outcome by exit code, what was said, and what was left in the working directory."""
        end = " / ".join(err.strip().splitlines()[-3:])[:500]
        errors = set(_LINE.findall(err))  # processes may say the same
        if code is None:
            return cls("no end", end)
        if "Traceback" in err + out:
            return cls("traceback", end)
        if code == 0:
            stray = sorted(left - {"lightning_logs", "report", "plots", "networks", "onnx", "pruned.ckpt"})
            stray = [name for name in stray if not name.startswith(("kept", "broken", "here", "fit-p"))]
            if err.strip():
                return cls("warns", err.strip()[:500])
            return cls(f"leaves {', '.join(stray)}" if stray else "passes", "")
        if code in (1, 2) and len(errors) == 1:
            if len(set(err.strip().splitlines())) == 1:
                return cls("refused", errors.pop())
            return cls("refused with noise", err.strip()[:500])
        return cls(f"exit {code}", end)

    def judged(self, refusal: bool, warns: bool) -> "Outcome":
        """With the verdict: whether it is refused where that is right, or warns where that is, and else passes."""
        return replace(self, right=self.cell == ("refused" if refusal else "warns" if warns else "passes"))

    def with_other(self, other: "Outcome") -> "Outcome":
        """The worse of two, counting both."""
        worse = other if self.right and not other.right else self
        return replace(worse, times=self.times + other.times)


Tables = dict[str, dict[str, dict[str, Outcome]]]
"""By table, row and column."""


def read(path: Path) -> Tables:
    """Outcomes of an earlier run."""
    return {
        name: {row: {column: Outcome(**one) for column, one in cells.items()} for row, cells in rows.items()}
        for name, rows in json.loads(path.read_text()).items()
    }


def write(path: Path, tables: Tables) -> None:
    """Keeps outcomes."""
    path.write_text(json.dumps(tables, default=asdict, indent=1))


def page(tables: Tables) -> str:
    """Both tables, folded, and the sentences of refusals."""
    every = [one for rows in tables.values() for row in rows.values() for one in row.values()]
    counted = {
        cell: sum(one.times for one in every if one.cell == cell) for cell in sorted({one.cell for one in every})
    }
    lines = [
        f"{sum(counted.values())} commands: " + ", ".join(f"{count} {cell}" for cell, count in counted.items()) + ".",
        "",
    ]
    titles = {
        "configs": "Every command with every config, each with TensorBoard, CSV and no logger",
        "switches": "Lightning's own switches, with a router that is a table (`wpl`), one that is a network "
        "(`reinforce_mlp`), one learned by the gradient (`gumbel`), and none (`task_specific_1_fc`)",
    }
    for name, rows in tables.items():
        if rows:
            lines += folded(titles[name], rows)
    return "\n".join(lines)


def folded(title: str, rows: dict[str, dict[str, Outcome]]) -> list[str]:
    """One table that opens on a click: how often each was run, if not once; refusals with the number of a sentence."""
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    sentences: dict[str, int] = {}
    lines = ['<details markdown="1">', f"<summary>{title}</summary>", "", f"| | {' | '.join(columns)} |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for row, cells in rows.items():
        shown = []
        for column in columns:
            one = cells.get(column, Outcome("", ""))
            number = f" [{sentences.setdefault(shortened(one.told), len(sentences) + 1)}]" if one.told else ""
            times = f" {one.times}" if one.times > 1 else ""
            shown.append({"passes": "✓"}.get(one.cell, one.cell) + times + number)
        lines.append(f"| `{row}` | {' | '.join(shown)} |")
    lines += ["", *(f"{number}. {sentence}" for sentence, number in sentences.items()), "", "</details>", ""]
    return lines


def shortened(sentence: str) -> str:
    """A sentence without paths of the machine, and no longer than a few lines."""
    text = re.sub(r"/[\w.=-]+/[\w/.=-]+", "…", " ".join(sentence.split())).replace("|", "/").replace("<", "&lt;")
    return text if len(text) <= 400 else text[:400] + " …"
