"""What looking for NaN and infinity costs: the same training with ``detect`` switched off and on in turns."""

import statistics
import time
import warnings

import lightning as L
import torch

from benchmarks.harness import Options, Table, significant
from benchmarks.synthetic import Synthetic
from routing_lightning.modules import RoutedClassifier
from routing_lightning.modules.detect import LOOK
from routing_lightning.routers import WPL, RewardRouter, TabularPolicy

PHASE = 16  # batches of a turn; the looks at the weights, which are timed apart, then fall on none


class Turns(L.Callback):
    """Switches ``detect`` every ``PHASE`` batches and notes the processor time of each batch."""

    def __init__(self) -> None:
        self.times: dict[bool, list[float]] = {True: [], False: []}

    def on_train_batch_start(self, trainer: L.Trainer, model: L.LightningModule, batch: object, index: int) -> None:
        now = time.process_time()
        if index:
            self.times[model.detector is not None].append(now - self.last)
        if index == 0:
            self.detector = model.detector
        model.detector = self.detector if index // PHASE % 2 else None
        self.last = time.process_time()


def measure(batch_size: int, batches: int) -> dict[str, object]:
    """Medians of a step without and with ``detect``, and the share that it adds, looks at the weights included."""
    torch.manual_seed(0)
    data = Synthetic(batch_size=batch_size)
    data.setup("fit")
    router = RewardRouter(TabularPolicy(), WPL())
    model = RoutedClassifier(data.num_tasks, data.num_classes, data.image_shape, router)
    turns = Turns()
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=batches, limit_val_batches=0, callbacks=[turns], **quiet
    )
    trainer.fit(model, data)
    # Neighbouring turns are compared, so that what else the machine does hits both alike.
    ways = [turns.times[way][: len(turns.times[True]) // PHASE * PHASE] for way in (False, True)]
    off = statistics.median(ways[0])
    parts = [[statistics.median(way[i : i + PHASE]) for i in range(0, len(way), PHASE)] for way in ways]
    on = off + statistics.median(b - a for a, b in zip(*parts, strict=False))
    detector = turns.detector
    begin = time.process_time()
    for _ in range(20):
        detector.look(model, 0)
    look = (time.process_time() - begin) / 20
    added = on - off + look / LOOK
    return {
        "batch": batch_size,
        "step without, ms": significant(1e3 * off),
        "step with, ms": significant(1e3 * on),
        "a look at the weights, ms": significant(1e3 * look),
        "added, looks included": f"{100 * added / off:.2f} %",
    }


def run(options: Options) -> list[Table]:
    """A training on noise of CIFAR's shape, 20 tasks, 20 blocks in each of 3 layers."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    table = Table("detect switched off and on every 16 batches within one training, processor time")
    for batch_size, batches in ((16, 1_500), (256, 160)):
        table.rows.append(measure(batch_size, batches // 4 if options.quick else batches))
    return [table]
