"""MultiTaskClassifier: the baselines, trained by gradients alone."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.modules.classifier import Batch, TaskClassifier
from routing_lightning.modules.gradients import check_aggregator, combine_gradients
from routing_lightning.modules.joint import JointLoss, watched
from routing_lightning.modules.making import made
from routing_lightning.modules.optimizing import sgd
from routing_lightning.modules.pixels import PixelNormalisation
from routing_lightning.modules.strategy import prepare_strategy
from routing_lightning.networks.convnet import SimpleConvNet, check_image_shape
from routing_lightning.networks.paper import FeaturesMaker, feature_size
from routing_lightning.nn.blocks import ModuleBlocks
from routing_lightning.nn.tasks import checked_tasks


class MultiTaskClassifier(TaskClassifier):
    """A multi-task network on top of features, trained by the gradient of the loss (paper, section 4: the baselines).

    The network gets the features and the tasks and gives the logits (N, C), or a pair of the logits and an auxiliary
    loss, a scalar that is added to the mean cross-entropy in training. Only the cross-entropy counts for ``train/loss``
    and ``train/loss_step``; the other is logged as ``train/auxiliary_loss``.

    With a network whose layers are all per task and ``shared_features=False`` it is one separate network per task.

    Args:
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, the largest number of outputs of a task (classes, labels, or 1 for a value), at least 1.
        image_shape: channels, height and width of the images.
        network: makes the network from the size of the feature vector, T and C, for instance the class
            :class:`~routing_lightning.networks.TaskSpecific`.
        features: makes the features from ``image_shape``: a module that maps images to vectors of ``out_features``.
        shared_features: whether all tasks share the features; otherwise each has its own, with the same first weights.
            They then normalise over the batch's samples of their task: enlarge the batch so that there are some.
        optimizer: makes the optimizer; SGD with lr 1e-2 (paper, section 4) by default.
        lr_scheduler: makes the learning rate scheduler; none by default. A length that is null or -1 is that of the
            run; see :class:`~routing_lightning.modules.optimizing.OptimizingModule`.
        lr_interval: step the scheduler each ``"epoch"`` or each optimizer ``"step"``.
        aggregator: combines the gradients of the tasks: such as ``torchjd.aggregation.PCGrad`` (needs the extra
            ``jd``); see :func:`~routing_lightning.modules.gradients.combine_gradients`. None: they are added up.
        joint_loss: share in [0, 1) of a loss over the classes of all tasks in the loss; see :class:`TaskClassifier`.
        label_smoothing: share of the target that is spread over the classes in training, in [0, 1); likewise.
        flip_test: evaluate by an image and its mirror image; likewise.

    Raises:
        UsageError: if a value is out of its range, sizes do not fit, or torchjd is asked for but not installed.
    """

    def __init__(
        self,
        num_tasks: int,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: Callable[[int, int, int], nn.Module],
        features: FeaturesMaker = SimpleConvNet,
        shared_features: bool = True,
        optimizer: OptimizerCallable = sgd,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_interval: str = "epoch",
        aggregator: nn.Module | None = None,
        joint_loss: float = 0.0,
        label_smoothing: float = 0.0,
        flip_test: bool = False,
    ) -> None:
        super().__init__(
            num_tasks, num_classes, optimizer, lr_scheduler, lr_interval, joint_loss, label_smoothing, flip_test
        )
        self.save_plain_hyperparameters(inspect.currentframe())
        check_image_shape(image_shape)
        self.shared_features = shared_features
        self.normalise = PixelNormalisation(image_shape[0])
        front = features(image_shape)
        sizes = {"in_features": feature_size(front), "num_tasks": num_tasks, "num_classes": num_classes}
        self.network = made(network, sizes, "a class that takes these three and no router, such as TaskSpecific")
        if shared_features:
            self.features = front
        else:
            self.features = ModuleBlocks([front, *(copy.deepcopy(front) for _ in range(num_tasks - 1))])
        if joint_loss:
            if not shared_features:
                raise UsageError(
                    f"joint_loss is {joint_loss} but shared_features is false, so that no features are of all tasks; "
                    "set joint_loss to 0 or shared_features to true."
                )
            self.joint = JointLoss(joint_loss, "", feature_size(front), num_tasks, num_classes)
        self.aggregator = aggregator
        self.parts: Tensor | None = None

    def setup(self, stage: str) -> None:
        """Checks the model against the data and the Trainer, and prepares the strategy."""
        super().setup(stage)
        prepare_strategy(self.trainer, self)
        if stage == "fit":
            check_aggregator(self.aggregator, self.trainer)

    def run(self, images: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits (N, num_classes), and auxiliary loss, a scalar or None.

        Args:
            images: (N, C, H, W), uint8 or normalised.
            tasks: (N,), of any type of whole numbers.
        """
        tasks = checked_tasks(tasks, self.num_tasks)
        images = self.normalise(images).to(self.dtype)
        output = self.network(self.features(images) if self.shared_features else self.features(images, tasks), tasks)
        logits, auxiliary = output if isinstance(output, tuple) else (output, None)
        return self.masked(logits, tasks), auxiliary

    def forward(self, images: Tensor, tasks: Tensor) -> Tensor:
        """Logits: images (N, C, H, W), tasks (N,) -> (N, num_classes)."""
        return self.run(images, tasks)[0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        images, tasks, labels = batch
        with watched(self.joint, self.network) as features:
            logits, auxiliary = self.run(images, tasks)
        losses = self.losses(logits, tasks, labels, apart=True)
        mean = losses.detach().mean()
        self.count("train", mean, self.hits(logits, tasks, labels), tasks, logits, labels)
        self.log("train/loss_step", mean, prog_bar=True)
        losses = self.trained_losses(losses, logits, features, tasks, labels)
        if auxiliary is not None:
            self.log("train/auxiliary_loss", auxiliary.detach())
            losses = losses + auxiliary
        if self.detector is not None:
            self.detector.see_loss(self, batch_idx, losses, tasks)
        if self.aggregator is not None:
            self.parts, self.part_tasks = losses / len(losses), tasks
        return losses.mean()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Backward pass of the loss; with an aggregator, one per task."""
        if self.aggregator is None:
            super().backward(loss, *args, **kwargs)
            return
        assert self.parts is not None
        parts, self.parts = self.parts / self.trainer.accumulate_grad_batches, None
        combine_gradients(parts, self.part_tasks, self.trained_parameters(), self.aggregator)
