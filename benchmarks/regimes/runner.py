"""Runs of the matrix, one after the other, each by a command of its own; what is done is not done again."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from benchmarks.regimes.matrix import Run, filled, merged
from routing_lightning.datamodules import MultiTaskDataModule

ROOT = Path(__file__).parents[2]


def rows(file: Path) -> list[dict[str, Any]]:
    """What has been measured, in the order of the runs; none if there is no such file.

    Raises:
        ValueError: if a line is no run.
    """
    found = []
    for number, line in enumerate(file.read_text().splitlines() if file.is_file() else [], 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {file} is {line[:40]!r}, no JSON; remove it") from error
    return found


def run_all(wanted: Iterable[Run], file: Path, places: Mapping[str, str | None]) -> list[str]:
    """Runs what is not done, and adds a line of JSON to a file after each.

    Args:
        wanted: the runs.
        file: where the lines go.
        places: ``root``, ``mini`` and ``cache``, where data lie.

    Returns:
        Titles of the runs that failed, which say so; they are tried again the next time.
    """
    done = {row["key"] for row in rows(file)}
    sizes: dict[str, dict[str, int]] = {}
    failed = []
    for run in wanted:
        if run.key in done:
            continue
        try:
            if run.regime not in sizes:
                sizes[run.regime] = sizes_of(run, places)
            found = train(run, {**places, **sizes[run.regime]})
        except (ValueError, RuntimeError) as error:
            print(f"{run.title} failed: {error}", flush=True)
            failed.append(run.title)
            continue
        about = {"regime": run.regime, "method": run.method, "seed": run.seed, "epochs": run.epochs}
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines:
            lines.write(json.dumps({**about, **found, "commit": commit(), "key": run.key}) + "\n")
        done.add(run.key)  # it may be asked for twice
        print(f"{run.title}: {found['accuracy']} % in {found['seconds']} s", flush=True)
    return failed


def sizes_of(run: Run, places: Mapping[str, str | None]) -> dict[str, int]:
    """What the data of a regime say: optimizer steps of an epoch, and a number of blocks, one more than tasks."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(MultiTaskDataModule, "data")
    parsed = parser.parse_object({"data": filled(run.config["data"], places)})
    data = parser.instantiate(parsed).data
    data.prepare_data()
    data.setup()
    return {"epoch": math.ceil(len(data.train_dataset) / data.batch_size), "blocks": data.num_tasks + 1}


def train(run: Run, values: Mapping[str, Any]) -> dict[str, Any]:
    """One run, through the command line.

    Raises:
        RuntimeError: with the sentence that the run ended with, if it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "measured.json"
        steps = run.epochs * values["epoch"]
        config = merged(
            filled(run.config, {**values, "seed": run.seed, "filters": run.filters, "steps": steps}),
            {
                "seed_everything": run.seed,
                "record": None,
                "trainer": {
                    "accelerator": "cpu",
                    "max_epochs": run.epochs,
                    "check_val_every_n_epoch": run.epochs,  # only at the end
                    "num_sanity_val_steps": 0,
                    "logger": False,
                    "enable_checkpointing": False,
                    "enable_progress_bar": False,
                    "default_root_dir": folder,
                    "callbacks": [
                        {"class_path": "benchmarks.regimes.measure.Measured", "init_args": {"file": str(measured)}}
                    ],
                },
            },
        )
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump(config))
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(ROOT)}
        line = [sys.executable, str(ROOT / "train.py"), "fit", f"--config={file}"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not measured.is_file():
            said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
            raise RuntimeError(said[-1])
        found: dict[str, Any] = json.loads(measured.read_text())
        return found


def commit() -> str | None:
    """The commit of this checkout, with a + if files were changed since; None outside of a repository."""
    line = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
