"""``predict`` on images without labels: all that is needed of the training is in the checkpoint."""

from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from routing_lightning.cli.checkpoints import SIZES, load, saved_names
from routing_lightning.errors import UsageError


def add_options(parser: LightningArgumentParser) -> None:
    """Adds ``images``, ``task`` and ``out`` to the command ``predict``."""
    parser.add_argument(
        "--images",
        type=str | None,
        default=None,
        help="images without labels in place of the test part: a folder, or a CSV or Parquet file with a column path",
    )
    parser.add_argument(
        "--task",
        type=str | None,
        default=None,
        help="with images: name or number of a task, or all; by default the column task of the file, or all",
    )
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        help="the table's file, .csv or .parquet; by default in the run's folder",
    )


def data_config(path: Path, config: dict[str, Any], images: str, task: str | None) -> dict[str, Any]:
    """The datamodule of images without labels, made as those that a checkpoint was trained on.

    Args:
        path: the checkpoint.
        config: the config of its run.
        images: folder or table of the images.
        task: name or number of a task, ``"all"``, or None.

    Raises:
        UsageError: if the checkpoint does not tell the sizes, or some of its tasks see pictures changed.
    """
    if in_two_modalities(config.get("data")):
        raise UsageError(
            f"checkpoint {path} was trained with two_modalities, where every second task sees its pictures changed, "
            "which images are not; predict the test part, without --images, or train without two_modalities."
        )
    checkpoint = load(path)
    given = checkpoint.get("hyper_parameters") or {}
    missing = [size for size in SIZES if given.get(size) is None]
    if missing:
        raise UsageError(
            f"checkpoint {path} does not tell {', '.join(missing)} of its model; give a checkpoint that the command "
            "line wrote."
        )
    data = config.get("data") or {}
    name = str(data.get("class_path")).rpartition(".")[2]
    options = data.get("init_args") or {}
    state = checkpoint.get(name) if isinstance(checkpoint.get(name), dict) else {}
    # The names of before checkpoints had them all; then numbers.
    names = saved_names(checkpoint) or saved_names(state or {})
    if names is None:
        numbers = [str(number) for number in range(given["num_classes"])]
        names = [str(number) for number in range(given["num_tasks"])], [numbers] * given["num_tasks"]
    return {
        "class_path": "routing_lightning.datamodules.UnlabelledDataModule",
        "init_args": {
            "images": images,
            "task": None if task is None else str(task),
            "task_names": names[0],
            "class_names": names[1],
            "num_classes": given["num_classes"],
            "kinds": checkpoint.get("targets") is not None,
            "image_shape": list(given["image_shape"]),
            "batch_size": options.get("batch_size", 64),
            "resize": options.get("resize"),
            "crop": options.get("crop", name != "MINMTLDataModule"),  # which stretches
        },
    }


def in_two_modalities(data: Any) -> bool:
    """Whether the config of a datamodule, or of a part of a mix, has tasks that see changed pictures."""
    if isinstance(data, list):
        return any(map(in_two_modalities, data))
    options = data.get("init_args") if isinstance(data, dict) else None
    return isinstance(options, dict) and bool(
        options.get("two_modalities") or in_two_modalities(options.get("datamodules"))
    )
