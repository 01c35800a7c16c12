"""The loss over the classes of all tasks, label smoothing and evaluation by mirror images, in every kind of method."""

import copy
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier, RoutedClassifier
from routing_lightning.modules.joint import FeatureFinder, JointLoss
from routing_lightning.modules.masking import label_mask
from routing_lightning.modules.smoothing import smoothed_cross_entropy
from routing_lightning.networks import CrossStitch, RoutedBackbone, RoutedLayer, RoutingAllFC, RoutingAllLayers
from routing_lightning.nn import LinearBlocks
from routing_lightning.routers import WPL, FixedRoutes, RewardRouter, TabularPolicy
from routing_lightning.targets import Targets
from tests.conftest import toy_features, toy_model
from tests.modules.test_objective import SeveralKinds, trainer
from tests.modules.test_resume import MODELS, check, fit

BOTH = {"joint_loss": 0.5, "label_smoothing": 0.1}


def batch(count: int = 12):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 3, torch.arange(count) // 3 % 2


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_over_all_classes_that_exist():
    joint = JointLoss(0.5, "", 4, num_tasks=3, num_classes=2)
    features, (_, tasks, labels) = torch.randn(12, 4), batch()
    logits = features @ joint.head.weight.T + joint.head.bias
    assert torch.allclose(joint(features, tasks, labels), cross_entropy(logits, 2 * tasks + labels, reduction="none"))
    # of three tasks the second has one class: five classes are left, numbered by the tasks before
    tasks, labels = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 0, 0, 1])
    logits = logits[:5, [0, 1, 2, 4, 5]]
    mask = label_mask([2, 1, 2], 2)
    for smoothing in (0.0, 0.1):
        expected = cross_entropy(logits, torch.arange(5), reduction="none", label_smoothing=smoothing)
        assert torch.allclose(joint(features[:5], tasks, labels, mask, smoothing), expected)
        assert torch.allclose(joint(features[:5], tasks, labels[:, None].float(), mask, smoothing), expected)


def test_smoothing_is_torchs_over_the_classes_that_exist():
    logits = torch.randn(6, 4, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    whole = torch.cat([logits, torch.full((6, 3), -torch.inf)], 1)
    ours = smoothed_cross_entropy(whole, labels, 0.2)
    theirs = cross_entropy(logits, labels, reduction="none", label_smoothing=0.2)
    assert torch.allclose(ours, theirs)
    (first,), (second,) = (torch.autograd.grad(loss.sum(), logits, retain_graph=True) for loss in (ours, theirs))
    assert torch.allclose(first, second, atol=1e-6)


# -- the features ------------------------------------------------------------------------------------------------------


class Pixels(nn.Sequential):
    """Fully connected layers on the pixels themselves."""

    def __init__(self, image_shape, num_tasks, num_classes, depth=2):
        hidden = [nn.Linear(64, 8), nn.ReLU()] if depth > 1 else []
        super().__init__(nn.Flatten(), *hidden, RoutedLayer(LinearBlocks(3, 8 if hidden else 64, num_classes)))


@pytest.mark.parametrize(
    ("body", "shape", "place", "size"),
    [
        (partial(RoutingAllFC, features=toy_features), (1, 8, 8), "1", 16),
        (partial(RoutingAllFC, features=toy_features, recurrent_steps=2), (1, 8, 8), "1", 16),
        (partial(RoutingAllLayers, filters=4), (1, 8, 8), "5", 4),
        (partial(RoutedBackbone, name="resnet18", layers={"layer4": 2, "fc": 2}), (3, 32, 32), "body.fc", 512),
        (partial(RoutedBackbone, name="resnet18", layers={"layer4": 2}), (3, 32, 32), "body.fc", 512),
        (Pixels, (1, 8, 8), "3", 8),
    ],
)
def test_the_features_are_what_goes_into_the_first_fully_connected_layer(body, shape, place, size):
    router = RewardRouter(TabularPolicy(), WPL(0.05))
    model = RoutedClassifier(3, 2, shape, router, body, joint_loss=0.5)
    assert (model.joint.place, model.joint.head.in_features) == (place, size)
    assert not any(part._forward_pre_hooks for part in model.network.body.modules())


def test_networks_without_features_are_refused():
    with pytest.raises(UsageError, match="Pixels has no vector of features"):
        toy_model(network=partial(Pixels, depth=1), joint_loss=0.5)
    with pytest.raises(UsageError, match="shared_features is false"):
        MODELS["baseline"](joint_loss=0.5, shared_features=False)
    with FeatureFinder(nn.Identity()) as finder, pytest.raises(UsageError, match="Identity"):
        finder.loss(0.5, 1, 1)


@pytest.mark.parametrize("name", ["joint_loss", "label_smoothing"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_wrong_values_are_told(name, value, model):
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        MODELS[model](**{name: value})


def test_tasks_of_other_kinds_have_no_joint_loss_but_smoothed_classes(tmp_path):
    with pytest.raises(UsageError, match=r"joint_loss is 0.5 but the data have tasks of (labels|value)"):
        trainer(tmp_path).fit(toy_model(num_classes=4, joint_loss=0.5), SeveralKinds())
    with pytest.raises(UsageError, match=r"label_smoothing is 0.5 but no task of the data is of classes"):
        trainer(tmp_path).fit(
            toy_model(num_classes=4, label_smoothing=0.5), SeveralKinds(["labels", "labels", "value"])
        )
    losses = []
    for smoothing in (0.0, 0.5):
        model = toy_model(num_classes=4, label_smoothing=smoothing)
        model.take_targets(Targets(["classes", "labels", "value"], [2, 2, 1], [0.0] * 3, [1.0] * 3))
        logits, tasks = torch.tensor([[2.0, 0.0, 0.0, 0.0]] * 3), torch.arange(3)
        labels = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        losses.append(model.trained_losses(model.losses(logits, tasks, labels, True), logits, [], tasks, labels))
    expected = cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), label_smoothing=0.5)
    assert torch.allclose(losses[1][0], expected) and torch.equal(losses[1][1:], losses[0][1:])


# -- a step ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"joint_loss": 0.25}, {"label_smoothing": 0.2}, BOTH], ids=str)
@pytest.mark.parametrize("model", ["routed", "baseline", "cross_stitch"])
def test_a_step_goes_down_the_weighted_sum(model, options, monkeypatch):
    """The gradient of the features is that of (1 - w) own + w joint, by hand; loss and reward are the own loss."""
    if model == "cross_stitch":
        network = partial(CrossStitch, hidden=8)
        made = MultiTaskClassifier(3, 2, (1, 8, 8), network, toy_features, **options)
    elif model == "routed":
        made = toy_model(router=FixedRoutes("own"), final_reward="negative_loss", **options)
    else:
        made = MODELS["baseline"](**options)
    rewards = []
    if model == "routed":
        monkeypatch.setattr(made.router, "learn", lambda trace: rewards.append(trace.final_reward))
    made.lr = 1.0
    before = copy.deepcopy(made)
    run, curves = fit(made, max_epochs=1, limit_train_batches=1, limit_val_batches=0)
    images, tasks, labels = next(iter(run.train_dataloader))
    before.normalise.load_state_dict(made.normalise.state_dict())
    before.train()
    weight, smoothing = options.get("joint_loss", 0.0), options.get("label_smoothing", 0.0)
    front = before.network.body[0] if model == "routed" else before.features
    images = run.datamodule.on_after_batch_transfer((images, tasks, labels), 0)[0]
    features = front(before.normalise(images))
    if model == "routed":
        hidden = features
        for layer in before.network.layers:
            hidden = layer.blocks(hidden, tasks)
        logits = hidden
    else:
        logits = before.network(features, tasks)
    own = cross_entropy(logits, labels)
    loss = (1 - weight) * cross_entropy(logits, labels, label_smoothing=smoothing)
    if weight:
        joint = cross_entropy(before.joint.head(features), 2 * tasks + labels, label_smoothing=smoothing)
        assert curves.rows[0][1]["train/joint_loss"] == pytest.approx(float(joint), rel=1e-5)
        loss = loss + weight * joint
    parameters = [*front.parameters(), *(before.joint.parameters() if weight else ())]
    gradients = torch.autograd.grad(loss, parameters)
    after = made.network.body[0] if model == "routed" else made.features
    moved = [*after.parameters(), *(made.joint.parameters() if weight else ())]
    rate = run.optimizers[0].param_groups[0]["lr"]
    for old, gradient, new in zip(parameters, gradients, moved, strict=True):
        assert torch.allclose(old - rate * gradient, new, atol=1e-5)
        assert gradient.abs().sum() > 0
    assert float(run.callback_metrics["train/loss"]) == pytest.approx(float(own), rel=1e-5)
    if rewards:
        assert torch.allclose(-rewards[0], cross_entropy(logits, labels, reduction="none"), atol=1e-5)


@pytest.mark.parametrize("model", ["routed", "by_network", "baseline"])
def test_it_goes_with_aggregators_accumulation_and_lower_precision(model):
    aggregation = pytest.importorskip("torchjd.aggregation", reason="the extra jd is not installed")
    made = MODELS[model](aggregator=aggregation.PCGrad(), **BOTH)
    before = made.joint.head.weight.clone()
    precision = {"precision": "bf16-mixed", "max_epochs": 1}
    _, curves = fit(made, **precision, **({"accumulate_grad_batches": 2} if model == "baseline" else {}))
    assert not torch.equal(before, made.joint.head.weight)
    assert made.joint.head.weight.isfinite().all()
    assert [row["train/joint_loss"] for _, row in curves.rows if "train/joint_loss" in row]


def test_the_network_begins_as_without():
    plain, joint = toy_model(), toy_model(**BOTH)
    state = joint.state_dict()
    assert set(state) - set(plain.state_dict()) == {"joint.head.weight", "joint.head.bias"}
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_resumed_run_goes_on_to_the_bit(model, tmp_path):
    made = partial(MODELS[model], **BOTH)
    whole, _ = fit(made(), ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1))
    for path in sorted(tmp_path.glob("*.ckpt")):
        check(whole, fit(made(), ckpt_path=path)[0], str(path), finished=True)


def test_the_layer_is_of_the_training_alone():
    model = toy_model(**BOTH)
    fit(model, max_epochs=1)
    images, _, _ = batch(4)
    tasks = torch.full((4,), 2)
    model.eval()
    before = model(images, tasks)
    nn.init.constant_(model.joint.head.weight, torch.nan)
    assert torch.equal(model(images, tasks), before)
    one = model.network.specialise(2)
    assert torch.allclose(one(model.normalise(images)), before, atol=1e-6)
    assert not [name for name, _ in one.named_parameters() if "head" in name or "joint" in name]


# -- mirror images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_evaluation_by_mirror_images_is_the_mean_of_the_logits(model):
    plain, both = MODELS[model](), MODELS[model](flip_test=True)
    both.load_state_dict(plain.state_dict())
    _, tasks, labels = batch()
    images = torch.randn(12, 1, 8, 8)
    plain.eval(), both.eval()
    expected = (plain(images, tasks) + plain(images.flip(3), tasks)) / 2
    found = both.predict_step((images, tasks, labels), 0)
    assert torch.allclose(found["probability"], expected.softmax(1).amax(1))
    assert torch.equal(both.evaluate((images, tasks, labels), "test")["prediction"], expected.argmax(1))
    loss = both.metric("test").compute()[0]
    assert float(loss) == pytest.approx(float(cross_entropy(expected, labels)), rel=1e-5)
    assert not torch.allclose(expected, plain(images, tasks))
    assert torch.equal(both(images, tasks), plain(images, tasks))  # training knows nothing of it
