"""What a network of which each batch uses a part needs from the Trainer's strategy."""

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from routing_lightning.errors import UsageError
from routing_lightning.nn import Blocks


def prepare_strategy(trainer: L.Trainer, module: nn.Module) -> None:
    """Makes DDP expect unused parameters, however it was asked for, and refuses what would fail within the run.

    Args:
        trainer: the Trainer.
        module: the model.

    Raises:
        UsageError: if the strategy cannot serve such a network.
    """
    strategy = trainer.strategy
    if isinstance(strategy, SingleDeviceStrategy):
        return
    if not isinstance(strategy, DDPStrategy):
        raise UsageError(
            f"trainer.strategy is {type(strategy).__name__}, which handles parameters that a batch does not use; "
            "set trainer.strategy to ddp."
        )
    if strategy._ddp_kwargs.get("static_graph"):
        raise UsageError(
            "static_graph of trainer.strategy is true, but each batch uses other blocks; leave static_graph out."
        )
    # A block or a task may get samples on some ranks and not on others, or on none.
    strategy._ddp_kwargs["find_unused_parameters"] = True
    if trainer.world_size > 1 and strategy._layer_sync is not None:
        for name, blocks in module.named_modules():
            if isinstance(blocks, Blocks) and any(isinstance(part, _BatchNorm) for part in blocks.modules()):
                raise UsageError(
                    f"trainer.sync_batchnorm is true, but a process whose samples do not use a block of {name} would "
                    "leave the others waiting; set it to false."
                )
