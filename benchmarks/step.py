"""A routed training step against the same network without routing."""

from functools import partial

from benchmarks.harness import Options, Table, in_turns, milliseconds, ratio, significant
from benchmarks.steps import RoutedStep, batch_of, fully_connected, plain_step, textbook_convnet
from routing_lightning.nn import SimpleConvNet

TASKS = 20


def run(options: Options) -> list[Table]:
    """Times one step at several batch sizes: 20 tasks, 20 blocks in each of three layers."""
    device = options.device
    table = Table("one training step, float32; plain: same features, one fully connected stack; textbook: contiguous")
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
        times = in_turns(ways, options)
        table.rows.append(
            {
                "batch": size,
                **{f"{name} ms": milliseconds(values) for name, values in times.items()},
                "routed / plain": significant(ratio(times, "routed", "plain")),
                "textbook / routed": significant(ratio(times, "textbook", "routed")),
                "turns": len(times["plain"]),
            }
        )
    return [table]
