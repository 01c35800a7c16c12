"""How step time and memory grow with the number of blocks and tasks."""

from functools import partial

import torch

from benchmarks.harness import (
    Options,
    Table,
    forget_peak,
    in_fresh_process,
    in_turns,
    memory,
    milliseconds,
    ratio,
    significant,
)
from benchmarks.steps import RoutedStep, batch_of, task_step
from routing_lightning.allocator import keep_freed_memory
from routing_lightning.networks import CrossStitch, SoftMixture

BATCH = 64
LARGEST_DENSE = 100  # blocks at which computing all blocks for each sample still fits and ends


def concentrate(step: RoutedStep, blocks: int) -> None:
    """Makes all tasks draw evenly from the first few blocks, as if the router had settled on them."""
    table = step.router.policy.table
    table.zero_()
    table[:, :, :blocks] = 1 / blocks
    step.router.learner.policy_lr = 1e-6  # and stay there


def touched(step: RoutedStep, num_tasks: int, device: str) -> float:
    """Mean number of blocks, over all layers, that a batch uses."""
    counts = []
    for _ in range(10):
        trace = step(batch_of(BATCH, num_tasks, device))
        counts.append(sum(len(column.unique()) for column in trace.actions.T))
    return significant(sum(counts) / len(counts))


def make(way: str, count: int, device: str):  # type: ignore[no-untyped-def]
    """A step with as many blocks per layer as tasks."""
    if way == "routing":
        return RoutedStep(count, count, device)
    return task_step(CrossStitch if way == "cross-stitch" else SoftMixture, count, device)


def peak(way: str, count: int, device: str, threads: int) -> float:
    """Memory in MB that a process needs for three steps, above what it needs for the smallest network."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    make("routing", 2, device)(batch_of(BATCH, 2, device))
    before = memory(device, peak=False)
    forget_peak(device)
    step = make(way, count, device)
    for _ in range(3):
        step(batch_of(BATCH, count, device))
    return round(memory(device, peak=True) - before, 1)


def against_ten(counts: tuple[int, ...], options: Options, settled: bool) -> Table:
    """Steps at several numbers of blocks against one with 10."""
    device = options.device
    how = "all tasks draw from the same 10 blocks" if settled else "every task draws evenly from all blocks"
    table = Table(f"routed step at batch {BATCH}, as many tasks as blocks per layer, 3 layers; {how}")
    for count in counts:
        steps = {"10": RoutedStep(10, 10, device), "K": RoutedStep(count, count, device)}
        if settled:
            concentrate(steps["K"], min(10, count))
        batches = {"10": batch_of(BATCH, 10, device), "K": batch_of(BATCH, count, device)}
        times = in_turns({name: partial(steps[name], batches[name]) for name in steps}, options, 0.1)
        table.rows.append(
            {
                "blocks per layer": count,
                "blocks used": touched(steps["K"], count, device),
                "step ms": milliseconds(times["K"]),
                "step / step at 10 blocks": significant(ratio(times, "K", "10")),
            }
        )
    return table


def run(options: Options) -> list[Table]:
    """Times and peak memory of routing, and of the methods that compute all blocks, from 2 to 1,000 blocks."""
    counts = (2, 10, 100) if options.quick else (2, 5, 10, 20, 100, 1000)
    tables = [against_ten(counts, options, settled) for settled in (True, False)]
    dense = Table(f"routing against methods that compute all blocks for each sample, batch {BATCH}")
    for count in counts:
        names = ("routing", "cross-stitch", "soft mixture") if count <= LARGEST_DENSE else ("routing",)
        steps = {name: make(name, count, options.device) for name in names}
        batch = batch_of(BATCH, count, options.device)
        times = in_turns({name: partial(step, batch) for name, step in steps.items()}, options, 0.1)
        row: dict[str, object] = {"blocks per layer": count}
        for name in ("routing", "cross-stitch", "soft mixture"):
            row[f"{name} ms"] = milliseconds(times[name]) if name in times else "-"
            measured = name in times
            row[f"{name} MB"] = (
                in_fresh_process(peak, name, count, options.device, options.threads) if measured else "-"
            )
        for name in ("cross-stitch", "soft mixture"):
            row[f"routing / {name}"] = significant(ratio(times, "routing", name)) if name in times else "-"
        dense.rows.append(row)
    return [*tables, dense]
