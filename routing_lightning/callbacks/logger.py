"""RunLogger: TensorBoard's logger, with what a person looks for first."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.tensorboard.summary import hparams

# Options that tell one method from another; all others stand in hparams.yaml and config.yaml.
TOLD = (
    "router", "learner", "policy", "agents", "collaboration", "network", "aggregator", "optimizer", "lr", "policy_lr",
    "alpha", "temperature", "hidden", "num_blocks", "batch_size", "val_fraction",
    "train_fraction", "routes", "shared_depths",
)  # fmt: skip
# Stated of each run, "none" where there is none: TensorBoard's columns are those of whichever run it reads first.
ALWAYS = ("method", "network", "router", "router.agents", "router.learner", "router.policy", "optimizer")


def told_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """The few hyperparameters that name the method: classes by their last name, numbers as they are.

    The learning rates of router and network are both called ``lr``: the router's is ``router.lr``. The method is the
    learner of a RewardRouter, else the router, else the network.
    """
    told: dict[str, Any] = {}

    def add(values: Mapping[str, Any], where: str) -> None:
        for name, value in values.items():
            inner = value.get("init_args") if isinstance(value, Mapping) else None
            kind = value.get("class_path") if isinstance(value, Mapping) else value
            if name in TOLD and isinstance(kind, (str, int, float)):
                told[where + name] = kind.rpartition(".")[2] if isinstance(kind, str) else kind
            if isinstance(inner, Mapping):
                add(inner, "router." if name in ("router", "learner") and where != "network." else f"{name}.")

    add(params, "")
    learns = told.get("router") == "RewardRouter"
    parts = (told.get(name) for name in (*["router.learner"] * learns, "router", "network"))
    told["method"] = next((part for part in parts if part is not None), "none")
    return {**dict.fromkeys(ALWAYS, "none"), **told}


class RunLogger(TensorBoardLogger):
    """Lightning's logger for TensorBoard, but the tab HPARAMS has ``val/acc`` and the few values that name the method.

    The number of the epoch, which Lightning adds to everything and TensorBoard shows first, is ``time/epoch``.
    """

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs numbers."""
        super().log_metrics({"time/epoch" if name == "epoch" else name: metrics[name] for name in metrics}, step)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        """Keeps all values for ``hparams.yaml``, and shows those that name the method, beside ``val/acc``."""
        values = vars(params) if isinstance(params, Namespace) else dict(params)
        values.pop("_instantiator", None)
        self.hparams.update(values)
        for summary in hparams(told_values(values), metrics or {"val/acc": 0}):  # the name alone: no value is logged
            self.experiment._get_file_writer().add_summary(summary, step)
