import io

import numpy as np
import pytest
from PIL import Image

from routing_lightning.callbacks import TaskAccuracy
from routing_lightning.errors import UsageError
from tests.callbacks.conftest import events


def test_accuracies_of_all_tasks_are_drawn_over_the_epochs(fit):
    callback = TaskAccuracy()
    trainer = fit([callback], max_epochs=3)
    logged = events(trainer.log_dir)
    pictures = logged.Images("accuracy_of_tasks")
    assert [picture.step for picture in pictures] == [12, 18]
    assert Image.open(io.BytesIO(pictures[-1].encoded_image_string)).width > 300
    for task in range(3):
        values = [value.value for value in logged.Scalars(f"val/acc_task/task_{task}")]
        assert list(callback.history[f"val/acc_task/task_{task}"]) == [1, 2, 3]
        np.testing.assert_allclose(list(callback.history[f"val/acc_task/task_{task}"].values()), values)


def test_a_resumed_run_goes_on_with_its_history(fit):
    first = fit([TaskAccuracy()], max_epochs=2)
    again = TaskAccuracy()
    fit([again], max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    whole = TaskAccuracy()
    fit([whole], max_epochs=3)
    assert again.history == whole.history


def test_a_new_training_with_the_same_callback_begins_a_new_history(fit):
    callback = TaskAccuracy()
    fit([callback], max_epochs=3)
    fit([callback], max_epochs=1)
    assert {tuple(values) for values in callback.history.values()} == {(1,)}


def test_impossible_options_are_refused():
    with pytest.raises(UsageError, match="every_n_epochs of TaskAccuracy is 0"):
        TaskAccuracy(every_n_epochs=0)
