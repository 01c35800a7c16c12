"""Optimizer and learning rate schedule of a module, as a config names them."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.modules.schedule import LASTING, run_length, with_length
from routing_lightning.networks.pace import learning_rate_factors


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of the paper (section 4): SGD with learning rate 1e-2, no momentum."""
    return torch.optim.SGD(parameters, lr=1e-2)


def is_plateau(scheduler: Any) -> bool:
    """Whether a scheduler looks at a metric."""
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def check_keeps_factors(scheduler: Any, optimizer: torch.optim.Optimizer, factors: Sequence[float]) -> None:
    """Checks that a scheduler did not bring slower groups of parameters to the learning rate of the others.

    Raises:
        ValueError: if it did, as those do that set the rate themselves.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for rate, factor in zip(rates, factors, strict=True):
        if not math.isclose(rate, rates[0] * factor, rel_tol=1e-6):
            raise ValueError(
                f"{type(scheduler).__name__} sets the learning rate to {rate:g} where parts that learn slower should "
                f"have {rates[0] * factor:g}; take a schedule that multiplies the rate, such as StepLR"
            )


def told(optimizer: torch.optim.Optimizer, scheduler: Any = None) -> dict[str, Any]:
    """Values of an optimizer that hold for a whole run: those that a schedule moves are not among them.

    Args:
        optimizer: the optimizer, before its first step.
        scheduler: what moves its learning rate, made already; OneCycleLR and CyclicLR may move the momentum, too.
    """
    group = optimizer.param_groups[0]
    found = {name: group.get(name) for name in ("momentum", "weight_decay")}
    if getattr(scheduler, "cycle_momentum", False):
        del found["momentum"]
    return {"lr": group.get("initial_lr", group.get("lr")), **found}


class OptimizingModule(L.LightningModule):
    """A module with one optimizer over its parameters and, if wanted, one schedule of its learning rate.

    Args:
        optimizer: makes the optimizer from the parameters; SGD with lr 1e-2 (paper, section 4) by default.
        lr_scheduler: makes the learning rate scheduler from the optimizer; none by default. A length (``total_steps``,
            ``T_max``, ``total_iters``) that is null or -1 is that of the run, in the unit of ``lr_interval``.
        lr_interval: step the scheduler each ``"epoch"`` or each optimizer ``"step"``.

    Attributes:
        lr: learning rate in place of the optimizer's own, above 0, or None; Lightning's LearningRateFinder sets it.

    Raises:
        UsageError: if the interval is none.
    """

    def __init__(
        self,
        optimizer: OptimizerCallable = sgd,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_interval: str = "epoch",
    ) -> None:
        super().__init__()
        if lr_interval not in ("epoch", "step"):
            raise UsageError(f"lr_interval is {lr_interval!r}; give 'epoch' or 'step'.")
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.lr_interval = lr_interval
        self.lr: float | None = None

    def trained_parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that the optimizer moves; frozen ones come to it when a callback unfreezes them."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def parameter_groups(self) -> tuple[Any, list[float]]:
        """Parameters, or groups of them where some learn slower, and the factor on the learning rate of each group."""
        factor_of = learning_rate_factors(self)
        parameters = self.trained_parameters()
        factors = [1.0, *sorted({factor_of[id(p)] for p in parameters if id(p) in factor_of} - {1.0})]
        if len(factors) == 1:
            return parameters, factors
        groups = [[p for p in parameters if factor_of.get(id(p), 1.0) == factor] for factor in factors]
        return [{"params": group} for group in groups], factors

    def batches_per_step(self, epoch: int) -> int:
        """Batches per optimizer step in an epoch, from 0."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GradientAccumulationScheduler):
                return int(callback.get_accumulate_grad_batches(epoch))
        return self.trainer.accumulate_grad_batches

    def run_length(self, interval: str) -> int:
        """Number of ``"epoch"`` or ``"step"`` of a schedule in the run."""
        return run_length(self.trainer, self.batches_per_step, interval)

    def configure_optimizers(self) -> Any:
        """Optimizer and scheduler as configured.

        Raises:
            UsageError: if the optimizer or scheduler refuses its values, or its length is that of a run without end.
        """
        make_lr_scheduler = with_length(self.make_lr_scheduler, partial(self.run_length, self.lr_interval))
        try:
            parameters, factors = self.parameter_groups()
            optimizer = self.make_optimizer(parameters)
            for group, factor in zip(optimizer.param_groups, factors, strict=True):
                if self.lr is not None or factor != 1:
                    group["lr"] = factor * (group["lr"] if self.lr is None else self.lr)
            if isinstance(optimizer, torch.optim.LBFGS):
                raise ValueError("LBFGS evaluates the loss several times per step, which is not supported here")
            if not all(math.isfinite(group.get("lr", 0)) for group in optimizer.param_groups):
                raise ValueError(f"lr is {optimizer.param_groups[0]['lr']}, which is no finite number")
            self.configured = told(optimizer)
            if make_lr_scheduler is None:
                return optimizer
            scheduler = make_lr_scheduler(optimizer)
            scheduler.state_dict()  # else known only when a checkpoint is saved
            self.configured = told(optimizer, scheduler)
            if len(factors) > 1:
                check_keeps_factors(scheduler, optimizer, factors)
        except (ValueError, TypeError, ArithmeticError, RuntimeError, AttributeError) as error:
            raise UsageError(
                f"the optimizer or lr_scheduler refuses its values: {error}; mend its init_args."
            ) from error
        if is_plateau(scheduler):
            if not hasattr(scheduler, "monitor"):
                raise UsageError(
                    "lr_scheduler ReduceLROnPlateau of torch does not say what it monitors; use "
                    "lightning.pytorch.cli.ReduceLROnPlateau with monitor, for example val/loss."
                )
            if self.lr_interval == "step":
                raise UsageError(
                    "lr_interval is 'step' but lr_scheduler ReduceLROnPlateau looks at a metric, which is known at the "
                    "end of an epoch; set lr_interval to 'epoch'."
                )
        config: dict[str, Any] = {"scheduler": scheduler, "interval": self.lr_interval}
        if hasattr(scheduler, "monitor"):
            config["monitor"] = scheduler.monitor
        return {"optimizer": optimizer, "lr_scheduler": config}

    def lr_scheduler_step(self, scheduler: Any, metric: Any = None) -> None:
        """Steps a scheduler, if it is not one that looks at a metric.

        :meth:`~routing_lightning.modules.TaskClassifier.on_train_epoch_end` steps those. Lightning
        would do it after checkpoints are saved, which then lack the step.
        """
        if is_plateau(scheduler):
            return
        try:
            scheduler.step()
        except ValueError as error:
            raise UsageError(f"lr_scheduler {type(scheduler).__name__} stops: {error}; {LASTING}.") from error

    def monitored(self, scheduler: Any) -> Tensor:
        """The metric that a scheduler watches."""
        metrics = self.trainer.callback_metrics
        if scheduler.monitor not in metrics:
            names = ", ".join(name for name in sorted(metrics) if "/acc_task/" not in name)
            raise UsageError(f"lr_scheduler monitors {scheduler.monitor!r}, which is not logged; give one of {names}.")
        return metrics[scheduler.monitor]
