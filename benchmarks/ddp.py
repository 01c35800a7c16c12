"""Training with one and with two processes."""

import statistics

from benchmarks.fit import command
from benchmarks.harness import Options, Table, significant


def run(options: Options) -> list[Table]:
    """Images per second with 1 and 2 processes of the same batch each; two GPUs are needed for ``cuda``."""
    table = Table("fit with 1 and 2 processes, batch per process as given, wall clock")
    accelerator = "gpu" if options.device == "cuda" else "cpu"
    for batch_size in (64,) if options.quick else (16, 64, 256):
        images = 2_560 if options.quick else 6_400
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(1 if options.quick else 3):
            for count, found in seconds.items():
                words = [f"--trainer.accelerator={accelerator}", f"--trainer.devices={count}"]
                words += ["--trainer.strategy=ddp"] if count > 1 else []
                found.append(command(options, batch_size, images // (batch_size * count), words)["wall"])
        table.rows.append(
            {
                "batch per process": batch_size,
                "1 process, images/s": round(images / statistics.median(seconds[1])),
                "2 processes, images/s": round(images / statistics.median(seconds[2])),
                "speed-up": significant(statistics.median(a / b for a, b in zip(seconds[1], seconds[2], strict=True))),
            }
        )
    return [table]
