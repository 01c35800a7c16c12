"""Whether the fast paths cost accuracy: trainings with and without them, through the command line."""

import json
from pathlib import Path

import lightning as L
import torch

from benchmarks.fit import train
from benchmarks.harness import Options, Table
from routing_lightning.nn import dispatch


class Accuracies(L.Callback):
    """Writes the validation accuracy of each epoch, in %, to ``measured.json`` in the run's root.

    Args:
        slow: one product per block and contiguous images, in place of compiled loops and channels-last.
    """

    def __init__(self, slow: bool = False) -> None:
        self.slow = slow
        self.accuracies: list[float] = []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.slow:
            dispatch.fastest_way = lambda *_: dispatch._SegmentLinear
            pl_module.network.body[0].to(memory_format=torch.contiguous_format)
            pl_module.network.body[0].register_forward_pre_hook(lambda _, given: (given[0].contiguous(),))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.accuracies.append(round(100 * trainer.callback_metrics["val/acc"].item(), 1))
        Path(trainer.default_root_dir, "measured.json").write_text(json.dumps(self.accuracies))


def accuracies(options: Options, seed: int, words: list[str]) -> list[float]:
    """Accuracies of a training, epoch by epoch."""
    line = [f"--data.init_args.root={options.root}", f"--seed_everything={seed}", "--trainer.max_epochs=3"]
    line += ["--trainer.num_sanity_val_steps=0"]
    return train(options, "benchmarks.accuracy.Accuracies", [*line, *words])


def run(options: Options) -> list[Table]:
    """Accuracy after each of three epochs of CIFAR-MTL; needs ``--root``."""
    table = Table("CIFAR-MTL, accuracy after epochs 1 to 3 in %, configs/cifar_mtl.yaml")
    if options.root is None:
        return [table]
    ways = {
        "as shipped": [],
        "product per block, contiguous": ["--trainer.callbacks.slow=true"],
        "bf16-mixed": ["--trainer.precision=bf16-mixed"],
    }
    for seed in (0,) if options.quick else (0, 1):
        for name, words in ways.items():
            first, second, third = accuracies(options, seed, words)
            table.rows.append({"way": name, "seed": seed, "epoch 1": first, "epoch 2": second, "epoch 3": third})
    return [table]
