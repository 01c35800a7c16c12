"""Where a run stands, so that a checkpoint saved at any place goes on from there to the bit."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from routing_lightning.errors import UsageError

KEY = "routing_lightning_progress"
"""Where a checkpoint keeps what Lightning does not: see :meth:`TaskClassifier.on_save_checkpoint`."""


@dataclass
class Milestones:
    """What of an epoch is done, each as the number of batches since the run began at which it was.

    Lightning's counters do not tell: after the last batch of an epoch a checkpoint may be saved before the validation,
    after it, or after the epoch's end, and they read nearly the same.

    Attributes:
        last_batch: the last batch of an epoch.
        validation: a validation.
        epoch_end: what happens at the end of a complete epoch: metrics are reported, schedulers step.
    """

    last_batch: int = -1
    validation: int = -1
    epoch_end: int = -1

    def state(self) -> dict[str, int]:
        """As plain numbers."""
        return asdict(self)


def check_whole(checkpoint: Mapping[str, Any]) -> None:
    """Checks that a checkpoint holds all that a run needs to go on: Lightning passes over what is not there.

    Raises:
        UsageError: if a part is missing, or is none of an optimizer.
    """
    way_out = "give one that a run has written whole, or begin a new run with its weights (--weights FILE)."
    for part in ("loops", "optimizer_states", "lr_schedulers", KEY):
        if checkpoint.get(part) is None:
            raise UsageError(f"the checkpoint lacks {part}, without which a run cannot go on from it; {way_out}")
    states = checkpoint["optimizer_states"]
    if not isinstance(states, list) or not states:
        raise UsageError(f"optimizer_states of the checkpoint is {states}, the state of no optimizer; {way_out}")
    for state in states:
        missing = [key for key in ("state", "param_groups") if not isinstance(state, dict) or key not in state]
        if missing:
            raise UsageError(f"optimizer_states of the checkpoint is damaged: it lacks {missing[0]}; {way_out}")
    if not all(checkpoint["lr_schedulers"]):
        raise UsageError(f"lr_schedulers of the checkpoint holds the empty state of a schedule; {way_out}")


def check_optimizers(saved: int, has: int) -> None:
    """Checks that each optimizer has got its state: Lightning hands on as many as there are.

    Raises:
        UsageError: if there are more or fewer states than optimizers.
    """
    if saved != has:
        raise UsageError(
            f"optimizer_states of the checkpoint has {saved} states, but the run has {has} optimizers; give one that a "
            "run has written whole, or begin a new run with its weights (--weights FILE)."
        )


def check_epochs(fit_loop: dict[str, Any], most: int | None) -> None:
    """Checks that a run has not made more epochs than it may.

    Raises:
        UsageError: if it has.
    """
    made = fit_loop["epoch_progress"]["current"]["processed"]
    if most not in (None, -1) and made > most:
        raise UsageError(
            f"the run has made {made} epochs, and trainer.max_epochs is {most}; give more than {made} to go on."
        )


def batches_of(trainer: L.Trainer) -> dict[str, int | None]:
    """What decides which samples a batch has, apart from the data: its size (None: unknown) and the processes."""
    size = getattr(getattr(trainer, "datamodule", None), "batch_size", None)
    return {"batch_size": size if isinstance(size, int) else None, "number of processes": trainer.world_size}


def settle(fit_loop: dict[str, Any], milestones: Milestones) -> None:
    """Brings the saved counters of Lightning's loops into a form from which it goes on at the very place.

    There are two: between two epochs, and behind the n-th batch of an epoch. In the second one Lightning validates if a
    validation is due there and not done, runs the batches that are left, if any, and then all that belongs to the end
    of the epoch. A step that was broken off counts as not done.

    Args:
        fit_loop: state of the fit loop as a checkpoint holds it; changed in place.
        milestones: what was done when it was saved.
    """
    epochs, batches = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    validation = fit_loop["epoch_loop.val_loop.batch_progress"]
    done, total = batches["current"]["processed"], batches["total"]["processed"]
    within = done > 0 and milestones.epoch_end != total
    finished = epochs["current"]["started"] - 1 if within else epochs["current"]["processed"]
    done = done if within else 0
    _count_all(batches["current"], done)
    _count_all(batches["total"], total)
    batches["is_last_batch"] = within and milestones.last_batch == total
    for counters in epochs["current"], epochs["total"]:
        counters.update(ready=finished + within, started=finished + within, processed=finished, completed=finished)
    pending = within and milestones.validation != total
    for counters in validation["current"], validation["total"]:
        _count_all(counters, 0)
    if pending:  # a validation that was begun, of which nothing is done
        validation["total"].update(ready=1, started=1)
    validation["is_last_batch"] = False
    loaders = fit_loop["state_dict"].pop("combined_loader", [])
    if within and loaders:
        # After the last batch the iteration is not begun: the next one is that of the next epoch.
        skip = 0 if batches["is_last_batch"] else done
        fit_loop["state_dict"]["combined_loader"] = [
            state | {"batches": skip} if "batches" in state else state for state in loaders
        ]


def _count_all(counters: dict[str, int], number: int) -> None:
    for name in counters:
        counters[name] = number


def forget_strange_files(states: dict[str, Any], folders: Collection[str], extension: str) -> list[str]:
    """Takes out of what callbacks keep the names of files that no ModelCheckpoint of this run can have written.

    Those named there are removed, folders with all that is in them, when a better checkpoint is saved. Lightning looks
    that they lie in the run's folder, but not at ``..`` in their names, nor at addresses such as ``s3://``.

    Args:
        states: what a checkpoint holds of each callback; changed in place.
        folders: where this run saves.
        extension: how its files end.

    Returns:
        The names.
    """
    found: list[str] = []

    def is_strange(name: Any) -> bool:
        own = isinstance(name, str) and name.endswith(extension) and ".." not in PurePath(name).parts
        if own and "://" in name:
            own = any("://" in folder and name.startswith(f"{folder.rstrip('/')}/") for folder in folders)
        if not own:
            found.append(str(name))
        return not own

    for state in states.values():
        if not isinstance(state, dict):
            continue
        for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
            if state.get(key) and is_strange(state[key]):
                state[key] = ""
        kept = state.get("best_k_models")
        if isinstance(kept, dict):
            state["best_k_models"] = {name: score for name, score in kept.items() if not is_strange(name)}
    return list(dict.fromkeys(found))


def keep_best(states: dict[str, Any], saves: Iterable[ModelCheckpoint]) -> None:
    """Lets the ModelCheckpoints of a run that goes on elsewhere know the best checkpoints so far, if they are there.

    Lightning forgets them where the folder is another one, and the best of the rest would pass for the best. It removes
    nothing outside of its own folder.

    Args:
        states: what a checkpoint holds of each callback; changed in place.
        saves: the callbacks that will get it, which know their folders.
    """
    for callback in saves:
        state = states.get(callback.state_key)
        if isinstance(state, dict) and callback.monitor is not None:
            best = state.get("best_k_models")
            if isinstance(best, dict) and best and all(Path(name).is_file() for name in best):
                state["dirpath"] = callback.dirpath


def without_finders(trainer: L.Trainer) -> None:
    """Keeps callbacks that look for a learning rate or batch size away from a run that goes on.

    They try one from the start, and leave the run there, at epoch 0, whatever it goes on from.

    Raises:
        UsageError: if one is there. A job that SLURM begins again has the words that it was begun with: it goes on
            without it.
    """
    finders = [
        one
        for one in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(one, (BatchSizeFinder, LearningRateFinder))
    ]
    if not finders:
        return
    name = type(finders[0]).__name__
    if not Path(str(trainer.ckpt_path)).name.startswith("hpc_ckpt_"):
        raise UsageError(
            f"{name} looks for a value from the start of a run, but this one goes on from {trainer.ckpt_path}; leave "
            "it out of trainer.callbacks, or start a new run from the weights (--weights in place of --ckpt_path)."
        )
    for one in finders:
        trainer.callbacks.remove(one)  # type: ignore[attr-defined]
    rank_zero_info(f"{name} is left out of a run that goes on: it looks for a value from the start")


def check_within(trainer: L.Trainer, before: Mapping[str, int | None]) -> None:
    """Checks that an epoch within which a run goes on has batches left, and says where they are other ones.

    Args:
        trainer: the Trainer of the run.
        before: what :func:`batches_of` gave when the checkpoint was saved.

    Raises:
        UsageError: if more of them are done than it has now: Lightning would train one, and end without a word.
    """
    loop: Any = trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    if not loop.restarted_mid_epoch or progress.is_last_batch:
        return
    done, has = progress.current.processed, trainer.num_training_batches
    if done >= has:
        raise UsageError(
            f"{done} batches of the epoch are done, but now it has {has}; go on with as many as before "
            "(trainer.limit_train_batches, overfit_batches, batch_size of the data, trainer.devices), at least until "
            "the end of the epoch."
        )
    for what, now in batches_of(trainer).items():
        if before.get(what) is not None and now is not None and before[what] != now:
            rank_zero_warn(
                f"{what} is {now}, but the {done} batches done of the epoch were made with {before[what]}: "
                "until its end some samples come twice, or not at all; from the next epoch on all come once."
            )
