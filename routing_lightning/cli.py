"""The command line: LightningCLI with errors in a sentence, and checkpoints that never overrule the command line."""

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
import yaml
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console
from rich.table import Table

from routing_lightning.allocator import keep_freed_memory
from routing_lightning.callbacks import BlockUsage, PolicyDynamics, PolicyHeatmap, RouteRecorder, RoutingMap
from routing_lightning.callbacks.predictions import PredictionTable
from routing_lightning.datamodules import MultiTaskDataModule
from routing_lightning.errors import UsageError
from routing_lightning.modules import TaskClassifier
from routing_lightning.parser import SentenceParser
from routing_lightning.report import run_command

# What a model gets from its data, by the names that both have for it.
SIZES = ("num_tasks", "num_classes", "image_shape")

CONFIG_KEY = "routing_lightning_config"

OTHER_COMMANDS = (
    "Two more commands read runs and train nothing: `plot RUN...` draws what the router learned as PNG and SVG; "
    "`report RUN... [--out DIR]` writes one HTML page about the runs. `plot --help` and `report --help` say more."
)

# What `record` holds by default: shows what the router learns, at intervals that cost next to nothing.
RECORD = tuple(
    {"class_path": f"routing_lightning.callbacks.{callback.__name__}"}
    for callback in (RouteRecorder, PolicyHeatmap, PolicyDynamics, RoutingMap, BlockUsage)
)


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
        raise UsageError(f"ckpt_path {path} is no checkpoint that can be read; give an unbroken one.") from error
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

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds ``record``, apart from ``trainer.callbacks``, so that a user's callbacks do not drop ours."""
        parser.add_argument(
            "--record",
            type=list[L.Callback] | None,
            default=list(RECORD),
            help="callbacks that record and show what the router learns; null: none",
        )
        for size in SIZES:
            parser.link_arguments(f"data.{size}", f"model.init_args.{size}", apply_on="instantiate")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Adds the callbacks of ``record`` to the user's."""
        callbacks = self._get(self.config_init, "trainer.callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        record = self._get(self.config_init, "record") or []
        if self.subcommand == "predict":
            record = [PredictionTable()]
        return super().instantiate_trainer(callbacks=[*callbacks, *record], **kwargs)

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

    def instantiate_classes(self) -> None:
        """Makes data, model and Trainer; the model gets its sizes from the data.

        Raises:
            UsageError: if a size was set by hand to something else.
        """
        config = self.config[self.subcommand] if self.subcommand else self.config
        given = config.get("model.init_args") or {}
        by_hand = {size: given[size] for size in SIZES if given.get(size) is not None}
        super().instantiate_classes()
        for size, value in by_hand.items():
            right = getattr(self.datamodule, size)
            if value != right:
                raise UsageError(
                    f"model.init_args.{size} is {value} but the data has {right}; leave it out, it comes from the data."
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


def usage_error(error: BaseException) -> BaseException | None:
    """The user's mistake behind an error, if there is one: jsonargparse wraps what a constructor raises."""
    if isinstance(error, RuntimeError) and "loading state_dict" in str(error):
        detail = " ".join(str(error).splitlines()[1:2]).strip()
        return UsageError(f"the checkpoint does not fit the model ({detail}); give the config of its run, or none.")
    if isinstance(error, RuntimeError) and "conditioned on metric" in str(error):
        return UsageError(" ".join(str(error).split()))
    if isinstance(error, OSError) and error.filename is not None:
        return UsageError(f"{error.filename}: {error.strerror}; give a path that can be read or written.")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (UsageError, MisconfigurationException)):
            return cause
        cause = cause.__cause__
    return None


def main(args: ArgsType = None) -> RoutingCLI | None:
    """Runs the command line: a method of the Trainer, or ``plot`` or ``report``.

    Args:
        args: the words after ``train.py``; those of the process by default.

    Returns:
        The CLI after its run, with ``trainer``, ``model`` and ``datamodule``; None after ``plot`` and ``report``.

    Raises:
        SystemExit: with code 1 after a user's mistake, told in one sentence; with 2 for wrong arguments.
    """
    # The data lies in memory and a batch is one index operation: workers would only cost.
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    # The checks of a batch are the model's, whatever the datamodule.
    warnings.filterwarnings("ignore", ".*have passed in a `LightningDataModule`. It will use the implementation from.*")
    # Metrics are added up over processes before they are logged.
    warnings.filterwarnings("ignore", ".*when logging on epoch level in distributed setting.*")
    keep_freed_memory()
    words = sys.argv[1:] if args is None else args
    try:
        if isinstance(words, list) and run_command(words):
            return None
        return RoutingCLI(
            TaskClassifier,
            MultiTaskDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},  # a folder is used again where no logger makes a new one
            parser_class=SentenceParser,
            auto_configure_optimizers=False,
            parser_kwargs={"epilog": OTHER_COMMANDS},
            args=words,
        )
    except (ValueError, RuntimeError, OSError, MisconfigurationException) as error:
        mistake = usage_error(error)
        if mistake is None:
            raise
        print(f"error: {mistake}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        # Lightning leaves gloo's connections to the interpreter's end, at which their threads may abort the process.
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
