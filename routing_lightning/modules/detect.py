"""NaN and infinity stop a training, in one sentence that says where they came from, before anything is saved."""

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from routing_lightning.errors import NonFiniteError
from routing_lightning.nn.tracing import on_host
from routing_lightning.routers import Router, Trace

if TYPE_CHECKING:
    from routing_lightning.modules.classifier import TaskClassifier

LOOK = 32
"""Batches after which the weights are looked at."""

MOST_NAMED = 3  # tasks
TOLERANCE = 1e-3  # of the sum of a policy's row


class Routed(NamedTuple):
    """A batch's routes: ``tasks`` (N,), ``actions`` (N, D), on the host."""

    epoch: int
    batch: int
    tasks: Tensor
    actions: Tensor


class Detector:
    """Looks for NaN and infinity in images, loss, reward, gradient and policy.

    Nothing waits for a device: each batch, what is on the host anyhow is looked at. Those are float images, the
    rows of the policy, and the rewards; a loss that is not finite travels with the rewards, to host and processes. The
    weights are looked at every ``LOOK`` batches and before a checkpoint is saved, which suffices to find a gradient
    that was not finite: a weight that is nan stays so, and the loss of the next batch that uses it is nan.

    With several processes, what one finds all of them tell and stop at.
    """

    def __init__(self) -> None:
        self._bad_images: list[int] = []  # their tasks, of the batch under way
        # to be told when the processes meet: after how many batches, and the sentence
        self._found: tuple[float, str] | None = None
        self._routes: deque[Routed] = deque(maxlen=LOOK)  # since the last look, or before
        self._losses: list[tuple[int, int, Tensor]] = []  # that nobody has waited for yet

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def see_batch(self, images: Tensor, tasks: Tensor) -> None:
        """Looks at a batch (N, ...) on the host; whole numbers are finite."""
        self._bad_images = []
        if images.is_floating_point() and images.device.type == "cpu" and not finite(images):
            self._bad_images = tasks[~images.flatten(1).isfinite().all(1)].tolist()

    @on_host
    def see_evaluation(self, module: "TaskClassifier", batch: int) -> None:
        """Tells of the images of a batch of an evaluation."""
        if self._bad_images:
            self._tell_or_keep(module, self._of_images(module, batch))

    @on_host
    def see_loss(self, module: "TaskClassifier", batch: int, losses: Tensor, tasks: Tensor) -> None:
        """Looks at the losses (N,) or () of a batch before its backward pass; on a device the look comes later."""
        if losses.device.type != "cpu":
            self._losses.append((module.current_epoch, batch, losses.detach().sum()))
        elif self._bad_images or not finite(losses):
            self._tell_or_keep(module, self._of_loss(module, batch, losses, tasks))
        self._routes.append(Routed(module.current_epoch, batch, tasks, tasks[:, None]))

    @on_host
    def see_route(self, module: "TaskClassifier", batch: int, trace: Trace, losses: Tensor) -> None:
        """Looks at policy and reward of a batch before its backward pass.

        Args:
            module: the model.
            batch: number of the batch in its epoch.
            trace: the trace of this process's samples with its final reward; on a device a loss that is not finite has
                made that nan.
            losses: (N,) or ().
        """
        reward, rows = trace.final_reward, trace.probabilities
        assert reward is not None
        if self._bad_images:
            sentence = self._of_images(module, batch)
        elif rows is not None and not distributions(rows, trace.actions):
            sentence = self._of_policy(module, batch, rows, trace)
        elif finite(reward) and (losses.device.type != "cpu" or finite(losses)):
            return
        elif not bool(losses.isfinite().all()):
            sentence = self._of_loss(module, batch, losses, trace.tasks)
        else:
            bad = ~reward.isfinite()
            sentence = told(
                f"the reward is {reward[bad][0].item()}",
                where(module, module.current_epoch, batch, trace.tasks[bad]),
                "mend what gives it",
            )
        trace.final_reward = torch.full_like(reward, torch.nan)  # so that all processes see it
        self._tell_or_keep(module, sentence)

    @on_host
    def see_joint(self, module: "TaskClassifier", batch: int, trace: Trace) -> None:
        """Looks at the trace of all processes' samples, which is the same on all of them, before the router learns."""
        self._routes.append(Routed(module.current_epoch, batch, trace.tasks, trace.actions))
        other = trace.alternative_reward
        if other is not None and bool(other.isnan().any()):
            place = where(module, module.current_epoch, batch, trace.tasks[other.isnan()])
            self._tell(module, told("the reward of another route is nan", place, ADVICE))
        if module.trainer.world_size > 1 and trace.final_reward is not None and not finite(trace.final_reward):
            self._meet(module)

    @on_host
    def see_returns(self, module: "TaskClassifier", batch: int, trace: Trace) -> None:
        """Looks at the returns that the router has learned from."""
        if trace.returns is None or finite(trace.returns):
            return
        sample, depth = (~trace.returns.isfinite()).nonzero()[0].tolist()
        place = where(module, module.current_epoch, batch, trace.tasks[sample : sample + 1], depth)
        self._tell(module, told(f"the return is {trace.returns[sample, depth].item()}", place, "mend what gives it"))

    def moved(self, module: "TaskClassifier") -> list[nn.Parameter]:
        """The weights that may have moved since the last look."""
        actions = torch.cat([routed.actions for routed in self._routes]) if self._routes else torch.empty(0, 0)
        return module.used_parameters(actions)

    def look(self, module: "TaskClassifier", batch: int) -> None:
        """Looks at the weights that have moved, and at what was found since the last look; the processes meet.

        Args:
            module: the model.
            batch: the last batch of which a step was made.
        """
        losses, self._losses = self._losses, []
        if losses and not finite(torch.stack([loss for *_, loss in losses])):
            epoch, number, loss = next(entry for entry in losses if not bool(entry[2].isfinite()))
            self._keep(module, told(f"the loss is {loss.item()}", where(module, epoch, number), ADVICE))
        if self._found is None and (sentence := self._of_weights(module, batch, self.moved(module))):
            self._found = math.inf, sentence  # what spoiled them, on another process perhaps, goes first
        self._meet(module, any_process=True)

    def check_state(self, module: "TaskClassifier") -> None:
        """Refuses to save what is not finite: weights, their averages, policies and what the optimizers keep.

        Raises:
            NonFiniteError: if there is such a number.
        """
        batch = max(0, module.trainer.fit_loop.epoch_loop.batch_idx)
        sentence = self._of_weights(module, batch, module.parameters())
        router = getattr(module, "router", None)
        if sentence is None and isinstance(router, Router) and not router.uses_state:
            tasks = torch.arange(router.spec.num_tasks)
            rows = router.probabilities()
            taken = Trace(tasks, tasks, actions=torch.zeros(rows.shape[:2], dtype=torch.long))
            if not distributions(rows, taken.actions):
                sentence = self._of_policy(module, batch, rows, taken)
        if sentence is None:
            kept = {f"buffer {name}": value for name, value in module.named_buffers()}
            for optimizer in module.trainer.optimizers:
                for state in optimizer.state.values():
                    kept |= {f"the optimizer's {name}": value for name, value in state.items()}
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
                    sentence = told(f"{name} is nan", where(module, module.current_epoch, batch), ADVICE)
                    break
        if sentence is not None:
            self._tell(module, sentence)

    # -- sentences -----------------------------------------------------------------------------------------------------

    def _of_images(self, module: "TaskClassifier", batch: int) -> str:
        place = where(module, module.current_epoch, batch, torch.tensor(self._bad_images))
        return told("an image holds nan or infinity", place, "mend the data")

    def _of_loss(self, module: "TaskClassifier", batch: int, losses: Tensor, tasks: Tensor) -> str:
        if self._bad_images:
            return self._of_images(module, batch)
        weights = self._of_weights(module, batch - 1, self.moved(module))
        if weights is not None:
            return weights
        bad = ~losses.detach().isfinite().cpu().expand(tasks.shape)
        value = losses.detach().cpu().expand(tasks.shape)[bad][0].item()
        return told(
            f"the loss is {value}", where(module, module.current_epoch, batch, tasks[bad.to(tasks.device)]), ADVICE
        )

    def _of_policy(self, module: "TaskClassifier", batch: int, rows: Tensor, trace: Trace) -> str:
        wrong = (rows.min(-1).values < 0) | ~((rows.sum(-1) - 1).abs() < TOLERANCE)
        sample, depth = (wrong & (trace.actions >= 0)).nonzero()[0].tolist()
        row = [round(value, 4) for value in rows[sample, depth].tolist()]
        shown = ", ".join(map(str, row[:6])) + (", ..." if len(row) > 6 else "")
        return told(
            f"the policy's row is {shown}, which is no distribution,",
            where(module, module.current_epoch, batch, trace.tasks[sample : sample + 1], depth),
            "mend the policy or its learner, or lower the router's learning rate",
        )

    def _of_weights(self, module: "TaskClassifier", batch: int, parameters: Iterable[nn.Parameter]) -> str | None:
        """Says which weight is not finite, and since when; None if all are finite."""
        looked = list(parameters)
        if not looked or math.isfinite(float(get_total_norm([p.detach() for p in looked if p.numel()]))):
            return None
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for parameter in looked:
            if bool(parameter.isfinite().all()):
                continue
            depth, block = module.place_of(parameter)
            epoch, tasks = module.current_epoch, None
            for routed in reversed(self._routes):
                users = routed.tasks >= 0 if depth is None else routed.actions[:, depth] == torch.tensor(block)
                if bool(users.any()):
                    # A use of the weight after it had become nan would have been a loss of nan.
                    epoch, batch, tasks = routed.epoch, routed.batch, routed.tasks[users]
                    break
            kind = "nan" if bool(parameter.isnan().any()) else "infinite"
            name = names.get(id(parameter), "a weight")
            what = f"the gradient or step of {name}" + ("" if depth is None else f" (block {block})")
            return told(f"{what} is {kind}", where(module, epoch, batch, tasks, depth), ADVICE)
        return None

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _tell_or_keep(self, module: "TaskClassifier", sentence: str) -> None:
        """Stops at once if this is the only process, else when the processes meet: they must stop together."""
        if module.trainer.world_size == 1:
            self._tell(module, sentence)
        self._keep(module, sentence)

    def _keep(self, module: "TaskClassifier", sentence: str) -> None:
        self._found = self._found or (module.trainer.fit_loop.total_batch_idx, sentence)

    def meet(self, module: "TaskClassifier") -> None:
        """Lets the processes tell each other what they have found; all must call it."""
        if module.trainer.world_size > 1:
            self._meet(module, any_process=True)

    def _meet(self, module: "TaskClassifier", any_process: bool = False) -> None:
        found, self._found = self._found, None
        if module.trainer.world_size > 1:
            if any_process:
                flag = torch.tensor(int(found is not None), device=module.trainer.strategy.root_device)
                dist.all_reduce(flag, dist.ReduceOp.MAX)
                if not int(flag):
                    return
            of_all: list[Any] = [None] * module.trainer.world_size
            dist.all_gather_object(of_all, found)
            # The cause: soon after one process has found it, others find what it did to them.
            found = min((each for each in of_all if each is not None), key=lambda each: each[0], default=None)
        if found is not None:
            self._tell(module, found[1])

    def _tell(self, module: "TaskClassifier", sentence: str) -> None:
        for callback in module.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback.save_on_exception = False  # what it would save is spoiled
        raise NonFiniteError(sentence)


ADVICE = "lower the learning rate or clip the gradient"


def told(what: str, place: str, advice: str) -> str:
    """The sentence."""
    return (
        f"{what} in {place}; the run stops and its last good checkpoint is kept: {advice}, or set "
        "--detect=false to go on all the same."
    )


def where(
    module: "TaskClassifier", epoch: int, batch: int, tasks: Tensor | None = None, depth: int | None = None
) -> str:
    """Batch, epoch, tasks and depth in words."""
    found = f"batch {batch} of epoch {epoch}"
    if tasks is not None and len(tasks):
        names, present = module.task_names(), tasks.unique().tolist()
        shown = ", ".join(names[task] if task < len(names) else str(task) for task in present[:MOST_NAMED])
        further = len(present) - MOST_NAMED
        found += f", task{'s' if len(present) > 1 else ''} {shown}" + (f" and {further} more" if further > 0 else "")
    return found if depth is None else f"{found}, depth {depth + 1}"


def finite(values: Tensor) -> bool:
    """Whether all values are finite. The sum tells in one pass if they are, unless it overflows."""
    return math.isfinite(float(values.detach().sum())) or bool(values.isfinite().all())


def distributions(rows: Tensor, actions: Tensor) -> bool:
    """Whether rows (N, D, K) are distributions wherever there was a decision: actions (N, D), -1 for none."""
    return bool(_distributions(rows.detach().numpy(), actions.numpy(), TOLERANCE))


@numba.njit(cache=True, nogil=True)
def _distributions(rows, actions, tolerance):  # type: ignore[no-untyped-def]
    for n in range(rows.shape[0]):
        for d in range(rows.shape[1]):
            if actions[n, d] < 0:
                continue
            total, lowest = 0.0, 0.0
            for k in range(rows.shape[2]):
                total += rows[n, d, k]
                lowest = min(lowest, rows[n, d, k])
            if lowest < 0 or not abs(total - 1) < tolerance:  # nan is no number below it either
                return False
    return True
