"""Learning rates of the parts of a network, and schedules that would lose them."""

from functools import partial

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules.optimizing import OptimizingModule


class Slow(nn.Linear):
    def paced_parameters(self):
        return list(self.parameters()), 0.1


def made(**options) -> OptimizingModule:
    module = OptimizingModule(partial(torch.optim.SGD, lr=0.5), **options)
    module.fast, module.slow = nn.Linear(2, 2), Slow(2, 2)
    return module


def rates(optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("lr, first", [(None, 0.5), (2.0, 2.0)])
def test_slower_parts_stay_slower_whatever_the_rate(lr, first):
    module = made()
    module.lr = lr  # as Lightning's LearningRateFinder sets it
    assert rates(module.configure_optimizers()) == pytest.approx([first, 0.1 * first])
    assert module.configured["lr"] == first


def test_a_schedule_that_multiplies_keeps_the_factor_and_one_that_sets_the_rate_is_refused():
    configured = made(lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1)).configure_optimizers()
    configured["optimizer"].step(), configured["lr_scheduler"]["scheduler"].step()
    assert rates(configured["optimizer"]) == pytest.approx([0.05, 0.005])
    for setter in (
        partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=10),
        partial(torch.optim.lr_scheduler.CyclicLR, base_lr=0.1, max_lr=1.0),
    ):
        with pytest.raises(UsageError, match="where parts that learn slower should have"):
            made(lr_scheduler=setter).configure_optimizers()
