"""The commands that train and evaluate: LightningCLI with errors in a sentence and a folder for each run."""

import inspect
import linecache
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import (
    ArgsType,
    LightningArgumentParser,
    LightningCLI,
    SaveConfigCallback,
    _InstantiatorFn,
)
from lightning.pytorch.strategies import Strategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from routing_lightning.allocator import keep_freed_memory
from routing_lightning.callbacks import (
    BlockUsage,
    PolicyDynamics,
    PolicyHeatmap,
    RouteRecorder,
    RoutingMap,
    RunLogger,
    SaveOnStop,
    TaskAccuracy,
    TaskResults,
)
from routing_lightning.callbacks.predictions import PredictionTable
from routing_lightning.cli import checkpoints, folders, predicting, resuming, tables
from routing_lightning.cli.checkpoints import CONFIG_KEY, SIZES
from routing_lightning.cli.progress import NarrowProgressBar
from routing_lightning.cli.quiet import QuietInChildren, keep_quiet
from routing_lightning.cli.threads import set_threads
from routing_lightning.cli.words import Words
from routing_lightning.datamodules import MultiTaskDataModule
from routing_lightning.errors import UsageError, hint
from routing_lightning.modules import TaskClassifier
from routing_lightning.modules.schedule import LENGTHS
from routing_lightning.parser import SentenceParser, one_sentence
from routing_lightning.paths import local_path
from routing_lightning.trust import LIBRARIES, imported, signature_of, takes_null

# Options of the Trainer, its loggers, callbacks and profilers that name a folder.
FOLDERS = ("default_root_dir", "dirpath", "save_dir", "log_dir")

# Numbers of the Trainer by which it divides without a look at them.
ABOVE_ZERO = ("val_check_interval", "check_val_every_n_epoch", "num_nodes")

# What stands for no checkpoint.
NO_CHECKPOINT = (None, "", "null")

# Options that say how long a training is.
LIMITS = ("max_epochs", "max_steps", "max_time")

# Words for a checkpoint that Lightning itself understands.
LIGHTNINGS = ("hpc", "registry")

# What `record` holds by default: shows what the router learns, at intervals that cost next to nothing.
RECORD = tuple(
    {"class_path": f"routing_lightning.callbacks.{callback.__name__}"}
    for callback in (RouteRecorder, PolicyHeatmap, PolicyDynamics, RoutingMap, BlockUsage, TaskAccuracy, TaskResults)
)


class Values:
    """What Lightning's makers of model and data look at in the command line, and nothing else of it.

    The model's callables, such as its optimizer, hold their makers for good: with the command line itself the Trainer
    and the data would go along wherever the model is copied, pickled or sent.
    """

    config_dump: dict[str, Any]

    def _dump_config(self) -> None:
        """Nothing: the values are there."""


class SaveConfig(SaveConfigCallback):
    """Saves the config beside the logs, and inside each checkpoint, so that a checkpoint alone is enough to go on."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Saves the config, unless nothing is to be written."""
        if not trainer.barebones:
            super().setup(trainer, pl_module, stage)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Adds the config, as YAML text, with the batch size that BatchSizeFinder may have found."""
        data = self.config.get("data.init_args")
        found = getattr(getattr(trainer, "datamodule", None), "batch_size", None)
        if found is not None and data is not None and "batch_size" in data:
            data["batch_size"] = found
        checkpoint[CONFIG_KEY] = self.parser.dump(self.config, skip_none=False)


class RoutingCLI(LightningCLI):
    """LightningCLI for routing networks and their baselines.

    Values come, strongest first, from the command line, from ``--config`` files (later ones first), from the
    checkpoint given with ``--ckpt_path``, from the defaults.

    Attributes:
        folder: the folder of this run; None if it writes nothing.
        claimed: folders that loggers of the user's have got.
        trusted: modules that the user has named with ``--trust``.
        length_given: whether the command line says how long the training is.
        first_step: optimizer steps that the checkpoint which a training goes on from has made.
        so_far: config of the run that a training goes on with; None if it goes on with none, or that is not known.
        was_over: whether that run was over already, and nothing was trained.
    """

    folder: Path | None = None
    claimed: Sequence[Path] = ()
    trusted: tuple[str, ...] = ()
    first_step: int = 0
    length_given: bool = True
    so_far: dict[str, Any] | None = None
    was_over: bool = False

    # -- words and options ---------------------------------------------------------------------------------------------

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Puts the checkpoint's config, if one is given, before all other values."""
        assert isinstance(args, list)
        words = Words.of(args)
        if words.command == "predict" and words.value("task") is not None and words.value("images") is None:
            raise UsageError(
                f"task is {words.value('task')} but there are no images to predict it for; give them with --images, or "
                "leave task out: of the test part each image is predicted for the task that it has a label of."
            )
        self.trusted = tuple(words.trusted)
        self.length_given = any(words.values(f"--trainer.{limit}") for limit in LIMITS)
        first: list[str] = []
        last: list[str] = []
        option, given = source_of(words)
        if given not in NO_CHECKPOINT and not (option == "ckpt_path" and given in LIGHTNINGS):
            root = Path(local_path(words.value("trainer.default_root_dir") or "."))
            path = checkpoints.find(given, root, option=option)
            if given in ("last", "best") and folders.is_first_process():
                print(f"{option} {given}: {path}")
            goes_on = words.command == "fit" and option == "ckpt_path"
            parts = (
                checkpoints.OF_RUN if goes_on else checkpoints.OF_TRAINING if option == "weights" else checkpoints.PARTS
            )
            config = checkpoints.config_of(path, words.trusted, words.names(), parts)
            if config and goes_on:
                config = self.so_far = resuming.without_finders(config)
            images = words.value("images") if words.command == "predict" else None
            if images is not None:
                config = config or {}
                config["data"] = predicting.data_config(path, config, images, words.value("task"))
            if config:
                first = ["--config", yaml.safe_dump({words.command: config})]
            last = [f"--{option}={path}"]
            if option == "ckpt_path" and words.value("weights") not in NO_CHECKPOINT:
                last.append("--weights=null")  # the config of a run that began with weights goes on from its own
        elif words.command == "predict" and words.value("images") is not None:
            raise UsageError("images needs a trained network; give its checkpoint with --ckpt_path.")
        command = [] if words.command is None else [words.command]
        self.config = parser.parse_args([*first, *words.before, *command, *words.after, *last])
        if self.so_far is not None:
            resuming.drop_repeated(self.config[words.command].trainer)

    def _parse_ckpt_path(self) -> None:
        """Switches off Lightning's way, by which a checkpoint's values silently replace those of the command line."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds ``name``, ``threads``, and ``record``, apart from ``trainer.callbacks``, so that both are kept."""
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="name of the run's folder; by default method, data and seed. A taken one gets a number",
        )
        parser.add_argument(
            "--threads",
            type=int | str,
            default="auto",
            help="threads to compute with: a number, or auto, which goes by the size of a batch",
        )
        parser.add_argument(  # of all commands, which take each other's configs
            "--weights",
            type=str | None,
            default=None,
            help="of fit: checkpoint whose weights and policies a new run begins with; or last, or best, as ckpt_path",
        )
        parser.add_argument(
            "--detect",
            type=bool,
            default=True,
            help="whether NaN or infinity in images, loss, reward, gradient or policy stops the run",
        )
        parser.add_argument(
            "--record",
            type=list[L.Callback] | None,
            default=list(RECORD),
            help="callbacks that record and show what the router learns; null: none",
        )
        for size in SIZES:
            parser.link_arguments(f"data.{size}", f"model.init_args.{size}", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand in ("validate", "test"):
            parser.set_defaults({"verbose": False})  # the same table as after fit comes in place of Lightning's
        if subcommand == "predict":
            predicting.add_options(parser)
        return parser

    def _set_seed(self) -> None:
        seed = self.config[self.subcommand].get("seed_everything")
        if isinstance(seed, int) and not isinstance(seed, bool) and not 0 <= seed < 2**32:
            raise UsageError(f"seed_everything is {seed}; give an integer from 0 to {2**32 - 1}, or true to draw one.")
        super()._set_seed()

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Begins a training at epoch 0 with ``weights``, or with a ``ckpt_path`` that holds weights alone.

        Such as that of ``extend``.
        """
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        weights = self.config[subcommand].get("weights") if subcommand == "fit" else None
        if weights is not None:
            self.model.begin_with(checkpoints.load(Path(weights)))
            if self.trainer.is_global_zero:
                print(f"training begins at epoch 0 with the weights of {weights}")
        path = kwargs.get("ckpt_path")
        if subcommand == "fit" and path is not None and Path(str(path)).is_file():
            checkpoint = checkpoints.load(Path(str(path)))
            self.first_step = checkpoint.get("global_step", 0)
            if "optimizer_states" not in checkpoint and "lr_schedulers" not in checkpoint:
                self.model.begin_with(checkpoint)
                kwargs["ckpt_path"], self.first_step = None, 0
                if self.trainer.is_global_zero:
                    print(f"ckpt_path {path} holds weights alone: training begins at epoch 0")
            elif self.so_far is not None and self.trainer.is_global_zero:
                for difference in resuming.differences(self.so_far, self.config_dump):
                    print(difference)
        return kwargs

    # -- making the parts ----------------------------------------------------------------------------------------------

    def _add_instantiators(self) -> None:
        values = Values()
        self._dump_config()
        values.config_dump = self.config_dump
        for key, kind in (("model", self._model_class), ("data", self._datamodule_class)):
            self.parser.add_instantiator(_InstantiatorFn(cli=values, key=key), kind)  # type: ignore[arg-type]

    def before_instantiate_classes(self) -> None:
        """Makes paths those of this machine; names our option where the Trainer would refuse its own."""
        config = self.config[self.subcommand]
        make_local(config.trainer)
        for key in ("model", "data", "record", "trainer.callbacks", "trainer.logger"):
            refuse_null(config.get(key), key)
        for option in ABOVE_ZERO:
            value = config.trainer.get(option)
            if isinstance(value, (int, float)) and not value > 0:
                raise UsageError(f"trainer.{option} is {value}; give a number above 0, or leave it out.")
        registry = config.trainer.get("model_registry")
        if registry is not None and not re.search("[A-Za-z]", registry):
            raise UsageError(
                f"trainer.model_registry is {registry!r}; give the name of a model in the hub, such as "
                "my-team/my-model, or leave it out."
            )
        for option, off in (("gradient_clip_val", None), ("accumulate_grad_batches", 1)):
            value = config.trainer.get(option)
            if value not in (off, None) and "RoutedClassifier" in str(config.model.get("class_path")):
                raise UsageError(
                    f"trainer.{option} is {value}, but routing networks optimize manually and Lightning then refuses "
                    f"it; set --model.init_args.{option}={value} in its place."
                )

    def instantiate_classes(self) -> None:
        """Claims the run's folder; makes data, model and Trainer; the model gets its sizes from the data.

        Raises:
            UsageError: if a size was set by hand to something else.
        """
        config = self.config[self.subcommand]
        given = config.get("model.init_args") or {}
        by_hand = {size: given[size] for size in SIZES if given.get(size) is not None}
        self.claim_folder(config)
        # No state of callbacks is needed to evaluate, the Tuner goes back to a checkpoint of its own, and where the
        # run's config is known it is told which of its callbacks are other ones.
        if self.subcommand != "fit" or config.get("ckpt_path") is None or self.so_far is not None:
            warnings.filterwarnings("ignore", ".*callbacks used to create the checkpoint need to be provided.*")
        super().instantiate_classes()
        if not config.get("detect", True):
            self.model.detector = None
        for size, value in by_hand.items():
            right = getattr(self.datamodule, size)
            if value != right:
                raise UsageError(
                    f"model.init_args.{size} is {value} but the data has {right}; leave it out, it comes from the data."
                )
        # Recorded, since results may depend on it in their last bits.
        config["threads"] = set_threads(config.get("threads", "auto"), self.datamodule, self.processes_here())

    def claim_folder(self, config: Any) -> None:
        """Claims the folder of this run, before anything slow, unless the user has given loggers of their own."""
        name = config.get("name")
        name = None if name is None else folders.checked_name(name)
        if self.subcommand != "fit":
            run = folders.run_of(config.get("ckpt_path"))
            name = f"{name or run or folders.default_name(config)}-{self.subcommand}"
        name = name or folders.default_name(config)
        trainer = config.trainer
        own_loggers = trainer.get("logger") not in (None, True, False)
        if trainer.get("fast_dev_run") or trainer.get("barebones") or own_loggers:
            return
        root = Path(trainer.get("default_root_dir") or ".")
        self.folder = folders.folder_of_run(root / folders.RUNS, name)

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Adds the callbacks of ``record`` to the user's, and puts all that the run writes into its folder."""
        trainer = self._get(self.config_init, "trainer")
        callbacks = trainer.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        record = self._get(self.config_init, "record") or []
        if self.subcommand == "predict":
            record = [] if trainer.get("fast_dev_run") else [PredictionTable(self.table_path())]
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if trainer.get("enable_progress_bar") is not False and not has_bar and not trainer.get("barebones"):
            record = [*record, NarrowProgressBar()]
        logger = trainer.get("logger")
        if self.folder is not None:
            if logger is False:
                kwargs["default_root_dir"] = str(self.folder)
            else:
                kwargs["logger"] = RunLogger(
                    str(self.folder.parent.parent), name=self.folder.parent.name, version=self.folder.name
                )
        elif not trainer.get("fast_dev_run") and logger not in (None, True, False):
            for one in logger if isinstance(logger, list) else [logger]:
                claimed = folders.claim_for_logger(one, self._get(self.config, "ckpt_path"), self.claimed)
                if claimed is not None:
                    self.folder, self.claimed = claimed, [*self.claimed, claimed]
        trial = trainer.get("fast_dev_run")
        for callback in callbacks:
            if trial and isinstance(callback, ModelCheckpoint):
                callback.save_last = None  # Lightning's last look at it forgets that a trial writes nothing
        if trainer.get("barebones"):
            record = []
        elif self.subcommand == "fit" and trainer.get("enable_checkpointing") is not False and not trial:
            # Lightning adds its own only where there is no other callback that saves.
            saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
            record = [*record, *([] if saves else [ModelCheckpoint()]), SaveOnStop()]
        try:
            made = super().instantiate_trainer(callbacks=[*callbacks, *record], **kwargs)
        except (ValueError, TypeError) as error:
            refusal = refused_strategy(trainer.get("strategy")) or refused_option(
                with_values(str(error), self.trainer_options())
            )
            raise UsageError(f"the Trainer refuses its options: {refusal}") from error
        made.quiet = QuietInChildren()  # type: ignore[attr-defined]
        return made

    def trainer_options(self) -> dict[str, Any]:
        """The Trainer's options as they were given; empty if that is not known yet."""
        options = self._get(self.config, "trainer") if "config" in vars(self) and self.subcommand else None
        return {} if options is None else dict(vars(options))

    def table_path(self) -> Path | None:
        """The file for predictions, if it is given."""
        out = self._get(self.config, "out")
        return None if out is None else Path(local_path(out))

    def processes_here(self) -> int:
        """Number of processes of this run on this machine's processor."""
        on_cpu = type(self.trainer.accelerator).__name__ == "CPUAccelerator"
        return self.trainer.num_devices if on_cpu else 1

    def before_fit(self) -> None:
        """Says how long the training will be, if the command line does not."""
        trainer = self.trainer
        if self.length_given or trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        time = self.trainer_options().get("max_time")
        most = {
            "max_epochs": f"{trainer.max_epochs:,} epochs" if trainer.max_epochs not in (None, -1) else "",
            "max_steps": f"{trainer.max_steps:,} steps" if trainer.max_steps != -1 else "",
            "max_time": f"{time} of time (max_time)" if time else "",
        }
        words = " or ".join(filter(None, most.values())) or "no end but Ctrl-C"
        options = " or ".join(f"--trainer.{option}" for option, has in most.items() if has) or "--trainer.max_epochs"
        sets = "set" if " or " in options else "sets"
        print(f"the training has {words}, of the config or by default; {options} {sets} another length", flush=True)

    # -- what is said at the end ---------------------------------------------------------------------------------------

    def after_fit(self) -> None:
        """Prints accuracy per task, where the checkpoint is, and how to go on."""
        self.was_over = self.trainer.ckpt_path is not None and not self.model.began
        if self.was_over:  # which the model has told
            return
        self.print_accuracies("val")
        log_dir = self.trainer.log_dir
        if not self.trainer.is_global_zero or not log_dir:
            return
        saved = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        checkpoint = Path(saved) if saved and Path(saved).is_file() else None
        folder = Path(log_dir)
        if checkpoint is not None:
            print(f"Checkpoint: {checkpoint}")
        with_router = hasattr(self.model, "router")
        for what, command in tables.ways_on(checkpoint, folder, self.modules_to_trust(), with_router):
            print(f"To {what}: {command}")
        if any(folder.glob("events.out.*")):
            print(f"Open TensorBoard: {shlex.join(['tensorboard', '--logdir', str(folder.parent)])}")

    def after_validate(self) -> None:
        """Prints accuracy per task."""
        self.print_accuracies("val")

    def after_test(self) -> None:
        """Prints accuracy per task."""
        self.print_accuracies("test")

    def print_accuracies(self, stage: str) -> None:
        """Prints a table of the stage's accuracy per task."""
        if self.trainer.is_global_zero:
            data = tables.which_data(stage, self.datamodule)
            tables.show(tables.accuracy_table(dict(self.trainer.callback_metrics), stage, data))

    def modules_to_trust(self) -> list[str]:
        """Modules of the user's that the model or data of this run come from."""
        found = set(self.trusted)

        def look(value: Any) -> None:
            if isinstance(value, dict):
                path = value.get("class_path")
                if isinstance(path, str) and path.partition(".")[0] not in LIBRARIES:
                    found.add(path.rpartition(".")[0])
                for item in value.values():
                    look(item)
            elif isinstance(value, list):
                for item in value:
                    look(item)

        config = self.config[self.subcommand].as_dict()
        look([config.get("model"), config.get("data")])
        return sorted(found)


def source_of(words: Words) -> tuple[str, Any]:
    """Where model, data and weights of a run come from: the option, ``ckpt_path`` or ``weights``, and its value.

    Raises:
        UsageError: if both are given, or weights for a command that begins no run.
    """
    if words.command != "fit" and words.values("--weights"):
        raise UsageError(
            f"weights is {words.value('weights')}, with which fit begins a new run, but the command is "
            f"{words.command}; give the checkpoint with --ckpt_path."
        )
    given = words.value("ckpt_path") if words.command else None
    weights = words.value("weights") if words.command == "fit" else None
    if weights in NO_CHECKPOINT:
        return "ckpt_path", given
    if given in NO_CHECKPOINT:
        return "weights", weights
    if words.values("--weights"):
        raise UsageError(
            f"weights is {weights} and ckpt_path {given}, but a run either begins with the weights of a checkpoint or "
            "goes on from one; leave one of them out."
        )
    return "ckpt_path", given


def make_local(config: Any) -> None:
    """Writes ``~`` and ``file://`` out in the folders of a Trainer's config, those of loggers and callbacks included.

    Raises:
        UsageError: if one lies elsewhere.
    """
    items = config.items(branches=False) if isinstance(config, Namespace) else ()
    for key, value in list(items):
        name = key.rpartition(".")[2]
        if isinstance(value, list):
            for item in value:
                make_local(item)
        elif name in FOLDERS and isinstance(value, (str, os.PathLike)):
            try:
                config[key] = local_path(value)
            except UsageError as error:
                raise UsageError(f"trainer.{key}: {error}") from error


def refuse_null(part: Any, place: str) -> None:
    """Refuses null for an argument of a class that does not take it: the parser lets it through in nested places.

    Raises:
        UsageError: if there is one.
    """
    if isinstance(part, list):
        for item in part:
            refuse_null(item, place)
    path = part.get("class_path") if isinstance(part, Namespace) else None
    if not isinstance(path, str):
        return
    try:
        hints, defaults = signature_of(imported(path))
    except ImportError:
        return
    given = part.get("init_args")
    for name, value in (vars(given) if isinstance(given, Namespace) else {}).items():
        refuse_null(value, f"{place}.init_args.{name}")
        if (
            value is None
            and name not in (*SIZES, *LENGTHS)
            and defaults.get(name) is not None
            and not takes_null(hints.get(name))
        ):
            kind = inspect.formatannotation(hints[name])
            raise UsageError(f"{place}.init_args.{name} is null; give a value of type {kind}, or leave it out.")


def refused_by_lightning(error: BaseException) -> bool:
    """Whether Lightning raised an error itself: a sentence about options of its, and not a mistake within it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    code = linecache.getline(frame.f_code.co_filename, line)
    return str(frame.f_globals.get("__name__")).startswith("lightning.") and code.strip().startswith("raise ")


def raised_in(error: BaseException) -> str:
    """Name of the module that raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__"))


def failed_callback(error: BaseException) -> str | None:
    """Name of the callback of Lightning in which an error was raised, without our doing; None if there is none."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("lightning.pytorch.callbacks."):
            found = type(frame.f_locals.get("self")).__name__
        elif module.startswith("routing_lightning."):
            found = None
    return found


_MISSING_PACKAGE = re.compile(r"Requirement '([^']+)' not met|pip install (?:-U )?['`]?(\w[\w.-]*)")


def missing_package(error: BaseException) -> str | None:
    """That a package is not installed which a part of Lightning needs, such as a logger's; None if that is not so."""
    cause: BaseException | None = error
    while cause is not None and not (missing := _MISSING_PACKAGE.search(str(cause))):
        cause = cause.__cause__
    if cause is None or missing is None or isinstance(cause, UsageError):
        return None
    package = missing[1] or missing[2]
    selves = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(cause.__traceback__)]
    parts = [one for one in selves if type(one).__module__.startswith("lightning.") and not _is_trainers(one)]
    part = next((one for one in parts if isinstance(one, L.Callback)), parts[-1] if parts else None)
    needed = f"{type(part).__name__} needs" if part is not None else "this run needs"
    return f"{package} is not installed, which {needed}; install it with: pip install '{package}', or leave it out."


def _is_trainers(one: Any) -> bool:
    return isinstance(one, (L.Trainer, LightningCLI)) or "Connector" in type(one).__name__


def is_restoring(error: BaseException) -> bool:
    """Whether an error was raised while Lightning handed on the state that a checkpoint holds."""
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return "lightning.pytorch.trainer.connectors.checkpoint_connector" in modules


def refused_strategy(given: Any) -> str | None:
    """What is wrong with a strategy given as a class, which the parser passes on as a word where it does not fit."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return None
    parser = SentenceParser(exit_on_error=False)
    parser.add_subclass_arguments(Strategy, "trainer.strategy")
    try:
        parser.parse_object({"trainer": {"strategy": yaml.safe_load(given)}})
    except (ArgumentError, yaml.YAMLError) as error:
        return one_sentence(str(error))
    return None


def refused_option(text: str) -> str:
    """What the Trainer says of its options in one line; of a strategy or accelerator that is none, the nearest one."""
    wrong = re.search(r"invalid (strategy|accelerator) name: `\w+='([^']*)'`", text)
    if wrong is None:
        return " ".join(text.split())
    name, given = wrong.groups()
    if name == "accelerator":
        names = ["auto", "gpu", *AcceleratorRegistry.available_accelerators()]
        return f"there is no accelerator {given}{hint(given, names) or '.'} Give one of {', '.join(names)}."
    nearest = hint(given, StrategyRegistry.available_strategies()) or "."
    return (
        f"there is no strategy {given}{nearest} Give auto, ddp, ddp_spawn or ddp_fork, or a class that works on "
        "this machine, such as '{class_path: lightning.pytorch.strategies.DDPStrategy}'."
    )


def with_values(text: str, options: Mapping[str, Any]) -> str:
    """What Lightning says, and after it the values that it does not name of the options that it names in backticks."""
    names = dict.fromkeys(name for name in re.findall(r"`(?:Trainer\()?(\w+)", text) if name in options)
    values = [f"trainer.{name} is {options[name]}" for name in names if str(options[name]) not in text]
    return f"{' '.join(text.split()).rstrip('.')} ({', '.join(values)})." if values else text


_OFFERED = re.compile(
    r"(.*)(?:only be one of|Allowed algorithms:|metrics:|metrics are:|of the following:|can be) "
    r"(.*?)(?:, got (\w+)| HINT:.*|\. Condition.*|\.?)$"
)


def nearest_choice(text: str, options: Mapping[str, Any]) -> str:
    """What Lightning says in one line; where it lists what may be given, what is nearest stands in front.

    Args:
        text: Lightning's sentence.
        options: options of the Trainer; what was given is the value of one that the sentence names in backticks.
    """
    text = " ".join(text.split())
    offered = _OFFERED.match(text)
    if offered is None:
        return with_values(text, options)
    choices = re.findall(r"[\w/+.-]+", offered[2])
    given = [options.get(name) for name in re.findall(r"`(\w+)`", offered[1])]
    given += [offered[3], *re.findall(r"monitor='([^']+)'", offered[1]), *re.findall(r"metric `?([^`\s]+)", offered[1])]
    for word in given:
        if isinstance(word, str) and word not in choices and (nearest := hint(word, choices)):
            return f"there is no {word}{nearest} {text}"
    return text


def usage_error(error: BaseException, options: Mapping[str, Any]) -> BaseException | None:
    """The user's mistake behind an error, if there is one: jsonargparse wraps what a constructor raises.

    Args:
        error: what was raised.
        options: options of the Trainer.
    """
    if isinstance(error, RuntimeError) and "loading state_dict" in str(error):
        detail = " ".join(str(error).splitlines()[1:2]).strip()
        return UsageError(f"the checkpoint does not fit the model ({detail}); give the config of its run, or none.")
    if isinstance(error, RuntimeError) and "conditioned on metric" in str(error):
        return UsageError(nearest_choice(str(error), options))
    if isinstance(error, OSError) and error.filename is not None:
        return UsageError(f"{error.filename}: {error.strerror}; give a path that can be read or written.")
    if package := missing_package(error):
        return UsageError(package)
    if refused_by_lightning(error):
        return UsageError(nearest_choice(str(error), options))
    if is_restoring(error) and not isinstance(error, (UsageError, MisconfigurationException)):
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        return UsageError(
            f"the state in the checkpoint cannot be taken over ({type(error).__name__}: {reason}); give an unbroken "
            "one, or begin a new run with its weights (--weights in place of --ckpt_path)."
        )
    if raised_in(error).startswith("torch.optim"):
        sentence = " ".join(str(error).split()).rstrip(".")
        return UsageError(f"the optimizer or lr_scheduler refuses its values: {sentence}; mend its init_args.")
    if isinstance(error, (ValueError, TypeError)) and raised_in(error).startswith(
        ("torch.distributed", "torch.nn.parallel")
    ):
        sentence = " ".join(str(error).split()).rstrip(".")
        return UsageError(f"trainer.strategy refuses its values: {sentence}; mend its init_args.")
    callback = None if isinstance(error, UsageError) else failed_callback(error)
    if callback is not None and callback != "NoneType":
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return UsageError(f"{callback} does not work with this model ({reason}); leave it out of trainer.callbacks.")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UsageError):
            return cause
        if isinstance(cause, MisconfigurationException):
            return UsageError(nearest_choice(str(cause), options))
        cause = cause.__cause__
    if raised_in(error).startswith("jsonargparse."):
        # A class refused what it was given, or needs a library that is not there, such as a logger's.
        return UsageError(f"{one_sentence(str(error))}; give other values, or leave it out.")
    return None


def is_first_to_tell() -> bool:
    """Whether no other process of the run has told of a mistake: all of them may find it, and one tells it."""
    if not (dist.is_available() and dist.is_initialized()):
        # Processes that the first one starts begin when it has come further; torchrun starts all of them at once.
        return "TORCHELASTIC_RUN_ID" not in os.environ or folders.is_first_process()
    try:
        return bool(dist.distributed_c10d._get_default_store().add("routing_lightning_told", 1) == 1)
    except RuntimeError:  # the store went with the first process
        return folders.is_first_process()


def run(words: list[str]) -> RoutingCLI:
    """Runs a method of the Trainer.

    Raises:
        SystemExit: with code 1 after a user's mistake, told in one sentence; with 2 for wrong arguments.
    """
    keep_quiet()
    keep_freed_memory()
    cli: list[RoutingCLI] = []
    refused = False

    class Noted(RoutingCLI):
        """Known also where its constructor fails, so that an unused folder can be taken back."""

        def setup_parser(self, *args: Any, **kwargs: Any) -> None:
            cli.append(self)
            super().setup_parser(*args, **kwargs)

    try:
        return Noted(
            TaskClassifier,
            MultiTaskDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},  # the folder is this run's own
            trainer_defaults={"enable_model_summary": False},
            parser_class=SentenceParser,
            auto_configure_optimizers=False,
            args=words,
        )
    except (
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        LookupError,
        RuntimeError,
        OSError,
        ImportError,
        MisconfigurationException,
    ) as error:
        mistake = usage_error(error, cli[0].trainer_options() if cli else {})
        if mistake is None:
            raise
        trainer = getattr(cli[0], "trainer", None) if cli else None
        refused = trainer is None or trainer.global_step <= cli[0].first_step
        if is_first_to_tell():
            print(f"error: {mistake}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
    finally:
        if cli:
            for folder in {cli[0].folder, *cli[0].claimed}:
                folders.forget(folder, refused or cli[0].was_over)
        # Lightning leaves gloo's connections to the interpreter's end, at which their threads may abort the process.
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
