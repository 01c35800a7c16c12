"""A routed training step against the same network without routing."""

from functools import partial

import torch

from benchmarks.harness import Options, Table, in_fresh_process, in_turns, milliseconds, ratio, significant
from benchmarks.steps import RoutedStep, batch_of, fully_connected, plain_step, textbook_convnet
from routing_lightning.allocator import keep_freed_memory
from routing_lightning.nn import SimpleConvNet

TASKS = 20


def measure(options: Options, kept: bool) -> list[dict[str, object]]:
    """Rows of one table, at several batch sizes: 20 tasks, 20 blocks in each of three layers."""
    torch.set_num_threads(options.threads)
    if kept:
        keep_freed_memory()
    device = options.device
    rows: list[dict[str, object]] = []
    for size in (16, 64, 256) if options.quick else (16, 64, 256, 1024):
        features = SimpleConvNet()
        plain = plain_step(features, fully_connected(features.out_features), device)
        textbook = plain_step(textbook_convnet(), fully_connected(features.out_features), device)
        routed = RoutedStep(TASKS, TASKS, device)
        batch, contiguous = batch_of(size, TASKS, device), batch_of(size, TASKS, device, channels_last=False)
        ways = {
            "plain": partial(plain, batch),
            "routed": partial(routed, batch),
            "textbook": partial(textbook, contiguous),
        }
        times = in_turns(ways, options, turn_seconds=0.1)
        rows.append(
            {
                "batch": size,
                **{f"{name} ms": milliseconds(values) for name, values in times.items()},
                "routed - plain, ms": significant(milliseconds(times["routed"]) - milliseconds(times["plain"])),
                "routed / plain": significant(ratio(times, "routed", "plain")),
                "textbook / routed": significant(ratio(times, "textbook", "routed")),
                "turns": len(times["plain"]),
            }
        )
    return rows


def run(options: Options) -> list[Table]:
    """Times one step of each network, with and without the command line's memory setting."""
    tables = []
    for kept in (True, False):
        how = "freed memory kept, as the command line does" if kept else "memory management as glibc has it"
        title = (
            f"one training step, float32; plain: same features, one fully connected stack; textbook: contiguous; {how}"
        )
        tables.append(Table(title, in_fresh_process(measure, options, kept)))
    return tables
