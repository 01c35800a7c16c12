from types import SimpleNamespace

import pytest
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules.strategy import prepare_strategy
from routing_lightning.nn import ModuleBlocks
from tests.conftest import toy_model


def prepare(strategy, model=None):
    prepare_strategy(SimpleNamespace(strategy=strategy, world_size=2), model or toy_model())


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": False}, {"find_unused_parameters": True}])
def test_ddp_expects_unused_parameters_however_it_was_asked_for(options):
    strategy = DDPStrategy(**options)
    prepare(strategy)
    assert strategy._ddp_kwargs["find_unused_parameters"] is True


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda: DDPStrategy(static_graph=True), "static_graph"),
        (FSDPStrategy, "FSDPStrategy.*set trainer.strategy to ddp"),
    ],
)
def test_what_would_fail_within_the_run_is_refused(strategy, message):
    with pytest.raises(UsageError, match=message):
        prepare(strategy())
    prepare(SingleDeviceStrategy())


def test_batch_normalisation_is_synchronised_only_outside_of_blocks():
    strategy = DDPStrategy()
    strategy._layer_sync = TorchSyncBatchNorm()
    prepare(strategy)  # the features, which all processes use
    blocks = ModuleBlocks([nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 2)) for _ in range(2)])
    with pytest.raises(UsageError, match="sync_batchnorm"):
        prepare(strategy, nn.Sequential(blocks))
