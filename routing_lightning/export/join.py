"""From a checkpoint to one in which new tasks have joined, ready to be trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml

from routing_lightning.cli.checkpoints import CONFIG_KEY
from routing_lightning.datamodules import FolderMTLDataModule, MINMTLDataModule
from routing_lightning.datamodules.base import WHOLE
from routing_lightning.errors import UsageError
from routing_lightning.export.extend import extend_network
from routing_lightning.export.load import Trained, load_trained, make, names_of, statistics_of
from routing_lightning.export.prune import routed_names, with_counts
from routing_lightning.modules import RoutedClassifier
from routing_lightning.modules.masking import label_mask
from routing_lightning.modules.pixels import PixelNormalisation
from routing_lightning.saving import check_new, save_whole

FOLDER = f"{FolderMTLDataModule.__module__}.{FolderMTLDataModule.__name__}"
# What a folder for new tasks does not take over; how much to train on was said of the old ones alone.
ELSEWHERE = ("root", "manifest", "image_size", "cache_dir", "mean", "std", "known_tasks", *WHOLE)


def extend_checkpoint(
    checkpoint: str | Path,
    data: str | Path,
    out: str | Path,
    new_blocks: Sequence[int] = (1,),
    old_lr: float = 0.0,
    trust: Sequence[str] = (),
) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Writes a checkpoint of a trained network that new tasks have joined; ``fit --ckpt_path`` trains it from there.

    The new checkpoint holds weights, no state of an optimizer: the training of the new tasks begins at epoch 0.

    Args:
        checkpoint: a checkpoint of the command line.
        data: folder or manifest of the new tasks' images, as for :class:`FolderMTLDataModule`; it may hold images of
            old tasks, too, under their names.
        out: the new file.
        new_blocks: number of new blocks, one for all routed layers or one for each.
        old_lr: factor on the learning rate of all that was there, in [0, 1]; 0: frozen.
        trust: modules of yours that the checkpoint may name.

    Returns:
        Names of the new tasks; and for each routed layer, by its name, the number of blocks before and after.

    Raises:
        UsageError: if it cannot be extended; the sentence says why.
    """
    trained = load_trained(checkpoint, trust)
    target = check_new(out, trained.path)
    model = trained.model
    if not isinstance(model, RoutedClassifier):
        raise UsageError(f"{type(model).__name__} has no blocks that new tasks could share; extend a RoutedClassifier.")
    if model.objective is not None:
        raise UsageError("not all tasks of the network are of classes: only networks of such tasks can be extended.")
    names, classes = names_of(trained)
    source = folder_config(trained, Path(data), dict(zip(names, classes, strict=True)))
    # Augmentation is a config still, and of no matter here.
    listing = FolderMTLDataModule(**{**source["init_args"], "augment": None}).listing
    joined = listing.task_names[len(names) :]
    check_joined(trained, str(data), joined, listing.class_names[len(names) :], names)
    before = [layer.blocks.num_blocks for layer in model.network.layers]
    counts = list(new_blocks) * (len(before) if len(new_blocks) == 1 else 1)
    if old_lr == 0 and not any(counts):
        raise UsageError(
            "no block is new and the old ones are frozen, so nothing could learn but routes; give a new block or more, "
            "or let the old ones learn."
        )
    extend_network(model.network, len(joined), counts, old_lr)
    after = [layer.blocks.num_blocks for layer in model.network.layers]
    config = with_counts(trained, model, after)
    config["data"] = source
    given = {**trained.checkpoint.get("hyper_parameters", {}), "num_tasks": model.network.num_tasks}
    old = {"old_tasks": len(names), "old_blocks": before, "old_lr": old_lr}
    config["model"]["init_args"]["router"]["init_args"] |= old
    given |= {name: config["model"]["init_args"][name] for name in ("network", "router") if name in given}
    mask = label_mask([len(labels) for labels in listing.class_names], model.num_classes)
    saved = {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": L.__version__,
        "state_dict": state_of(config, given, model),
        "hyper_parameters": given,
        "hparams_name": "kwargs",
        "num_blocks": list(model.router.spec.num_blocks),
        "label_mask": None if mask is None else mask.tolist(),
        "task_names": listing.task_names,
        "class_names": listing.class_names,
        CONFIG_KEY: yaml.safe_dump(config, sort_keys=False),
    }
    save_whole(saved, target)
    return joined, dict(zip(routed_names(model.network), zip(before, after, strict=True), strict=True))


def folder_config(trained: Trained, path: Path, old: dict[str, list[str]]) -> dict[str, Any]:
    """The datamodule of the new tasks' images, made as those of the old tasks were.

    Raises:
        UsageError: if the path is nothing, or the images were made in a way that a folder cannot.
    """
    if not path.exists():
        raise UsageError(f"data {path} is not there; give a folder or a manifest of the new tasks' images.")
    _, height, width = trained.image_shape
    if trained.image_shape[0] != 3 or height != width:
        raise UsageError(
            f"the network takes images of shape {list(trained.image_shape)}, but those of a folder have shape "
            "[3, size, size]; extend a network of square colour images."
        )
    data = trained.data
    before = trained.config["data"].get("init_args") or {}
    if isinstance(data, FolderMTLDataModule):
        options = {name: value for name, value in before.items() if name not in ELSEWHERE}
    else:
        options = {name: before[name] for name in ("batch_size", "split_seed") if name in before}
        options["crop"] = not isinstance(data, MINMTLDataModule)  # which stretches
    mean, std = statistics_of(trained)
    again = PixelNormalisation(len(mean))
    again.learn(mean, std)
    own = trained.model.normalise
    if not own.known or not all(map(torch.equal, again.buffers(), own.buffers())):
        raise UsageError(
            f"{type(data).__name__} normalises images in a way of its own, which a folder cannot; give it mean and std."
        )
    place = {"root": str(path)} if path.is_dir() else {"manifest": str(path)}
    return {
        "class_path": FOLDER,
        "init_args": {**options, **place, "image_size": height, "mean": mean, "std": std, "known_tasks": old},
    }


def check_joined(trained: Trained, source: str, joined: list[str], classes: list[list[str]], old: list[str]) -> None:
    """Checks the new tasks.

    Raises:
        UsageError: if there are none, or one has more labels than the network can tell apart.
    """
    if not joined:
        raise UsageError(f"data {source} has no task but the old ones ({', '.join(old)}); give images of new tasks.")
    most = trained.model.num_classes
    for name, labels in zip(joined, classes, strict=True):
        if len(labels) > most:
            raise UsageError(
                f"task {name} of {source} has {len(labels)} labels but the network tells {most} apart; split the task, "
                "or train a network anew."
            )


def state_of(config: dict[str, Any], given: dict[str, Any], model: RoutedClassifier) -> dict[str, Any]:
    """The weights of an extended model, as the model of the new config holds them.

    Raises:
        UsageError: if that is another one.
    """
    made, _, _ = make(config, given)
    state = made.state_dict()
    state |= {name: value for name, value in model.state_dict().items() if name.startswith(("network.", "normalise."))}
    try:
        made.load_state_dict(state)
    except RuntimeError as error:
        raise UsageError(
            "the network makes other layers from the new numbers of blocks "
            f"({' '.join(str(error).split())[:200]}); use extend_network of routing_lightning.export in Python."
        ) from error
    return state
