"""Images reach the model in one way, with or without the datamodule."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader, TensorDataset

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


def with_loader(model, images, tasks, labels):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    loader = DataLoader(TensorDataset(images, tasks, labels), batch_size=7)
    return Trainer(**quiet).test(model, dataloaders=loader, verbose=False)


@pytest.fixture(scope="module")
def trained():
    data = ToyDataModule(count=72)
    data.setup()
    return {name: fit(make(), max_epochs=1)[0].lightning_module.eval() for name, make in MODELS.items()}, data


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_whole_numbers_of_any_type_serve_as_tasks_and_labels_and_no_others(model, trained):
    made, (images, tasks, labels) = trained[0][model], trained[1].test_dataset[:]
    expected, logits = with_loader(made, images, tasks, labels), made(images, tasks)
    for kind in (torch.int8, torch.uint8, torch.int16, torch.int32):
        assert with_loader(made, images, tasks.to(kind), labels.to(kind)) == expected
        assert torch.equal(made(images, tasks.to(kind)), logits)
    for kind in (torch.bool, torch.float16, torch.float64):
        name = str(kind).removeprefix("torch.")
        with pytest.raises(UsageError, match=f"a batch has tasks of type {name}"):
            with_loader(made, images, tasks.to(kind), labels)
        with pytest.raises(UsageError, match=f"a batch has labels of type {name}"):
            with_loader(made, images, tasks, labels.to(kind))
        with pytest.raises(UsageError, match=r"tasks are \(72,\) of .*give a tensor"):
            made(images, tasks.to(kind))
    for wrong in (tasks - 1, tasks + 1, tasks[0], tasks[:, None], tasks.tolist()):
        with pytest.raises(UsageError, match="tasks are .*give"):
            made(images, wrong)


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_images_are_uint8_or_floats(model, trained):
    made, (images, tasks, labels) = trained[0][model], trained[1].test_dataset[:]
    for kind in (torch.bool, torch.int8, torch.int16, torch.int64, torch.complex64):
        name = str(kind).removeprefix("torch.")
        with pytest.raises(UsageError, match=f"the images are {name}; give uint8 ones"):
            made(images.to(kind), tasks)
        with pytest.raises(UsageError, match=f"the images are {name}; give uint8 ones"):
            with_loader(made, images.to(kind), tasks, labels)
    with pytest.raises(UsageError, match="the images are ndarray; give uint8 ones"):
        made(images.numpy(), tasks)
    normalised = (images / 255 - 0.5) / 0.25
    for kind in (torch.float16, torch.float64):
        torch.testing.assert_close(made(normalised.to(kind), tasks), made(images, tasks), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("scale", [1, 255])
def test_floats_that_nobody_normalised_are_told_once(scale, bare, trained, recwarn):
    made, (images, tasks, labels) = trained[0]["baseline"], trained[1].test_dataset[:]

    def told() -> list[str]:
        return [str(warning.message) for warning in recwarn if "nobody had" in str(warning.message)]

    made.normalise.warned = False
    for floats in ((images / 255 - 0.5) / 0.25, images * (scale / 255), images * (scale / 255)):
        before = len(told())
        made(floats, tasks) if bare else with_loader(made, floats, tasks, labels)
    (text,) = told()
    low, high = ((images if bare else images[:7]) * (scale / 255)).aminmax()
    assert before == 1 and f"images, {float(low):g} to {float(high):g}, look as if nobody had" in text


def test_several_loaders_at_once_are_refused(trained):
    made, data = trained[0]["baseline"], trained[1]
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    two = [data.test_dataloader(), data.val_dataloader()]
    with pytest.raises(UsageError, match="2 test loaders"):
        Trainer(**quiet).test(made, dataloaders=two, verbose=False)
    with pytest.raises(UsageError, match="2 validation loaders"):
        Trainer(**quiet).validate(made, dataloaders=two, verbose=False)
    assert [len(found) for found in Trainer(**quiet).predict(made, dataloaders=two)] == [len(two[0]), len(two[1])]


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
