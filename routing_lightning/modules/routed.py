"""RoutedClassifier: the network learns by SGD, the router in its own way, in one training step."""

import inspect
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.modules.averaging import copy_in_averages
from routing_lightning.modules.classifier import Batch, TaskClassifier
from routing_lightning.modules.copying import copy_block
from routing_lightning.modules.gather import TraceGatherer
from routing_lightning.modules.gradients import check_aggregator, combine_gradients
from routing_lightning.modules.joint import FeatureFinder, watched
from routing_lightning.modules.making import made
from routing_lightning.modules.optimizing import sgd
from routing_lightning.modules.pixels import PixelNormalisation
from routing_lightning.modules.resume import KEY
from routing_lightning.modules.schedule import with_length
from routing_lightning.modules.strategy import prepare_strategy
from routing_lightning.networks.convnet import check_image_shape
from routing_lightning.networks.paper import RoutingAllFC
from routing_lightning.networks.routing import RoutingNetwork
from routing_lightning.nn.tracing import on_host
from routing_lightning.routers import Router, Trace, correctness_reward

BODY = "a class that takes these three and holds routed layers, such as RoutingAllFC"
OF_ROUTER = "network.router."
NetworkMaker = Callable[[tuple[int, int, int], int, int], nn.Module]


class AsAutomatic:
    """What ModelCheckpoint looks at: its ways for automatic optimization are right here, where steps are whole."""

    automatic_optimization = True


class RoutedClassifier(TaskClassifier):
    """A routing network that classifies images (paper, Algorithm 2: Router-Trainer).

    Each training step makes one optimizer step on the blocks that got a sample and on all that is not a block, and one
    update of the router from the trace of the batch.

    Besides the metrics of :class:`TaskClassifier` it logs ``router/entropy/depth_<d>`` (nats, mean over tasks) each
    epoch, for routers whose routes depend on the task alone.

    Args:
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, the largest number of outputs of a task (classes, labels, or 1 for a value), at least 1.
        image_shape: channels, height and width of the images.
        router: who picks the blocks.
        network: the body: a module that maps images (N, C, H, W) to logits and holds routed layers, or what makes it
            from ``image_shape``, ``num_tasks`` and ``num_classes``; by default the paper's routing-all-fc.
        final_reward: ``"correct"``: +1 for a right prediction, -1 for a wrong one, and minus the loss of the sample for
            tasks of labels or values, of which a prediction is more or less right; ``"negative_loss"``: minus the loss
            for all (paper, section 3.1.1).
        optimizer: makes the optimizer of the network; SGD with lr 1e-2 (paper, section 4) by default.
        lr_scheduler: makes the learning rate scheduler; none by default. A length that is null or -1 is that of the
            run; see :class:`~routing_lightning.modules.optimizing.OptimizingModule`.
        lr_interval: step the scheduler each ``"epoch"`` or each optimizer ``"step"``.
        gradient_clip_val: clip the gradient's norm to this, above 0; null: no clipping. (The Trainer refuses its own
            option for modules that optimize manually.)
        accumulate_grad_batches: batches per optimizer step, at least 1. (Likewise.)
        aggregator: combines the tasks' gradients, such as ``torchjd.aggregation.PCGrad`` (needs the extra ``jd``);
            see :func:`~routing_lightning.modules.gradients.combine_gradients`. None: they are added up.
        joint_loss: share in [0, 1) of a loss over the classes of all tasks in the loss; see :class:`TaskClassifier`.
        label_smoothing: share of the target that is spread over the classes in training, in [0, 1); likewise.
        flip_test: evaluate by an image and its mirror image; likewise.

    Raises:
        UsageError: if a value is out of its range or sizes do not fit.
    """

    def __init__(
        self,
        num_tasks: int,
        num_classes: int,
        image_shape: tuple[int, int, int],
        router: Router,
        network: NetworkMaker = RoutingAllFC,
        final_reward: Literal["correct", "negative_loss"] = "correct",
        optimizer: OptimizerCallable = sgd,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_interval: str = "epoch",
        gradient_clip_val: float | None = None,
        accumulate_grad_batches: int = 1,
        aggregator: nn.Module | None = None,
        joint_loss: float = 0.0,
        label_smoothing: float = 0.0,
        flip_test: bool = False,
    ) -> None:
        super().__init__(
            num_tasks, num_classes, optimizer, lr_scheduler, lr_interval, joint_loss, label_smoothing, flip_test
        )
        self.save_plain_hyperparameters(inspect.currentframe())
        self.automatic_optimization = False
        if gradient_clip_val is not None and not gradient_clip_val > 0:
            raise UsageError(f"gradient_clip_val is {gradient_clip_val}; give a norm above 0, or null for no clipping.")
        if accumulate_grad_batches < 1:
            raise UsageError(f"accumulate_grad_batches is {accumulate_grad_batches}; give at least 1.")
        check_image_shape(image_shape)
        self.image_shape = tuple(image_shape)
        self.normalise = PixelNormalisation(image_shape[0])
        self.gradient_clip_val = gradient_clip_val
        self.accumulate_grad_batches = accumulate_grad_batches
        self.final_reward = final_reward
        self.aggregator = aggregator
        self.gather_trace = TraceGatherer()
        self.everything: list[nn.Parameter] | None = None  # the optimizer's parameters, while it steps over some
        sizes = {"image_shape": image_shape, "num_tasks": num_tasks, "num_classes": num_classes}
        body = network if isinstance(network, nn.Module) else made(network, sizes, BODY)
        self.network = RoutingNetwork(body, router, num_tasks)
        with FeatureFinder(body) if joint_loss else nullcontext() as finder:
            logits = self.network.build(torch.zeros(1, *image_shape))
        if logits.dim() != 2 or logits.shape[1] != num_classes:
            raise UsageError(
                f"{type(body).__name__} gives {tuple(logits.shape[1:])} numbers per image, but there are {num_classes} "
                "classes; give a network that ends with one number for each."
            )
        if finder is not None:
            self.joint = finder.loss(joint_loss, num_tasks, num_classes)
        if router.old_blocks is not None:
            self.network.hold_back(router.old_tasks, router.old_blocks, router.old_lr)
            self.keeps_normalisation = True
            # What a loss depends on where all samples of a process took frozen blocks, so that others need not wait.
            self.anchor = nn.Parameter(torch.zeros(()))

    @property
    def router(self) -> Router:
        """The router."""
        return self.network.router

    # -- processes and devices -----------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Checks the model against the data and prepares the strategy."""
        super().setup(stage)
        # Checkpoints are saved after whole steps, and schedulers are stepped here.
        for message in ("Using ModelCheckpoint with manual optimization", ".*in manual optimization"):
            warnings.filterwarnings("ignore", message)
        check_aggregator(self.aggregator, self.trainer)
        if any(isinstance(callback, GradientAccumulationScheduler) for callback in self.trainer.callbacks):  # type: ignore[attr-defined]
            raise UsageError(
                "GradientAccumulationScheduler is for modules that Lightning optimizes, but routing networks optimize "
                "manually; set accumulate_grad_batches of the model in its place."
            )
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if self.router.joint and (self.trainer.world_size > 1 or self.aggregator is not None or scaled):
            raise UsageError(
                "detach_state is false, which works in one process, without aggregator and not at precision 16-mixed; "
                "set it to true, or leave those out."
            )
        prepare_strategy(self.trainer, self)
        # Every rank learns from the records of all, so what a router learns by itself is equal without help: DDP must
        # not overwrite it.
        own = {id(parameter) for parameter in self.router.own_parameters()}
        if hasattr(self, "anchor"):
            own.add(id(self.anchor))
        self._ddp_params_and_buffers_to_ignore = [
            *(f"network.router.{name}" for name, value in self.router.named_parameters() if id(value) in own),
            *(f"network.router.{name}" for name, _ in self.router.named_buffers()),
        ]

    def on_fit_start(self) -> None:
        """Gives all processes the router of the first one: without a seed they would have made different ones."""
        super().on_fit_start()
        if self.trainer.world_size > 1:
            self.router.load_state_dict(self.trainer.strategy.broadcast(self.router.state_dict()))

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Moves images and labels; tasks stay on the host, where the table is, so that routing never waits."""
        images, tasks, *labels = batch  # an example has none
        return images.to(device, non_blocking=True), tasks, *(x.to(device, non_blocking=True) for x in labels)

    # -- the step ------------------------------------------------------------------------------------------------------

    def forward(self, images: Tensor, tasks: Tensor) -> Tensor:
        """Logits of the most probable routes (N, num_classes).

        Args:
            images: (N, C, H, W), uint8 or normalised.
            tasks: (N,).
        """
        return self.route(images, tasks, explore=False)[0]

    def route(
        self, images: Tensor, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Trace]:
        """Logits (N, num_classes) and the trace of the routes."""
        pixels = self.normalise(images).to(self.dtype)
        logits, trace = self.network(pixels, tasks, explore=explore, generator=generator)
        return self.masked(logits, tasks), trace

    def logits_and_route(self, images: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits (N, C) and the block at each depth (N, D); see the base class."""
        logits, trace = self.route(images, tasks, explore=False)
        return logits, trace.actions

    def evaluate(self, batch: Batch, stage: str) -> dict[str, Any]:
        """One batch of validation or test; returns ``prediction`` and ``trace`` of this process's, for callbacks."""
        images, tasks, labels = batch
        logits, trace = self.route(images, tasks, explore=False)
        logits = self.with_mirrored(logits, images, tasks)
        self.count_logits(stage, logits, tasks, labels)
        return {"prediction": self.predictions(logits, tasks), "trace": trace}

    @on_host
    def noise(self, batch_idx: int) -> torch.Generator:
        """Source of a batch's action noise, on the host."""
        return torch.Generator().manual_seed(self.noise_key(batch_idx))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """One step of Algorithm 2 for a batch.

        Returns:
            ``loss``: the detached mean loss; ``trace``: the trace of all processes' samples, for callbacks.
        """
        images, tasks, _ = batch
        with watched(self.joint, self.network.body) as features:
            logits, trace = self.route(images, tasks, explore=True, generator=self.noise(batch_idx))
        return self.learn(batch, batch_idx, logits, trace, features)

    @on_host
    def learn(
        self, batch: Batch, batch_idx: int, logits: Tensor, trace: Trace, features: list[Tensor]
    ) -> dict[str, Any]:
        """What a training step does after the forward pass, of which the arguments come; returns what that returns."""
        _, tasks, labels = batch
        hits = self.hits(logits, tasks, labels)
        if self.trainer.fit_loop._skip_backward:  # StochasticWeightAveraging: an epoch for batch normalisation alone
            loss = self.losses(logits, tasks, labels, apart=False).mean().detach()
            self.count("train", loss, hits, tasks, logits, labels)
            return {"loss": loss, "trace": trace}
        # Each sample's own loss costs more than the mean, which takes one operation.
        apart = self.aggregator is not None or self.final_reward == "negative_loss"
        losses = self.losses(logits, tasks, labels, apart)
        loss = losses.mean() if losses.dim() else losses
        reward = self.reward(hits, losses.detach(), tasks)
        losses = self.trained_losses(losses, logits, features, tasks, labels)
        detector = self.detector
        if detector is not None and losses.device.type != "cpu":
            reward = reward + 0 * losses.detach()  # a loss that is not finite comes to the host with it
        trace.final_reward = reward.float().cpu()
        if detector is not None:
            detector.see_route(self, batch_idx, trace, losses)
        self.take_gradients(losses, self.router.auxiliary_loss(trace), tasks)
        if trace.alternatives is not None:
            trace.alternative_reward = self.learn_otherwise(trace, tasks, labels)
        if (batch_idx + 1) % self.accumulate_grad_batches == 0 or self.trainer.is_last_batch:
            self.step_optimizer()
            self.step_schedulers("step")
        # What the trace keeps of the graph is done with.
        trace.scores, trace.generator = [], None
        trace = self.gather_trace(trace, self.trainer.strategy.root_device)
        if detector is not None:
            detector.see_joint(self, batch_idx, trace)
        self.router.learn(trace)
        if detector is not None:
            detector.see_returns(self, batch_idx, trace)
        for copied in self.router.copies():
            copy_block(self.network.calls[copied.depth].blocks, copied, self.trainer.optimizers[0])
            copy_in_averages(self.trainer, copied)
        if self.trainer.is_last_batch:
            self.step_schedulers("epoch")

        loss = loss.detach()
        self.count("train", loss, hits, tasks, logits, labels)
        # Lightning takes longer to note a number than we to learn from a batch, and shows every n-th one only.
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if batch_idx == 0 or (every > 0 and (self.trainer.fit_loop.total_batch_idx + 1) % every == 0):
            self.log("train/loss_step", loss, prog_bar=True)
        return {"loss": loss, "trace": trace}

    def reward(self, hits: Tensor, losses: Tensor, tasks: Tensor) -> Tensor:
        """Final reward of each sample, (N,).

        Args:
            hits: whether its class is predicted, (N,) bool.
            losses: its loss, (N,); or their mean, (), where hits say all.
            tasks: its task, (N,).
        """
        if self.final_reward == "negative_loss":
            return -losses
        reward = correctness_reward(hits)
        if self.objective is None:
            return reward
        return torch.where(self.objective.asked(tasks, hits.device).classes, reward, -losses)

    def learn_otherwise(self, trace: Trace, tasks: Tensor, labels: Tensor) -> Tensor:
        """Adds the gradients of the blocks that the samples had taken with the alternatives of their trace.

        Returns:
            What each sample's reward had been, (N,) float32 on the host.
        """
        logits = self.masked(self.network.otherwise(trace), tasks)
        losses = self.losses(logits, tasks, labels, apart=True)
        reward = self.reward(self.hits(logits, tasks, labels), losses.detach(), tasks).float().cpu()
        if not losses.requires_grad and self.trainer.world_size > 1:  # other processes wait for this one
            used = (parameter for parameter in self.used_parameters(trace.actions) if parameter.requires_grad)
            losses = losses + 0 * next(used).sum()
        if losses.requires_grad:
            self.take_gradients(losses, None, tasks)
        return reward

    def take_gradients(self, losses: Tensor, auxiliary: Tensor | None, tasks: Tensor) -> None:
        """Adds the gradients of a batch's loss to those since the last step.

        Args:
            losses: the mean loss of the batch (), or the loss of each sample (N,).
            auxiliary: the router's part of the loss, a scalar, or None.
            tasks: (N,) int64.
        """
        if auxiliary is not None:
            self.log("train/auxiliary_loss", auxiliary.detach())
            losses = losses + auxiliary
        if not losses.requires_grad and hasattr(self, "anchor"):  # all samples took frozen blocks
            losses = losses + 0 * self.anchor
        if self.accumulate_grad_batches > 1:
            losses = losses / self.accumulate_grad_batches
        if self.aggregator is not None:
            combine_gradients(losses / len(losses), tasks, self.parameters_in_use(), self.aggregator)
        else:
            self.manual_backward(losses.mean() if losses.dim() else losses)

    def configure_optimizers(self) -> Any:
        """The optimizer of the network, then those of the router."""
        own = super().configure_optimizers()
        first = own if isinstance(own, dict) else {"optimizer": own}
        first["optimizer"].register_state_dict_pre_hook(self._list_everything)
        blocks = {id(parameter) for parameter in self.network.block_parameters()}
        self.shared_parameters = [p for p in self.trained_parameters() if id(p) not in blocks]
        learners = [part for part in self.router.modules() if hasattr(part, "make_lr_scheduler")]
        makers = [learner.make_lr_scheduler for learner in learners]
        try:
            for learner, make in zip(learners, makers, strict=True):
                learner.make_lr_scheduler = with_length(make, partial(self.run_length, "epoch"))
            routers = self.router.configure()
        except UsageError:
            raise
        except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
            raise UsageError(f"the router's optimizer refuses its values: {error}; mend its init_args.") from error
        finally:
            for learner, make in zip(learners, makers, strict=True):
                learner.make_lr_scheduler = make
        if not routers:
            return own
        # Listed so that checkpoints hold their state; they step apart, so that global_step counts batches once.
        return [first] + [
            {"optimizer": optimizer} | ({"lr_scheduler": scheduler} if scheduler else {})
            for optimizer, scheduler in routers
        ]

    def batches_per_step(self, epoch: int) -> int:
        """Batches per optimizer step; see the base class."""
        return self.accumulate_grad_batches

    def trained_parameters(self) -> list[nn.Parameter]:
        """Parameters of the network, and those of the router that it does not move itself."""
        own = {id(parameter) for parameter in self.router.own_parameters()}
        if self.aggregator is not None:
            own |= {id(parameter) for parameter in self.aggregator.parameters()}
        return [parameter for parameter in super().trained_parameters() if id(parameter) not in own]

    def used_parameters(self, actions: Tensor) -> list[nn.Parameter]:
        """Parameters of the blocks that were taken, and all that are no blocks."""
        found = {id(parameter): parameter for parameter in (*self.shared_parameters, *self.router.own_parameters())}
        for layer, taken in zip(self.network.calls, actions.unbind(1), strict=False):
            for block in set(taken.tolist()):
                if 0 <= block < layer.blocks.num_blocks:
                    found |= {id(parameter): parameter for parameter in layer.blocks.block_parameters(block)}
        return list(found.values())

    def place_of(self, parameter: nn.Parameter) -> tuple[int | None, int | None]:
        """Depth, from 0, and block that a parameter belongs to, if it belongs to a block."""
        for depth, layer in enumerate(self.network.calls):
            for block in range(layer.blocks.num_blocks):
                if any(parameter is own for own in layer.blocks.block_parameters(block)):
                    return depth, block
        return None, None

    def parameters_in_use(self) -> list[nn.Parameter]:
        """Parameters that may have a gradient: all but those of blocks without samples since the last step.

        With several processes all of them: a block may have got its samples elsewhere.
        """
        if self.trainer.world_size > 1:
            return self.trained_parameters()
        return [*self.shared_parameters, *self.network.active_parameters()]

    def step_optimizer(self) -> None:
        """Steps the optimizer over the parameters with a gradient."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, LightningOptimizer)
        groups = optimizer.param_groups
        try:
            if len(groups) == 1:
                # Looking through the blocks without samples would cost more the more blocks there are.
                self.everything = groups[0]["params"]
                groups[0]["params"] = self.parameters_in_use()
            if self.gradient_clip_val is not None:
                scaler = getattr(self.trainer.precision_plugin, "scaler", None)
                if scaler is not None:  # precision 16-mixed: the norm is that of the true gradient
                    scaler.unscale_(optimizer.optimizer)
                self.clip_gradients(optimizer.optimizer, self.gradient_clip_val, "norm")
            optimizer.step()
            for group in groups:
                for parameter in group["params"]:
                    parameter.grad = None  # zero_grad() does the same in several times as long
        finally:
            self._list_everything(optimizer.optimizer)  # whatever happened
        self.network.reset_active()

    def _list_everything(self, optimizer: torch.optim.Optimizer) -> None:
        """Puts all parameters back into the optimizer; before its state is asked for, too, within a step perhaps."""
        if self.everything is not None:
            optimizer.param_groups[0]["params"], self.everything = self.everything, None

    def step_schedulers(self, interval: str) -> None:
        """Steps the learning rate schedulers that go by ``"epoch"`` or ``"step"``.

        Lightning leaves that to modules that optimize manually. Here it is done where it does it for the others: in the
        step, so that all checkpoints saved after it have it.
        """
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == interval:
                self.lr_scheduler_step(config.scheduler)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Saves checkpoints that are due by time, which ModelCheckpoint leaves out for manual optimization."""
        for callback in self.timed_checkpoints:
            callback.on_train_batch_end(self.trainer, AsAutomatic, outputs, batch, batch_idx)  # type: ignore[arg-type]

    def on_validation_model_zero_grad(self) -> None:
        """Keeps the gradients of batches whose step is still to come; a step drops its own."""

    def is_accumulating(self) -> bool:
        """Whether the gradients are those of batches whose optimizer step is still to come."""
        return not self.within_step()  # which drops its gradients at its end

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the blocks that got a sample since the last step; see the base class."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[KEY]["active"] = [sorted(layer.blocks.active) for layer in self.network.layers]
        checkpoint["num_blocks"] = list(self.router.spec.num_blocks)

    def check_sizes(self, checkpoint: dict[str, Any]) -> None:
        """Checks numbers of depths and blocks, too; see the base class."""
        super().check_sizes(checkpoint)
        theirs, own = checkpoint.get("num_blocks"), list(self.router.spec.num_blocks)
        if not isinstance(theirs, list) or theirs == own:
            return
        if len(theirs) != len(own):
            raise UsageError(
                f"the checkpoint is of a network of depth {len(theirs)}, but this one has depth {len(own)}; give the "
                "config of its run, or none."
            )
        raise UsageError(
            f"the checkpoint is of a network of {theirs} blocks at its depths, but this one has {own}; give the config "
            "of its run, or none."
        )

    def begin_with(self, checkpoint: dict[str, Any]) -> None:
        """Leaves the router as it is where options say that its policies are others; see the base class."""
        fresh = {name: value.clone() for name, value in self.router.state_dict().items()}
        changed = [change for change in self.changed_options(checkpoint) if change.of_router]
        anew = [change for change in changed if change.is_of_policies]
        if anew and isinstance(checkpoint.get("state_dict"), dict):
            weights = {k: v for k, v in checkpoint["state_dict"].items() if not k.startswith(OF_ROUTER)}
            weights |= {f"{OF_ROUTER}{name}": value for name, value in fresh.items()}
            checkpoint = {**checkpoint, "state_dict": weights}
        super().begin_with(checkpoint)
        past = [change for change in changed if change.is_past(self.router)]
        if past:
            self.router.load_state_dict(fresh)
        if anew or past:
            names = ", ".join(f"{change.option} of {change.owner}" for change in anew or past)
            rank_zero_info(f"the router begins anew, since {names} is another one than in the checkpoint")

    def on_train_start(self) -> None:
        """Forgets the blocks of a run that was broken off; see the base class."""
        self.network.reset_active()
        super().on_train_start()
        self.router.plan(self.planned_batches())
        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            for sentence in self.router.foresee(self.planned_batches(), self.network.depth_names()):
                rank_zero_warn(sentence)
        self.timed_checkpoints = [
            callback
            for callback in self.trainer.checkpoint_callbacks
            if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None
        ]

    def on_train_end(self) -> None:
        """Tells what the router could not decide."""
        super().on_train_end()
        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            for sentence in self.router.left_open(self.network.depth_names()):
                rank_zero_warn(sentence)

    def planned_batches(self) -> float:
        """Number of batches of the whole training, infinite where nobody knows."""
        trainer = self.trainer
        epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
        steps = math.inf if trainer.max_steps == -1 else trainer.max_steps
        by_epochs = epochs * trainer.num_training_batches if trainer.num_training_batches else 0
        return min(by_epochs, steps * self.accumulate_grad_batches)

    def resume(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`on_save_checkpoint` added."""
        super().resume(state)
        if state["gradients"]:
            for layer, active in zip(self.network.layers, state["active"], strict=True):
                layer.blocks.active.update(active)

    def logged_names(self) -> list[str]:
        """Names of the metrics, those of the router included; see the base class."""
        depths = range(1, len(self.router.spec.num_blocks) + 1)
        return super().logged_names() + [f"router/entropy/depth_{depth}" for depth in depths]

    def on_train_epoch_end(self) -> None:
        """Reports the epoch."""
        super().on_train_epoch_end()
        if self.router.uses_state:
            return
        entropy = torch.special.entr(self.router.probabilities()).sum(-1).mean(0)
        for depth, value in enumerate(entropy):
            self.log(f"router/entropy/depth_{depth + 1}", value)
