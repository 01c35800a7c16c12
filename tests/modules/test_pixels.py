"""Images reach the model in one way, with or without the datamodule."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging

from routing_lightning.errors import UsageError
from routing_lightning.modules import RoutedClassifier
from routing_lightning.modules.pixels import PixelNormalisation
from routing_lightning.routers import WPL, RewardRouter, TabularPolicy
from tests.conftest import ToyDataModule, toy_model
from tests.modules.test_resume import MODELS, fit


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_bare_loaders_give_what_the_datamodule_gives(model):
    trained = fit(MODELS[model]())[0].lightning_module
    data = ToyDataModule(count=72)
    data.setup()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    (expected,) = Trainer(**quiet).test(trained, data, verbose=False)
    (found,) = Trainer(**quiet).test(trained, dataloaders=data.test_dataloader(), verbose=False)
    named = {f"test/acc_task/{task}": expected[f"test/acc_task/task_{task}"] for task in range(3)}
    assert found == {name: value for name, value in expected.items() if "task" not in name} | named


def test_a_loaded_model_normalises_and_one_that_saw_no_data_refuses(tmp_path):
    trainer, _ = fit(toy_model())
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    data = ToyDataModule(count=72)
    data.setup()
    images, tasks, _ = data.train_dataset[:9]
    parts = {"network": toy_model().network.body, "router": RewardRouter(TabularPolicy(), WPL())}
    loaded = RoutedClassifier.load_from_checkpoint(tmp_path / "model.ckpt", **parts).eval()
    floats = (images / 255 - 0.5) / 0.25
    torch.testing.assert_close(loaded(images, tasks), loaded(floats, tasks))
    with pytest.raises(UsageError, match="uint8 but the model has seen no data"):
        toy_model().eval()(images, tasks)


def test_pixels_become_numbers_of_the_data():
    normalise = PixelNormalisation(3)
    normalise.learn((0.5, 0.3, 0.1), (0.5, 0.5, 0.5))
    images = torch.full((2, 3, 4, 5), 51, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    result = normalise(images)
    assert result.dtype == torch.float32 and result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result[0, :, 0, 0], torch.tensor([-0.6, -0.2, 0.2]))
    assert normalise(result) is result


def test_the_datamodule_leaves_it_to_the_model(toy_data):
    """A second place would win over what travels with the model."""
    toy_data.setup()
    (batch, *_) = toy_data.train_dataloader()
    assert toy_data.on_after_batch_transfer(batch, 0)[0].dtype == torch.uint8
    trained = fit(toy_model())[0].lightning_module
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    (expected,) = Trainer(**quiet).validate(trained, ToyDataModule(), verbose=False)
    other = ToyDataModule()
    other.mean, other.std = (0.1,), (0.9,)
    assert Trainer(**quiet).validate(trained, other, verbose=False) == [expected]


def test_averaging_the_weights_keeps_whole_numbers():
    model = toy_model(num_blocks=11)
    fit(model, EMAWeightAveraging(decay=0.9999))
    assert model.router.policy.num_actions.tolist() == [11, 11, 11]
