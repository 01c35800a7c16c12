"""What is tried: configs x loggers x commands, and the switches of the Trainer and callbacks of Lightning."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fake_data import small_options, write_cifar_tree, write_mini_imagenet, write_mnist
from tests.test_configs import COMBINATIONS, CONFIGS, words_of

LOGGERS = {
    "TensorBoard": [],
    "CSV": ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir={root}"],
    "none": ["--trainer.logger=false"],
}
SHORT = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=2",
    *(f"--trainer.limit_{part}_batches={count}" for part, count in (("train", 4), ("val", 2), ("test", 2))),
    "--trainer.limit_predict_batches=2",
]
TRAINED = ("fit", "validate", "test", "predict", "validate CKPT", "test CKPT", "predict CKPT", "fit CKPT")
"""Commands of the Trainer, from the config and from the checkpoint."""
WITH_LOGGER = {"fit", "validate CKPT", "predict CKPT", "report"}
"""Columns that are run with each logger; a checkpoint does not hold it."""
KINDS = {
    "table": "wpl",
    "network": "reinforce_mlp",
    "gradient": "gumbel",
    "baseline": "task_specific_1_fc",
}
"""One method of each kind: routers that are tables, networks, learned by the gradient; and none."""
NO_TABLE = ("MLPPolicy", "GumbelRouter", "Top1Router")
"""Parts of routers that have no table of routes which ``prune`` could shrink."""
ALL = frozenset(KINDS)
ROUTED = ALL - {"baseline"}


def small_data(folder: Path) -> dict[str, Path]:
    """Small data of every layout."""
    writers = {"cifar_tree": write_cifar_tree, "mnist_root": write_mnist, "mini_imagenet_root": write_mini_imagenet}
    return {name: write(folder / name) for name, write in writers.items()}


@dataclass
class Case:
    """Command lines that run one after the other in a folder of their own.

    In their words ``{root}`` stands for it, ``{ckpt}`` for the newest checkpoint in it, ``{run}`` for that one's run.

    Attributes:
        row: first column of the table.
        steps: for each further column the words.
        refused: columns in which a refusal is right.
        apart: whether each needs processes of its own.
        warns: columns that rightly pass with a warning.
    """

    row: str
    steps: dict[str, list[str]]
    refused: frozenset[str] = frozenset()
    apart: bool = False
    warns: frozenset[str] = frozenset()


def configs(data: dict[str, Path]) -> Iterator[tuple[str, Case]]:
    """Each shipped config with each logger, and the name of the logger."""
    for parts in COMBINATIONS:
        text = "".join((CONFIGS / f"{part}.yaml").read_text() for part in parts)
        config = [*words_of(parts), *small_options(text, data.__getitem__)]
        for logger, extra in LOGGERS.items():
            run = [*SHORT, *extra, "--trainer.default_root_dir={root}"]
            steps = {
                command: [name, *(["--ckpt_path={ckpt}"] if rest else config), *run]
                for command in TRAINED
                for name, _, rest in [command.partition(" ")]
            }
            steps["fit CKPT"].append("--trainer.max_epochs=3")
            steps |= {
                "report": ["report", "{root}", "--out={root}/report"],
                "plot": ["plot", "{run}", "--out={root}/plots"],
                "export": ["export", "{ckpt}", "--task=0", "--out={root}/networks"],
                "export onnx": ["export", "{ckpt}", "--task=0", "--format=onnx", "--out={root}/onnx"],
                "prune": ["prune", "{ckpt}", "--out={root}/pruned.ckpt"],
            }
            if logger != "TensorBoard":
                steps = {column: words for column, words in steps.items() if column in WITH_LOGGER}
            # two epochs of four batches are too short a search, which is told
            warns = frozenset({"fit"}) if "class_path: BranchingRouter" in text else frozenset()
            yield logger, Case(" + ".join(parts), steps, frozenset(refused_by(text)), warns=warns)


def refused_by(text: str) -> Iterator[str]:
    """Commands that rightly refuse a config, by its text."""
    if "router:" not in text:
        yield from ("plot", "prune")
    if any(name in text for name in NO_TABLE):
        yield "prune"
    if "total_steps: null" in text:  # of OneCycleLR, which is over with its run
        yield "fit CKPT"


@dataclass
class Switch:
    """Words that are added to a run of each kind of method.

    Attributes:
        name: what is tried.
        words: the words.
        refused: kinds of methods that rightly refuse it.
        command: the command.
        apart: whether it needs processes of its own.
        warns: whether it rightly passes with a warning.
        base: words that come before.
    """

    name: str
    words: list[str]
    refused: frozenset[str] = frozenset()
    command: str = "fit"
    apart: bool = False
    warns: bool = False
    base: list[str] = field(default_factory=lambda: SHORT)


def trainer(
    refused: frozenset[str] = frozenset(),
    command: str = "fit",
    apart: bool = False,
    warns: bool = False,
    **options: Any,
) -> Switch:
    """Options of the Trainer."""
    words = [f"--trainer.{name}={value if isinstance(value, str) else json.dumps(value)}"
             for name, value in options.items()]  # fmt: skip
    said = ", ".join(word.removeprefix("--trainer.") for word in words)
    return Switch(said if command == "fit" else f"{command}: {said}", words, refused, command, apart, warns)


def callbacks(
    *names: str, refused: frozenset[str] = frozenset(), said: str = "", warns: bool = False, **options: Any
) -> Switch:
    """Callbacks, the last one with options."""
    parts: list[dict[str, Any]] = [{"class_path": name} for name in names]
    parts[-1] |= {"init_args": options} if options else {}
    arguments = ", ".join(f"{name}={value}" for name, value in options.items())
    label = said or " and ".join(names) + (f" ({arguments})" if arguments else "")
    return Switch(label, [f"--trainer.callbacks={json.dumps(parts)}"], refused, warns=warns)


SAVE = "ModelCheckpoint"
DDP = "lightning.pytorch.strategies.DDPStrategy"
SWITCHES = [
    # how much
    trainer(fast_dev_run=True),
    trainer(fast_dev_run=3),
    *(trainer(command=command, fast_dev_run=True) for command in ("validate", "test", "predict")),
    trainer(overfit_batches=2),
    trainer(overfit_batches=0.1),
    trainer(barebones=True),
    *(trainer(command=command, barebones=True) for command in ("validate", "test", "predict")),
    *(trainer(**{f"limit_{part}_batches": count}) for part in ("train", "val") for count in (0, 1, 0.05)),
    *(trainer(command="test", limit_test_batches=count) for count in (0, 1, 0.05)),
    *(trainer(command="predict", limit_predict_batches=count) for count in (0, 1, 0.05)),
    trainer(max_steps=3),
    trainer(max_steps=0),
    trainer(max_epochs=0),
    trainer(max_epochs=-1, max_steps=6),
    trainer(max_time="00:00:00:02", max_epochs=-1),
    trainer(min_epochs=2),
    trainer(min_steps=6, max_epochs=1),
    trainer(val_check_interval=2),
    trainer(val_check_interval=0.5),
    trainer(val_check_interval=3, check_val_every_n_epoch="null"),
    trainer(val_check_interval=100, refused=ALL),
    trainer(val_check_interval="00:00:00:01"),
    trainer(check_val_every_n_epoch=2),
    trainer(num_sanity_val_steps=0),
    trainer(num_sanity_val_steps=-1),
    trainer(num_sanity_val_steps=2),
    # how
    trainer(accumulate_grad_batches=3, refused=ROUTED),
    Switch("model accumulate_grad_batches=3", ["--model.init_args.accumulate_grad_batches=3"], frozenset({"baseline"})),
    trainer(gradient_clip_val=0.5, refused=ROUTED),
    trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value", refused=ROUTED),
    Switch("model gradient_clip_val=0.5", ["--model.init_args.gradient_clip_val=0.5"], frozenset({"baseline"})),
    trainer(detect_anomaly=True),
    trainer(deterministic=True),
    trainer(deterministic="warn"),
    trainer(benchmark=True),
    trainer(inference_mode=False),
    trainer(use_distributed_sampler=False),
    trainer(sync_batchnorm=True),
    trainer(reload_dataloaders_every_n_epochs=1),
    *(trainer(precision=value) for value in ("bf16-mixed", "bf16-true", "64-true")),
    trainer(precision="16-mixed", warns=True),
    trainer(precision="16-true"),
    trainer(precision="transformer-engine", refused=ALL),
    trainer(log_every_n_steps=0),
    trainer(log_every_n_steps=1),
    trainer(log_every_n_steps=1000),
    *(trainer(**{f"enable_{what}": value}) for what, value in (
        ("progress_bar", False), ("checkpointing", False), ("model_summary", True), ("autolog_hparams", False))),
    trainer(devices=1, accelerator="auto"),
    trainer(accelerator="gpu", refused=ALL),
    trainer(devices=2, strategy="ddp", apart=True),
    trainer(devices=2, strategy="ddp_spawn", apart=True),
    trainer(devices=2, strategy="ddp_find_unused_parameters_true", apart=True),
    trainer(devices=2, strategy=DDP, refused=ALL),  # a name; a class is given by class_path
    Switch("DDPStrategy(static_graph=true)", ["--trainer.devices=2", f"--trainer.strategy={DDP}",
                                              "--trainer.strategy.static_graph=true"], ALL, apart=True),
    *(trainer(devices=2, strategy=name, refused=ALL, apart=True) for name in ("fsdp", "deepspeed")),
    # what is written and told
    *(trainer(profiler=name) for name in ("simple", "advanced")),
    trainer(profiler="pytorch", limit_train_batches=12, limit_val_batches=12),
    Switch("PyTorchProfiler(filename)",
           ["--trainer.profiler=PyTorchProfiler", "--trainer.limit_train_batches=12", "--trainer.limit_val_batches=12",
            "--trainer.profiler.dirpath={root}",
            "--trainer.profiler.filename=p"]),
    Switch("two loggers", ["--trainer.logger+=TensorBoardLogger", "--trainer.logger.save_dir={root}",
                           "--trainer.logger+=CSVLogger", "--trainer.logger.save_dir={root}"]),
    Switch("record: null", ["--record=null"]),
    # callbacks
    callbacks("EarlyStopping", monitor="val/acc", patience=1),
    callbacks("EarlyStopping", monitor="nothing", refused=ALL),
    callbacks("EarlyStopping", monitor="val/loss", check_on_train_epoch_end=True),
    callbacks(SAVE, monitor="val/acc", mode="max", save_last=True),
    callbacks(SAVE, monitor="nothing", refused=ALL),
    callbacks(SAVE, SAVE, refused=ALL, said="two ModelCheckpoints alike"),
    callbacks(SAVE, SAVE, monitor="val/acc", said="two ModelCheckpoints, one with monitor"),
    callbacks(SAVE, every_n_train_steps=3, save_top_k=-1),
    callbacks(SAVE, train_time_interval="00:00:00:00.1", save_top_k=-1, said="ModelCheckpoint by time"),
    callbacks(SAVE, dirpath="{root}/kept", save_weights_only=True),
    callbacks(SAVE, save_on_train_epoch_end=True, every_n_epochs=2),
    callbacks("OnExceptionCheckpoint", dirpath="{root}/broken", warns=True),  # from which it goes on unasked
    callbacks("LearningRateMonitor"),
    callbacks("LearningRateMonitor", logging_interval="step", log_momentum=True),
    callbacks("LearningRateFinder", num_training_steps=20, refused=frozenset({"network"}), warns=True),  # its bar
    callbacks("BatchSizeFinder", max_trials=2, steps_per_trial=1),
    callbacks("StochasticWeightAveraging", swa_lrs=0.01, refused=frozenset({"network"})),
    callbacks("StochasticWeightAveraging", swa_lrs=0.01, swa_epoch_start=1, refused=frozenset({"network"})),
    callbacks("WeightAveraging"),
    callbacks("EMAWeightAveraging", decay=0.99),
    callbacks("GradientAccumulationScheduler", scheduling={"0": 2}, refused=ROUTED),
    callbacks("BackboneFinetuning", refused=ALL),
    callbacks("ModelPruning", pruning_fn="l1_unstructured", amount=0.2, refused=ALL),
    callbacks("Timer", duration="00:00:00:05"),
    callbacks("ModelSummary", max_depth=3),
    callbacks("RichModelSummary"),
    callbacks("DeviceStatsMonitor", cpu_stats=True),
    callbacks("ThroughputMonitor", refused=ALL),
    callbacks("RichProgressBar"),
    callbacks("TQDMProgressBar"),
    callbacks("NarrowProgressBar"),
    callbacks("SpikeDetection"),
    callbacks("LambdaCallback"),
    Switch("trainer.callbacks+=RouteRecorder", ["--trainer.callbacks+=RouteRecorder"], ALL),
    Switch("trainer.callbacks+=TaskAccuracy", ["--trainer.callbacks+=TaskAccuracy"], ALL),
    # words
    *(Switch(f"--seed_everything={value}", [f"--seed_everything={value}"], refused, warns=value == "true")
      for value, refused in (("true", frozenset()), ("false", frozenset()), ("7", frozenset()), ("-1", ALL))),
    *(Switch(f"--ckpt_path={word} without a run", [f"--ckpt_path={word}"], ALL) for word in ("last", "best")),
    Switch("--ckpt_path=hpc", ["--ckpt_path=hpc"], ALL),
    *(Switch(f"default_root_dir={root}", [f"--trainer.default_root_dir={root}"], ALL)
      for root in ("memory://runs", "s3://bucket/runs")),
    Switch("default_root_dir=file://…", ["--trainer.default_root_dir=file://{root}/here"]),
]  # fmt: skip


def switches() -> Iterator[Case]:
    """Each switch with one method of each kind."""
    for switch in SWITCHES:
        steps = {}
        for kind, method in KINDS.items():
            config = words_of(("data/digits_mtl", f"methods/{method}"))
            root = ["--trainer.default_root_dir={root}", "--seed_everything=0"]
            steps[kind] = [switch.command, *config, *root, *switch.base, *switch.words]
        warns = frozenset(steps) if switch.warns else frozenset()
        yield Case(switch.name, steps, switch.refused, switch.apart, warns)
