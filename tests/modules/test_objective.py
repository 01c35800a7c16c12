"""Loss, prediction and reward of each kind are those of a network with that task's outputs alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Trainer
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss
from torch.utils.data import DataLoader

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataset
from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.modules.masking import label_mask, mask_logits
from routing_lightning.modules.objective import Objective
from routing_lightning.networks import TaskSpecific
from routing_lightning.targets import Targets, in_words
from tests.conftest import ToyDataModule, toy_features, toy_model

KINDS, SIZES = ["classes", "labels", "value"], [4, 3, 1]
TARGETS = Targets(KINDS, SIZES, [0.0, 0.0, 50.0], [1.0, 1.0, 10.0])
NAMES = [["a", "b", "c", "d"], ["x", "y", "z"], ["value"]]


def rows_of(tasks, generator):
    """Labels (N, 4) of any samples."""
    rows = torch.zeros(len(tasks), 4)
    for row, task in zip(rows, tasks.tolist(), strict=True):
        if task == 0:
            row[0] = torch.randint(4, (), generator=generator)
        elif task == 1:
            row[:3] = torch.randint(2, (3,), generator=generator)
        else:
            row[0] = 50 + 10 * torch.randn((), generator=generator)
    return rows


class SeveralKinds(ToyDataModule):
    """Pictures whose first task is of 4 classes, second of 3 labels, third of a value near 50."""

    def __init__(self, kinds=KINDS) -> None:
        super().__init__(num_classes=4)
        self.kinds = kinds

    def load_data(self) -> MultiTaskData:
        names, _, old, _, _, _ = super().load_data()
        part = MultiTaskDataset(old.images, old.index, old.tasks, rows_of(old.tasks, torch.Generator().manual_seed(1)))
        return MultiTaskData(names, NAMES, part, None, part, self.kinds)


def trainer(tmp_path, **options) -> Trainer:
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return Trainer(default_root_dir=tmp_path, **{"max_epochs": 2, **quiet, **options})


@given(st.integers(0, 2), st.integers(0, 2**31), st.booleans())
def test_losses_gradients_and_predictions_are_those_of_the_tasks_own_outputs(wider, seed, masked):
    generator = torch.Generator().manual_seed(seed)
    tasks = torch.randint(3, (12,), generator=generator)
    labels = rows_of(tasks, generator)
    logits = (3 * torch.randn(12, 4 + wider, generator=generator)).requires_grad_()
    objective = Objective(TARGETS, 4)
    given_logits = mask_logits(logits, tasks, label_mask(SIZES, 4)) if masked else logits
    losses = objective.losses(given_logits, tasks, labels)
    predictions, hits = (
        f(given_logits, tasks, *rest) for f, rest in ((objective.predictions, ()), (objective.hits, (labels,)))
    )
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    for row, task in enumerate(tasks.tolist()):
        size = SIZES[task]
        own = logits[row, :size].detach().requires_grad_()
        if task == 0:
            loss, best = cross_entropy(own, labels[row, 0].long()), own.argmax()
            assert predictions[row].tolist() == [best, 0, 0, 0]
            assert hits[row] == (best == labels[row, 0])
        elif task == 1:
            loss = binary_cross_entropy_with_logits(own, labels[row, :3])
            assert predictions[row].tolist() == [*(own.sigmoid() > 0.5).float().tolist(), 0]
        else:
            loss = smooth_l1_loss(own[0], (labels[row, 0] - 50) / 10)
            torch.testing.assert_close(predictions[row], torch.tensor([50 + 10 * own[0].item(), 0, 0, 0]))
        assert task == 0 or not hits[row]
        loss.backward()
        torch.testing.assert_close(losses[row], loss)
        torch.testing.assert_close(gradient[row, :size], own.grad)
        assert (gradient[row, size:] == 0).all()


def test_an_infinite_output_of_one_kind_spoils_no_other():
    objective, tasks = Objective(TARGETS, 4), torch.tensor([0, 1, 2])
    logits = torch.zeros(3, 4, requires_grad=True)
    labels = torch.tensor([[3.0, 0, 0, 0], [1, 0, 1, 0], [3e38, 0, 0, 0]])
    losses = objective.losses(logits, tasks, labels)
    losses[:2].sum().backward()
    assert losses[:2].isfinite().all() and logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("task", "row", "sentence"),
    [
        (0, [4.0, 0, 0, 0], r"of task 0, of kind classes; allowed is a number 0\.\.3 first"),
        (0, [0.5, 0, 0, 0], "of kind classes"),
        (1, [0.5, 0, 0, 0], "of kind labels; allowed is 0 and 1"),
        (2, [float("nan"), 0, 0, 0], "of kind value; allowed is a finite number first"),
    ],
)
def test_labels_of_bare_loaders_are_checked(task, row, sentence):
    model = toy_model(num_classes=4)
    model.take_targets(TARGETS)
    batch = torch.zeros(1, 1, 8, 8), torch.tensor([task]), torch.tensor([row])
    with pytest.raises(UsageError, match=sentence):
        model.on_before_batch_transfer(batch, 0)
    with pytest.raises(UsageError, match=r"as many tasks \(N,\) and labels \(N, up to 4\) as images"):
        model.on_before_batch_transfer((*batch[:2], torch.tensor([0])), 0)


@pytest.mark.parametrize("final_reward", ["correct", "negative_loss"])
def test_rewards_are_hits_of_classes_and_minus_the_loss_of_all_else(final_reward, tmp_path):
    model = toy_model(num_classes=4, final_reward=final_reward)
    seen = []
    learn, losses = model.router.learn, model.losses
    model.router.learn = lambda trace: seen[-1].append(trace) or learn(trace)
    model.losses = lambda *given, **options: seen.append([losses(*given, **options)]) or seen[-1][0]
    trainer(tmp_path, limit_val_batches=0).fit(model, SeveralKinds())
    assert seen
    for loss, trace in seen:
        reward, by_loss = trace.final_reward, -loss.detach()
        classes = trace.tasks == 0
        torch.testing.assert_close(reward[~classes], by_loss[~classes])
        if final_reward == "correct":
            assert set(reward[classes].tolist()) <= {1.0, -1.0}
        else:
            torch.testing.assert_close(reward[classes], by_loss[classes])


def models():
    return [toy_model(num_classes=4), MultiTaskClassifier(3, 4, (1, 8, 8), TaskSpecific, features=toy_features)]


@pytest.mark.parametrize("model", models(), ids=["routed", "task_specific"])
def test_it_learns_and_the_checkpoint_knows_the_kinds(model, tmp_path):
    data = SeveralKinds()
    first = trainer(tmp_path, max_epochs=1)
    first.fit(model, data)
    before = first.callback_metrics["train/loss"]
    fit = trainer(tmp_path, max_epochs=10)
    fit.fit(model, data)
    metrics = fit.callback_metrics
    assert metrics["train/loss"] < before
    assert {name for name in metrics if name.startswith("val/")} == {
        "val/loss", "val/acc", "val/acc_micro", "val/f1", "val/r2",
        "val/acc_task/task_0", "val/f1_task/task_1", "val/mae_task/task_2", "val/r2_task/task_2",
    }  # fmt: skip
    assert metrics["val/acc"] == metrics["val/acc_task/task_0"] == metrics["val/acc_micro"]
    batches = fit.predict(model, data)
    labels, predictions = (torch.cat([batch[key] for batch in batches]) for key in ("label", "prediction"))
    tasks = torch.cat([batch["task"] for batch in batches])
    error = (labels - predictions)[tasks == 2, 0].abs().mean()
    torch.testing.assert_close(error, metrics["val/mae_task/task_2"])  # in the user's units
    assert error < 20
    fit.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["targets"]["kinds"] == KINDS
    fresh = models()[0 if model.automatic_optimization is False else 1]
    fresh.load_state_dict(saved["state_dict"])
    fresh.on_load_checkpoint(saved)
    # without a datamodule: a bare loader of the same rows
    loader = DataLoader(list(zip(*data.test_dataset[:], strict=True)), batch_size=32)
    (found,) = trainer(tmp_path).test(fresh, loader, verbose=False)
    for name in ("loss", "acc"):
        assert found[f"test/{name}"] == pytest.approx(float(metrics[f"val/{name}"]), abs=1e-5)


def test_a_run_that_goes_on_has_the_scores_of_the_unbroken_one(tmp_path):
    whole = trainer(tmp_path / "whole", max_epochs=2)
    whole.fit(toy_model(num_classes=4), SeveralKinds())
    part = trainer(tmp_path / "part", max_epochs=1, max_steps=4)  # within the epoch
    part.fit(toy_model(num_classes=4), SeveralKinds())
    part.save_checkpoint(tmp_path / "part.ckpt")
    again = trainer(tmp_path / "part", max_epochs=2)
    again.fit(toy_model(num_classes=4), SeveralKinds(), ckpt_path=tmp_path / "part.ckpt")
    assert whole.callback_metrics == again.callback_metrics


def test_data_whose_kinds_do_not_fit_are_refused():
    for kinds, sentence in (
        (None, r"gave labels of shape \(96, 4\) in the training part, but tasks of classes alone need \(N,\)"),
        (KINDS[:2], "gave the kinds classes, labels of 3 tasks"),
        (["classes", "labels", "number"], "must give classes, labels, value for each"),
    ):
        with pytest.raises(UsageError, match=sentence):
            SeveralKinds(kinds).setup()


def test_rows_in_words():
    assert in_words("classes", [2.0, 0, 0, 0], NAMES[0]) == "c"
    assert in_words("labels", [1.0, 0, 1, 0], NAMES[1]) == "x|z"
    assert in_words("labels", [0.0, 0, 0, 0], NAMES[1]) == ""
    assert in_words("value", [0.1, 0, 0, 0], ["value"]) == "0.1"
    assert in_words("classes", [7.0], None) == "7"
