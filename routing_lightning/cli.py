"""The command line: LightningCLI with errors in a sentence, and checkpoints that never overrule the command line."""

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console
from rich.table import Table

from routing_lightning.datamodules import MultiTaskDataModule
from routing_lightning.errors import UsageError
from routing_lightning.modules import TaskClassifier

CONFIG_KEY = "routing_lightning_config"


class SaveConfig(SaveConfigCallback):
    """Saves the config beside the logs, and inside each checkpoint, so that a checkpoint alone is enough to go on."""

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Adds the config, as YAML text."""
        checkpoint[CONFIG_KEY] = self.parser.dump(self.config, skip_none=False)


def checkpoint_config(path: str) -> str | None:
    """Model, data and seed of the run that wrote a checkpoint, as YAML; None if it holds no config.

    Raises:
        UsageError: if there is no such file or it is no checkpoint.
    """
    if not Path(path).is_file():
        raise UsageError(f"ckpt_path {path} is no file; give the path of a checkpoint.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(f"ckpt_path {path} cannot be read as a checkpoint ({error}); give an unbroken one.") from error
    if CONFIG_KEY not in checkpoint:
        return None
    config = yaml.safe_load(checkpoint[CONFIG_KEY])
    return yaml.safe_dump({key: config[key] for key in ("seed_everything", "model", "data") if key in config})


class RoutingCLI(LightningCLI):
    """LightningCLI for routing networks and their baselines.

    Values come, strongest first, from the command line, from ``--config`` files (later ones first), from the
    checkpoint given with ``--ckpt_path``, from the defaults.
    """

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Puts the checkpoint's config, if one is given, before all other values."""
        words = list(args)  # type: ignore[arg-type]
        for position, word in enumerate(words):
            name, _, value = word.partition("=")
            if name == "--ckpt_path" and position > 0:
                value = value or (words[position + 1] if position + 1 < len(words) else "")
                if value in ("", "null", "best", "last", "hpc", "registry"):  # Lightning's own words
                    break
                config = checkpoint_config(value)
                if config is not None:
                    words[1:1] = ["--config", config]
                break
        self.config = parser.parse_args(words)

    def _parse_ckpt_path(self) -> None:
        """Switches off Lightning's way, by which a checkpoint's values silently replace those of the command line."""

    def before_instantiate_classes(self) -> None:
        """Names our option where the Trainer would refuse its own."""
        config = self.config[self.subcommand] if self.subcommand else self.config
        for option, off in (("gradient_clip_val", None), ("accumulate_grad_batches", 1)):
            value = config.trainer.get(option)
            if value not in (off, None) and "RoutedClassifier" in str(config.model.get("class_path")):
                raise UsageError(
                    f"trainer.{option} is {value}, but routing networks optimize manually and Lightning then refuses "
                    f"it; set --model.init_args.{option}={value} in its place."
                )

    def after_fit(self) -> None:
        """Prints accuracy per task, and how to open TensorBoard."""
        self.print_accuracies("val")
        log_dir = self.trainer.log_dir
        if self.trainer.is_global_zero and log_dir and any(Path(log_dir).glob("events.out.*")):
            print(f"Open TensorBoard: tensorboard --logdir {Path(log_dir).parent}")

    def print_accuracies(self, stage: str) -> None:
        """Prints a table of the stage's accuracy per task."""
        prefix = f"{stage}/acc_task/"
        metrics = self.trainer.callback_metrics
        if not self.trainer.is_global_zero or f"{stage}/acc" not in metrics:
            return
        table = Table("task", "accuracy", title=f"Accuracy per task ({stage})")
        for name, value in metrics.items():
            if name.startswith(prefix):
                table.add_row(name.removeprefix(prefix), f"{100 * float(value):.1f} %")
        table.add_section()
        table.add_row("mean over tasks", f"{100 * float(metrics[f'{stage}/acc']):.1f} %")
        Console().print(table)


def main(args: ArgsType = None) -> RoutingCLI:
    """Runs the command line.

    Args:
        args: the words after ``train.py``; those of the process by default.

    Returns:
        The CLI after its run, with ``trainer``, ``model`` and ``datamodule``.

    Raises:
        SystemExit: with code 1 after a user's mistake, told in one sentence; with 2 for wrong arguments.
    """
    # The data lies in memory and a batch is one index operation: workers would only cost.
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    # The checks of a batch are the model's, whatever the datamodule.
    warnings.filterwarnings("ignore", ".*have passed in a `LightningDataModule`. It will use the implementation from.*")
    # Metrics are added up over processes before they are logged.
    warnings.filterwarnings("ignore", ".*when logging on epoch level in distributed setting.*")
    try:
        return RoutingCLI(
            TaskClassifier,
            MultiTaskDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=SaveConfig,
            auto_configure_optimizers=False,
            args=sys.argv[1:] if args is None else args,
        )
    except (UsageError, MisconfigurationException) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
