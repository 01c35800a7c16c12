"""What a test finds of each task: counted as torchmetrics counts, whole over several processes' rows, and drawn."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_confusion_matrix, multiclass_f1_score

from routing_lightning.callbacks import TaskResults
from routing_lightning.plots import confusion_matrix, draw_tested, folded, label_scores, value_scatter
from routing_lightning.record import TEST_FILE, load_test, save_test, sum_up
from tests.callbacks.conftest import events


def random_task(classes: int = 5, samples: int = 60):
    generator = torch.Generator().manual_seed(0)
    labels, predictions = torch.randint(classes, (2, samples, 1), generator=generator)
    names = [f"class {number}" for number in range(classes + 1)]  # the last one is neither there nor predicted
    return (
        sum_up("a task", "classes", names, labels.double().numpy(), predictions.double().numpy()),
        labels,
        predictions,
    )


def test_confusion_and_f1_are_those_of_torchmetrics(tmp_path):
    task, labels, predictions = random_task()
    pair = predictions[:, 0], labels[:, 0]
    np.testing.assert_array_equal(task.matrix(), multiclass_confusion_matrix(*pair, num_classes=6))
    wanted = multiclass_f1_score(*pair, num_classes=6, average="none").numpy()
    np.testing.assert_allclose(task.f1()[:5], wanted[:5], rtol=1e-6)
    assert np.isnan(task.f1()[5])
    assert task.f1_macro() == pytest.approx(float(multiclass_f1_score(*pair, num_classes=6, average="macro")), rel=1e-6)
    other = sum_up("val", "value", ["value"], np.array([[1.0], [2]]), np.array([[1.5], [2]]))
    path = save_test([task, other], tmp_path)
    assert path.name == TEST_FILE and load_test(tmp_path) == [task, other]
    assert other.mae == 0.25 and other.pairs == [[1.0, 1.5], [2.0, 2.0]]
    assert load_test(tmp_path / "nowhere") == []


def test_many_values_are_thinned_but_measured_whole():
    values = np.arange(10_000.0)[:, None]
    task = sum_up("val", "value", ["value"], values, values + np.where(values % 2, 1, 3))
    assert len(task.pairs) == 2000 and task.mae == 2 and task.samples == 10_000
    assert (task.pairs[0][0], task.pairs[-1][0]) == (0, 9999)


def test_the_confusion_matrix_names_its_classes_and_shows_shares():
    task, *_ = random_task()
    figure = draw_tested(task)
    axes = figure.axes[0]
    counts = task.matrix()
    shown = axes.images[0].get_array().filled(np.nan)
    np.testing.assert_allclose(shown[:5], counts[:5] / counts[:5].sum(1, keepdims=True))
    assert np.isnan(shown[5]).all()
    for axis in (axes.xaxis, axes.yaxis):
        assert [text.get_text() for text in axis.get_ticklabels()] == task.classes
    assert sorted(int(text.get_text()) for text in axes.texts) == sorted(counts[counts > 0])
    assert axes.get_title("left") == "a task, 60 test samples"


def test_many_classes_are_folded_into_those_with_most_mistakes():
    counts = np.diag(np.full(60, 100))
    counts[7, 40] = 9
    counts[3, 50] = 2
    small, names = folded(counts, [str(number) for number in range(60)], 5)
    assert {"3", "7", "40", "50"} == set(names[:4]) and names[4] == "56 others"
    assert small.sum() == counts.sum() and small[4, 4] == 56 * 100
    assert small[names.index("7"), names.index("40")] == 9
    assert len(confusion_matrix(counts, names=[str(n) for n in range(60)]).axes[0].get_yticks()) <= 25
    same, names = folded(counts, list("a" * 60), 60)
    assert same is counts


def test_labels_as_bars_and_values_as_dots():
    labels = np.array([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 1]])
    task = sum_up(
        "tags", "labels", ["x", "unused", "z"], labels, np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1]])
    )
    assert task.outcomes == [[1, 2, 2], [0, 0, 0], [2, 2, 3]]
    np.testing.assert_allclose(task.f1(), [0.5, np.nan, 0.8])
    assert task.f1_macro() == pytest.approx(0.65)
    bars = draw_tested(task).axes[0].patches
    assert [round(bar.get_width(), 3) for bar in bars] == [0.5, 0, 0.8]
    many = label_scores(np.linspace(0, 1, 50), [str(number) for number in range(50)], "tags")
    assert len(many.axes[0].patches) == 40 and "the worst 40 of 50" in many.axes[0].get_title("left")
    dots = value_scatter(np.array([1.0, 2]), np.array([3.0, 4])).axes[0].collections[0].get_offsets()
    np.testing.assert_array_equal(dots, [[1, 3], [2, 4]])


def test_a_test_of_classes_leaves_its_file_and_pictures(fit):
    trainer = fit([TaskResults(most_pictures=2)], max_epochs=1)
    assert not (Path(trainer.log_dir) / TEST_FILE).exists()
    trainer.test(trainer.lightning_module, trainer.datamodule, verbose=False)
    tasks = json.loads((Path(trainer.log_dir) / TEST_FILE).read_text())["tasks"]
    assert [task["name"] for task in tasks] == ["task_0", "task_1", "task_2"]
    found = load_test(Path(trainer.log_dir))
    metrics = trainer.callback_metrics
    for task in found:
        accuracy = task.matrix().trace() / task.samples
        assert accuracy == pytest.approx(float(metrics[f"test/acc_task/{task.name}"]))
        assert task.f1_macro() == pytest.approx(float(metrics[f"test/f1_macro_task/{task.name}"]))
    assert float(metrics["test/f1_macro"]) == pytest.approx(np.mean([task.f1_macro() for task in found]))
    assert [tag for tag in events(trainer.log_dir).Tags()["images"] if tag.startswith("test/")] == [
        "test/task_0",
        "test/task_1",
    ]
