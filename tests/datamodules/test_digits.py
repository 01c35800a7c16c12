import pytest
import torch
from sklearn.datasets import load_digits

from routing_lightning.datamodules import DigitsMTLDataModule


@pytest.mark.parametrize("fraction", [0.0, 0.1])
def test_protocol(fraction: float) -> None:
    datamodule = DigitsMTLDataModule(val_fraction=fraction)
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert (datamodule.num_tasks, datamodule.num_classes, datamodule.image_shape) == (10, 2, (1, 8, 8))
    digit = torch.from_numpy(load_digits().target)
    counts = {"train_dataset": 139, "val_dataset": 15, "test_dataset": 20}
    if fraction == 0:
        counts.update(train_dataset=154, val_dataset=20)
    for part, per_class in counts.items():
        dataset = getattr(datamodule, part)
        assert torch.equal(dataset.labels, (digit[dataset.index] == dataset.tasks).long())
        assert torch.bincount(dataset.tasks * 10 + digit[dataset.index]).tolist() == [per_class] * 100
    rows = {part: set(getattr(datamodule, part).index.tolist()) for part in counts}
    assert len(rows["test_dataset"]) == 200
    assert not rows["train_dataset"] & (rows["test_dataset"] | rows["val_dataset"])
    assert fraction == 0 or not rows["val_dataset"] & rows["test_dataset"]


def test_grey_values_use_the_whole_range_and_normalise() -> None:
    datamodule = DigitsMTLDataModule(batch_size=20000)
    datamodule.setup()
    assert datamodule.train_dataset.images.dtype == torch.uint8
    assert datamodule.train_dataset.images.max() == 255
    (batch,) = datamodule.train_dataloader()
    images = (batch[0] / 255 - datamodule.mean[0]) / datamodule.std[0]
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02
