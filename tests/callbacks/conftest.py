"""Short trainings with callbacks."""

from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from routing_lightning.callbacks import BlockUsage, PolicyDynamics, PolicyHeatmap, RouteRecorder, RoutingMap
from tests.conftest import ToyDataModule, toy_model


def all_callbacks(**intervals: int) -> list[L.Callback]:
    """One of each, the recorder first."""
    steps = {"every_n_steps": intervals.get("every_n_steps", 4)}
    epochs = {"every_n_epochs": intervals.get("every_n_epochs", 1)}
    return [
        RouteRecorder(),
        PolicyHeatmap(**steps, **epochs),
        PolicyDynamics(**steps, **epochs),
        RoutingMap(**epochs),
        BlockUsage(**steps, **epochs),
    ]


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., L.Trainer]:
    """Trains the toy model, or the one given."""

    def run(callbacks: list[L.Callback], model=None, data=None, ckpt_path=None, **options) -> L.Trainer:
        options = {
            "max_epochs": 2,
            "accelerator": "cpu",
            "default_root_dir": tmp_path,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
            **options,
        }
        trainer = L.Trainer(callbacks=callbacks, **options)
        data = ToyDataModule() if data is None else data
        trainer.fit(toy_model() if model is None else model, datamodule=data, ckpt_path=ckpt_path)
        return trainer

    return run


def events(folder: str | Path) -> EventAccumulator:
    """All events of a run."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def table_of_checkpoint(trainer: L.Trainer) -> torch.Tensor:
    """The policy in the checkpoint of a run with WPL, whose table holds the probabilities."""
    state = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["state_dict"]
    (table,) = [value for name, value in state.items() if name.endswith("policy.table")]
    return table


class Spy(L.Callback):
    """Keeps the routes and policies of a training, in the plainest way."""

    def __init__(self) -> None:
        self.tasks: list[torch.Tensor] = []
        self.actions: list[torch.Tensor] = []
        self.policies: dict[int, torch.Tensor] = {}

    def on_train_start(self, trainer, pl_module) -> None:
        self.policies[trainer.global_step] = pl_module.router.probabilities().clone()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.tasks.append(outputs["trace"].tasks.clone())
        self.actions.append(outputs["trace"].actions.clone())
        self.policies[trainer.global_step] = pl_module.router.probabilities().clone()

    def counts(self, shape: tuple[int, int, int]) -> torch.Tensor:
        """(T, D, K), counted one by one."""
        counts = torch.zeros(shape, dtype=torch.long)
        for task, actions in zip(torch.cat(self.tasks).tolist(), torch.cat(self.actions).tolist(), strict=True):
            for depth, action in enumerate(actions):
                counts[task, depth, action] += 1
        return counts
