"""The command line, with a sign for the one who stops it that training has begun: ``train.py SIGN fit ...``."""

import sys
from pathlib import Path

from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningCLI

from routing_lightning.cli import main


class Sign(Callback):
    """Writes a file when training begins, and one when it ends."""

    def on_train_start(self, trainer, pl_module):
        Path(f"{sys.argv[1]}.{trainer.global_rank}").touch()

    def on_train_end(self, trainer, pl_module):
        Path(f"{sys.argv[1]}.{trainer.global_rank}.ended").touch()


class Noticed:
    """Adds the sign to the callbacks of the command line, whose words stay those of a user."""

    original = LightningCLI.instantiate_trainer

    def instantiate_trainer(self, callbacks=(), **kwargs):
        return Noticed.original(self, callbacks=[*callbacks, Sign()], **kwargs)


if __name__ == "__main__":
    LightningCLI.instantiate_trainer = Noticed.instantiate_trainer
    main(sys.argv[2:])
