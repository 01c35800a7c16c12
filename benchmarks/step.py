"""A routed training step against the same network without routing."""

from collections.abc import Callable
from functools import partial

from benchmarks.harness import Elsewhere, Options, Table, Way, in_turns, milliseconds, ratio, significant
from benchmarks.steps import RoutedStep, batch_of, fully_connected, plain_step, textbook_convnet
from routing_lightning.networks import SimpleConvNet

TASKS = 20


def textbook(size: int, device: str) -> Callable[[], None]:
    """A step as a user would write it, contiguous."""
    step = plain_step(textbook_convnet(), fully_connected(128), device)
    return partial(step, batch_of(size, TASKS, device, channels_last=False))


def run(options: Options) -> list[Table]:
    """Times one step of each network at several batch sizes: 20 tasks, 20 blocks in each of three layers."""
    table = Table(
        "one training step, float32, in turns; plain: same features, one fully connected stack; textbook: contiguous, "
        "in a process with memory as glibc manages it; all others keep freed memory, as the command line does"
    )
    device = options.device
    for size in (16, 64, 256) if options.quick else (16, 64, 256, 1024):
        features = SimpleConvNet()
        elsewhere = Elsewhere(options, textbook, size, device)
        batch = batch_of(size, TASKS, device)
        ways: dict[str, Way] = {
            "plain": partial(plain_step(features, fully_connected(features.out_features), device), batch),
            "routed": partial(RoutedStep(TASKS, TASKS, device), batch),
            "textbook": elsewhere,
            "textbook, memory kept": textbook(size, device),
        }
        times = in_turns(ways, options, turn_seconds=0.1)
        elsewhere.close()
        table.rows.append(
            {
                "batch": size,
                **{f"{name} ms": milliseconds(values) for name, values in times.items()},
                "routed - plain, ms": significant(milliseconds(times["routed"]) - milliseconds(times["plain"])),
                "routed / plain": significant(ratio(times, "routed", "plain")),
                "textbook / routed": significant(ratio(times, "textbook", "routed")),
                "textbook, memory kept / routed": significant(ratio(times, "textbook, memory kept", "routed")),
                "turns": len(times["plain"]),
            }
        )
    return [table]
