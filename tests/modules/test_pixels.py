"""Images reach the model in one way, with or without the datamodule."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging

from routing_lightning.errors import UsageError
from routing_lightning.modules import RoutedClassifier
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


def test_averaging_the_weights_keeps_whole_numbers():
    model = toy_model(num_blocks=11)
    fit(model, EMAWeightAveraging(decay=0.9999))
    assert model.router.policy.num_actions.tolist() == [11, 11, 11]
