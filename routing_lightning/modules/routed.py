"""RoutedClassifier: blocks learn by SGD, the router by reinforcement, in one training step."""

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from routing_lightning.errors import UsageError
from routing_lightning.modules.classifier import Batch, TaskClassifier, feature_size, sgd
from routing_lightning.modules.gather import TraceGatherer
from routing_lightning.modules.gradients import check_aggregator, combine_gradients, make_aggregator
from routing_lightning.nn.blocks import Blocks, LinearBlocks
from routing_lightning.nn.layers import layer_sizes
from routing_lightning.nn.routing import RoutingNetwork
from routing_lightning.routers import Router, Trace, correctness_reward


def paper_layers(
    features: int, num_tasks: int, num_classes: int, hidden: int, depth: int, num_blocks: Sequence[int]
) -> list[LinearBlocks]:
    """The paper's routed layers: (features -> hidden), (hidden -> hidden) ..., (hidden -> classes) (section 4).

    Args:
        features: size of the feature vector.
        num_tasks: T, number of tasks.
        num_classes: C, size of the output.
        hidden: units of a hidden layer.
        depth: D, number of layers, at least 1.
        num_blocks: number of blocks of each of the D layers.

    Returns:
        D sets of blocks, with ReLU after all but the last.
    """
    sizes = layer_sizes(features, num_tasks, num_classes, hidden, depth)
    return [LinearBlocks(blocks, *size) for blocks, size in zip(num_blocks, sizes, strict=True)]


class RoutedClassifier(TaskClassifier):
    """A routing network on top of shared features (paper, Algorithm 2: Router-Trainer).

    Each training step makes one optimizer step on the features and on the blocks that got a sample, and one update of
    the router by the return of each sample.

    Besides the metrics of :class:`TaskClassifier` it logs ``router/entropy/depth_<d>`` (nats, mean over tasks) and
    ``router/blocks_in_use/depth_<d>`` (blocks that are the most probable one of some task) each epoch.

    Args:
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, the largest number of labels of a task, at least 2.
        features: maps images (N, C, H, W) to vectors (N, ``features.out_features``).
        router: who picks the blocks.
        depth: D, number of routed layers, at least 1 (paper: 3).
        hidden: units of each hidden layer, at least 1 (paper: 128).
        num_blocks: blocks per layer, one number or one per layer; by default one block per task, as in the paper.
        recurrent_steps: how often the layer between first and last is routed through, any of its blocks each time; 0:
            layered, once. Needs depth 3: first layer, recurrent layer, classification (paper, appendix).
        allow_pass: whether the recurrent steps have PASS, which leaves the activation as it is.
        layers: sets of blocks in place of the paper's; ``depth``, ``hidden`` and ``num_blocks`` then do not count.
        final_reward: ``"correct"``: +1 for a right prediction, -1 for a wrong one; ``"negative_loss"``: minus the loss
            of the sample (paper, section 3.1.1).
        optimizer: makes the optimizer of features and blocks; SGD with lr 1e-2 (paper, section 4) by default.
        lr_scheduler: makes the learning rate scheduler; none by default.
        lr_interval: step the scheduler each ``"epoch"`` or each optimizer ``"step"``.
        gradient_clip_val: clip the gradient's norm to this, above 0; null: no clipping. (The Trainer refuses its own
            option for modules that optimize manually.)
        accumulate_grad_batches: batches per optimizer step, at least 1. (Likewise.)
        aggregator: combines the tasks' gradients, such as ``torchjd.aggregation.PCGrad`` (needs the extra ``jd``);
            see :func:`~routing_lightning.modules.gradients.combine_gradients`. None: they are added up.
        compile_features: whether the features go through ``torch.compile``, which needs a C++ compiler on the CPU and
            takes up to a minute at the first batch (docs/performance.md says what it gains).

    Raises:
        UsageError: if a value is out of its range or sizes do not fit.
    """

    def __init__(
        self,
        num_tasks: int,
        num_classes: int,
        features: nn.Module,
        router: Router,
        depth: int = 3,
        hidden: int = 128,
        num_blocks: int | list[int] | None = None,
        recurrent_steps: int = 0,
        allow_pass: bool = False,
        layers: list[Blocks] | None = None,
        final_reward: Literal["correct", "negative_loss"] = "correct",
        optimizer: OptimizerCallable = sgd,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_interval: str = "epoch",
        gradient_clip_val: float | None = None,
        accumulate_grad_batches: int = 1,
        aggregator: str | dict[str, Any] | nn.Module | None = None,
        compile_features: bool = False,
    ) -> None:
        super().__init__(num_tasks, num_classes, optimizer, lr_scheduler, lr_interval)
        self.save_plain_hyperparameters(inspect.currentframe())
        self.automatic_optimization = False
        if gradient_clip_val is not None and not gradient_clip_val > 0:
            raise UsageError(f"gradient_clip_val is {gradient_clip_val}; give a norm above 0, or null for no clipping.")
        if accumulate_grad_batches < 1:
            raise UsageError(f"accumulate_grad_batches is {accumulate_grad_batches}; give at least 1.")
        size = feature_size(features)
        self.gradient_clip_val = gradient_clip_val
        self.accumulate_grad_batches = accumulate_grad_batches
        self.features = features
        if compile_features:
            self.features.compile()  # in place: names in checkpoints stay
        if layers is None:
            if depth < 1:
                raise UsageError(f"depth is {depth}; give at least 1 routed layer.")
            blocks = num_tasks if num_blocks is None else num_blocks
            blocks = [blocks] * depth if isinstance(blocks, int) else blocks
            if len(blocks) != depth:
                raise UsageError(
                    f"num_blocks lists {len(blocks)} layers but depth is {depth}; give one number per layer."
                )
            layers = list(paper_layers(size, num_tasks, num_classes, hidden, depth, blocks))
        order, may_pass = None, None
        if recurrent_steps < 0 or (recurrent_steps > 0 and len(layers) != 3):
            raise UsageError(
                f"recurrent_steps is {recurrent_steps} with {len(layers)} layers; give 0, or more with depth 3."
            )
        if recurrent_steps:
            order = [0, *[1] * recurrent_steps, 2]
            may_pass = [False, *[allow_pass] * recurrent_steps, False]
        elif allow_pass:
            raise UsageError("allow_pass is true but nothing is recurrent; set recurrent_steps to at least 1.")
        self.network = RoutingNetwork(layers, router, num_tasks, order, may_pass)
        self.final_reward = final_reward
        self.gather_trace = TraceGatherer()
        self.aggregator = make_aggregator(aggregator)

    @property
    def router(self) -> Router:
        """The router."""
        return self.network.router

    # -- processes and devices -----------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Checks the model against the data and prepares the strategy."""
        super().setup(stage)
        check_aggregator(self.aggregator, self.trainer)
        strategy = self.trainer.strategy
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if not self.router.detach_state and (self.trainer.world_size > 1 or self.aggregator is not None or scaled):
            raise UsageError(
                "detach_state is false, which works in one process, without aggregator and not at precision 16-mixed; "
                "set it to true, or leave those out."
            )
        if isinstance(strategy, DDPStrategy):
            # A block may get samples on some ranks and not on others, or on none.
            strategy._ddp_kwargs.setdefault("find_unused_parameters", True)
        # Every rank learns from the records of all, so routers are equal without help: DDP must not overwrite them.
        self._ddp_params_and_buffers_to_ignore = [
            f"network.router.{name}" for name in self.network.router.state_dict(keep_vars=True)
        ]

    def on_fit_start(self) -> None:
        """Gives all processes the router of the first one: without a seed they would have made different ones."""
        super().on_fit_start()
        if self.trainer.world_size > 1:
            self.router.load_state_dict(self.trainer.strategy.broadcast(self.router.state_dict()))

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Moves images and labels; tasks stay on the host, where the table is, so that routing never waits."""
        images, tasks, labels = batch
        return images.to(device, non_blocking=True), tasks, labels.to(device, non_blocking=True)

    # -- the step ------------------------------------------------------------------------------------------------------

    def forward(self, images: Tensor, tasks: Tensor) -> Tensor:
        """Logits of the most probable routes: images (N, C, H, W), tasks (N,) -> (N, num_classes)."""
        return self.route(images, tasks, explore=False)[0]

    def route(
        self, images: Tensor, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Trace]:
        """Logits (N, num_classes) and the trace of the routes."""
        return self.network(self.features(images.to(self.dtype)), tasks, explore=explore, generator=generator)

    def evaluate(self, batch: Batch, stage: str) -> dict[str, Any]:
        """One batch of validation or test; returns the ``trace`` of this process's samples, for callbacks."""
        images, tasks, labels = batch
        logits, trace = self.route(images, tasks, explore=False)
        self.count_logits(stage, logits, tasks, labels)
        return {"trace": trace}

    def noise(self, batch_idx: int) -> torch.Generator:
        """Source of a batch's action noise, on the host."""
        return torch.Generator().manual_seed(self.noise_key(batch_idx))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """One step of Algorithm 2 for a batch.

        Returns:
            ``loss``: the detached mean loss; ``trace``: the trace of all processes' samples, for callbacks.
        """
        images, tasks, labels = batch
        logits, trace = self.route(images, tasks, explore=True, generator=self.noise(batch_idx))
        hits = logits.argmax(1) == labels
        # Each sample's own loss costs more than the mean, which takes one operation.
        apart = self.aggregator is not None or self.final_reward == "negative_loss"
        losses = cross_entropy(logits.float(), labels, reduction="none" if apart else "mean")
        loss = losses.mean() if apart else losses
        reward = correctness_reward(hits) if self.final_reward == "correct" else -losses.detach()
        trace.final_reward = reward.float().cpu()
        joint = not self.router.detach_state
        router_loss = self.router.loss(trace) if joint else None

        if self.aggregator is not None:
            share = losses / (len(losses) * self.accumulate_grad_batches)
            combine_gradients(share, tasks, self.parameters_in_use(), self.aggregator)
        else:
            share = loss / self.accumulate_grad_batches if self.accumulate_grad_batches > 1 else loss
            self.manual_backward(share if router_loss is None else share + router_loss)
        if (batch_idx + 1) % self.accumulate_grad_batches == 0 or self.trainer.is_last_batch:
            self.optimizer_step()
        if joint:
            self.router.step(trace)
        else:
            trace = self.gather_trace(trace, self.router, self.trainer.strategy)
            self.router.learn(trace)

        loss = loss.detach()
        self.count("train", loss, hits, tasks)
        # Lightning takes longer to note a number than we to learn from a batch, and shows every n-th one only.
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if batch_idx == 0 or (every > 0 and (self.trainer.fit_loop.total_batch_idx + 1) % every == 0):
            self.log("train/loss_step", loss, prog_bar=True)
        return {"loss": loss, "trace": trace}

    def configure_optimizers(self) -> Any:
        """The optimizer of features and blocks, then those of learners that follow a gradient."""
        own = super().configure_optimizers()
        blocks = {id(parameter) for parameter in self.network.block_parameters()}
        self.shared_parameters = [p for p in self.trained_parameters() if id(p) not in blocks]
        try:
            routers = self.router.configure()
        except (ValueError, TypeError) as error:
            raise UsageError(f"the learner's optimizer refuses its values: {error}; mend its init_args.") from error
        if not routers:
            return own
        first = own if isinstance(own, dict) else {"optimizer": own}
        # Listed so that checkpoints hold their state; they step apart, so that global_step counts batches once.
        return [first] + [
            {"optimizer": optimizer} | ({"lr_scheduler": scheduler} if scheduler else {})
            for optimizer, scheduler in routers
        ]

    def trained_parameters(self) -> list[nn.Parameter]:
        """Parameters of features and blocks; the router learns by itself."""
        own = {id(p) for part in (self.router, self.aggregator) if part is not None for p in part.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in own]

    def parameters_in_use(self) -> list[nn.Parameter]:
        """Parameters that may have a gradient: all but those of blocks without samples since the last step.

        With several processes all of them: a block may have got its samples elsewhere.
        """
        if self.trainer.world_size > 1:
            return self.trained_parameters()
        return [*self.shared_parameters, *self.network.active_parameters()]

    def optimizer_step(self) -> None:  # type: ignore[override]
        """Steps the optimizer over the parameters with a gradient, and the scheduler if it goes by steps."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, LightningOptimizer)
        groups = optimizer.param_groups
        everything = [group["params"] for group in groups]
        if len(groups) == 1:
            # Looking through the blocks without samples would cost more the more blocks there are.
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
        for group, parameters in zip(groups, everything, strict=True):
            group["params"] = parameters
        self.network.reset_active()
        if self.lr_interval == "step":
            self.step_scheduler()

    def step_scheduler(self, of_router: bool = False) -> None:
        """Steps the learning rate schedulers (Lightning leaves that to modules that optimize manually).

        Args:
            of_router: those of the learners, else that of features and blocks.
        """
        for config in self.trainer.lr_scheduler_configs:
            scheduler = config.scheduler
            if (scheduler.optimizer is not self.trainer.optimizers[0]) != of_router:
                continue
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(self.monitored(scheduler))
                continue
            try:
                scheduler.step()
            except ValueError as error:
                raise UsageError(
                    f"lr_scheduler {type(scheduler).__name__} stops: {error}; mend its init_args."
                ) from error

    def monitored(self, scheduler: Any) -> Tensor:
        """The metric that a scheduler watches (Lightning drops its name for modules that optimize manually)."""
        metrics = self.trainer.callback_metrics
        if scheduler.monitor not in metrics:
            names = ", ".join(name for name in sorted(metrics) if "/acc_task/" not in name)
            raise UsageError(f"lr_scheduler monitors {scheduler.monitor!r}, which is not logged; give one of {names}.")
        return metrics[scheduler.monitor]

    def on_train_epoch_end(self) -> None:
        """Reports the epoch and steps the scheduler if it goes by epochs."""
        super().on_train_epoch_end()
        if self.lr_interval == "epoch":
            self.step_scheduler()
        self.step_scheduler(of_router=True)
        if self.router.uses_state:
            return
        probabilities = self.router.probabilities()
        entropy = torch.special.entr(probabilities).sum(-1).mean(0)
        chosen = probabilities.argmax(-1)
        for depth in range(chosen.shape[1]):
            self.log(f"router/entropy/depth_{depth + 1}", entropy[depth])
            self.log(f"router/blocks_in_use/depth_{depth + 1}", float(chosen[:, depth].unique().numel()))
