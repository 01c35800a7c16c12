"""One of two processes that share a device: trains the digits and leaves its router in the folder given."""

import os
import sys
from pathlib import Path

import torch

from routing_lightning.cli import main


def train(folder: str, accelerator: str, backend: str) -> None:
    """Trains 20 steps as a node of one device.

    Args:
        folder: where ``rank_<rank>.pt`` goes.
        accelerator: ``gpu`` or ``cpu``.
        backend: of the process group, ``nccl`` or ``gloo``.
    """
    config = Path(__file__).parents[1] / "configs" / "digits_mtl.yaml"
    strategy = "--trainer.strategy=lightning.pytorch.strategies.DDPStrategy"
    cli = main(
        [
            "fit", f"--config={config}", f"--trainer.accelerator={accelerator}", "--trainer.devices=1",
            "--trainer.num_nodes=2", strategy, f"--trainer.strategy.init_args.process_group_backend={backend}",
            "--trainer.max_steps=20", "--trainer.limit_val_batches=2", f"--trainer.default_root_dir={folder}",
            "--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false", "--record=null",
        ]
    )  # fmt: skip
    assert cli is not None
    state = {name: value.cpu() for name, value in cli.model.router.state_dict().items()}
    torch.save(state, Path(folder) / f"rank_{os.environ['NODE_RANK']}.pt")


if __name__ == "__main__":
    train(*sys.argv[1:])
