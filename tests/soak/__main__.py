"""Stops runs at random moments, lets them go on, and compares the end with that of a run that was never stopped.

Example:
    python -m tests.soak --stops 50

Each run is ``fit`` of the real command line in fresh processes, on the digits of scikit-learn. After a random time it
gets SIGTERM, SIGINT or SIGKILL: all its processes, as from Ctrl-C in a terminal or a batch system, or one of them
alone. Then it is started again with ``--ckpt_path last``, stopped again, and so on until it reaches its end. Its last
checkpoint (weights, optimizer, policies, averages, exploration, record of routes) must then equal that of the unbroken
run to the bit, and each number that was logged in any of its parts must be that of the unbroken run. At any time all
checkpoints must be readable.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
LONGEST = 180  # seconds until a run that was told to stop counts as hanging
COMPARED = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "routing_lightning_progress", "global_step")
OWN_PATHS = ("best_model_path", "last_model_path", "kth_best_model_path", "dirpath", "best_k_models")
METHODS = {
    "wpl": [],
    "q_table": [
        "--model.init_args.router.init_args.learner=QLearning",
        "--model.init_args.router.init_args.collaboration=0.3",
        "--model.init_args.optimizer=torch.optim.Adam",
    ],
    "reinforce_mlp": [
        "--model.init_args.router.init_args.policy=MLPPolicy",
        "--model.init_args.router.init_args.learner=REINFORCE",
        "--model.init_args.router.init_args.learner.init_args.baseline=true",
    ],
}


@dataclass
class Tally:
    """What happened to the runs of one kind."""

    stops: Counter[str] = field(default_factory=Counter)
    saved: int = 0  # stops that left a checkpoint of their own
    compared: int = 0
    faults: list[str] = field(default_factory=list)


def words(folder: Path, method: str, processes: int, epochs: int) -> list[str]:
    """The command of a run."""
    config = ROOT / "configs" / "digits_mtl.yaml"
    found = [
        "fit", f"--config={config}", "--trainer.accelerator=cpu", f"--trainer.devices={processes}", "--threads=1",
        f"--trainer.max_epochs={epochs}", "--trainer.num_sanity_val_steps=0", "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={folder}", "--trainer.log_every_n_steps=5", "--trainer.limit_train_batches=120",
        "--trainer.limit_val_batches=30",
        "--trainer.logger=CSVLogger", f"--trainer.logger.init_args.save_dir={folder}",
        "--trainer.logger.init_args.flush_logs_every_n_steps=1",
    ]  # fmt: skip
    return found + (["--trainer.strategy=ddp"] if processes > 1 else []) + METHODS[method]


def start(folder: Path, sign: Path, command: list[str]) -> subprocess.Popen[bytes]:
    """Starts a run in a group of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = open(folder / "output.txt", "ab")  # noqa: SIM115 - the process has it
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak.train", str(sign), *command],
        env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip


def processes_of(group: int) -> list[int]:
    """The processes of a group that still run, the first one first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def wait_for(sign: Path, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Waits until all processes of a run train; whether they came so far."""
    while process.poll() is None:
        if all(Path(f"{sign}.{rank}").exists() for rank in range(count)):
            return True
        time.sleep(0.02)
    return False


def newest(folder: Path) -> Path | None:
    """The checkpoint that was written last."""
    found = folder.rglob("*.ckpt")
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path.name == "last.ckpt"), default=None)


def final_state(folder: Path) -> dict[str, object]:
    """What the last checkpoint of a finished run holds, without paths of its own."""
    path = max(folder.rglob("epoch=*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    checkpoint = torch.load(path, weights_only=True)

    def without_paths(value: object) -> object:
        if isinstance(value, dict):
            return {key: without_paths(item) for key, item in value.items() if key not in OWN_PATHS}
        return value

    found = {key: without_paths(checkpoint[key]) for key in COMPARED}
    return found | {"name": path.name}


def differences(ours: object, theirs: object, where: str = "") -> list[str]:
    """Where two states differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = [f"{where}: other keys"] if ours.keys() != theirs.keys() else []
        return found + [
            d for key in ours.keys() & theirs.keys() for d in differences(ours[key], theirs[key], f"{where}/{key}")
        ]
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs):
        return [d for i, pair in enumerate(zip(ours, theirs, strict=True)) for d in differences(*pair, f"{where}/{i}")]
    same = torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs  # type: ignore[arg-type]
    return [] if same else [where]


def curves(folder: Path) -> dict[tuple[str, str], set[str]]:
    """Each number that was logged: the texts of its values by (step, name), over all parts of a run."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in folder.rglob("metrics.csv"):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                for name, value in row.items():
                    if value and name and row.get("step"):
                        found.setdefault((row["step"], name), set()).add(value)
    return found


def stopped_run(
    folder: Path,
    method: str,
    count: int,
    args: argparse.Namespace,
    seconds: float,
    whole: Path,
    tally: Tally,
    left: int,
    chance: random.Random,
) -> int:
    """Runs to the end with stops, up to ``left`` of them; returns how many there were."""
    folder.mkdir()
    stops = 0
    for part in range(1000):
        sign = folder / f"began_{part}"
        command = words(folder, method, count, args.epochs)
        before = newest(folder)
        process = start(folder, sign, command + (["--ckpt_path=last"] if before else []))
        try:
            began = wait_for(sign, count, process)
            end = time.monotonic() + (chance.uniform(0, seconds) if stops < left else 1e9)
            while began and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            if process.poll() is not None:
                if process.returncode != 0:
                    tally.faults.append(f"{folder.name}: ended with {process.returncode}, see output.txt")
                    return stops
                break
            number = chance.choice(SIGNALS)
            members = processes_of(process.pid)[:count]
            aimed = members if chance.random() < 0.5 else [chance.choice(members)]
            for pid in aimed:
                os.kill(pid, number)
            kind = f"{number.name} to {'all' if len(aimed) == count else 'one'}" if count > 1 else number.name
            stops += 1
            tally.stops[kind] += 1
            try:
                process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                tally.faults.append(f"{folder.name}: {kind} was not followed within {LONGEST} s")
                return stops
            deadline = time.monotonic() + 30
            while processes_of(process.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            if processes_of(process.pid):
                tally.faults.append(f"{folder.name}: {kind} left processes behind")
        finally:
            for pid in processes_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()
        after = newest(folder)
        tally.saved += after is not None and after.name == "last.ckpt" and after != before
        for path in folder.rglob("*.ckpt"):
            try:
                torch.load(path, weights_only=True)
            except Exception as error:
                tally.faults.append(f"{folder.name}: {path.name} cannot be read after {kind}: {error}")
    tally.compared += 1
    wrong = differences(final_state(whole), final_state(folder))
    ours, theirs = curves(whole), curves(folder)
    wrong += [f"curve {key}" for key, values in theirs.items() if not values <= ours.get(key, set())]
    wrong += [f"curve {key} is missing" for key in ours.keys() - theirs.keys()]
    tally.faults += [f"{folder.name}: {where}" for where in wrong[:5]]
    return stops


def main() -> int:
    """Runs the soak and prints its table; 1 if anything differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=50, help="stops in all")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of signals and moments")
    parser.add_argument("--folder", type=Path, help="where the runs lie; a temporary folder by default")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        base = args.folder or Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        kinds = [(method, count) for count in args.processes for method in args.methods]
        tallies = {kind: Tally() for kind in kinds}
        share = -(-args.stops // len(kinds))
        for (method, count), tally in tallies.items():
            whole = base / f"{method}_{count}_whole"
            whole.mkdir()
            process = start(whole, whole / "began", words(whole, method, count, args.epochs))
            wait_for(whole / "began", count, process)
            if process.wait() != 0:
                tally.faults.append(f"{whole.name}: the unbroken run failed, see output.txt")
                continue
            # Without what the process does before and after its training.
            began, ended = (Path(f"{whole}/began.0{end}").stat().st_mtime for end in ("", ".ended"))
            seconds = ended - began
            left, run = share, 0
            while left > 0 and len(tally.faults) < 5:
                left -= stopped_run(
                    base / f"{method}_{count}_{run}", method, count, args, 0.8 * seconds, whole, tally, left, chance
                )
                run += 1
            print(
                f"{method}, {count} processes: {sum(tally.stops.values())} stops, {tally.faults or 'all equal'}",
                flush=True,
            )
    print(f"\n{time.monotonic() - begin:.0f} s, python -m tests.soak {' '.join(sys.argv[1:])}\n")
    print(
        "| method | processes | SIGTERM | SIGINT | SIGKILL | of these to one process | saved on the stop "
        "| runs compared | differences |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (method, count), tally in tallies.items():
        per = [sum(n for kind, n in tally.stops.items() if kind.startswith(number.name)) for number in SIGNALS]
        one = sum(n for kind, n in tally.stops.items() if kind.endswith("one"))
        print(
            f"| {method} | {count} | {per[0]} | {per[1]} | {per[2]} | {one} | {tally.saved} "
            f"| {tally.compared} | {len(tally.faults)} |"
        )
    faults = [fault for tally in tallies.values() for fault in tally.faults]
    for fault in faults:
        print(fault)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
