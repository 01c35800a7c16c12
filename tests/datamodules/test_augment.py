"""Augmentation in batches equals torchvision's transforms image by image, with random numbers of each image's own."""

from types import SimpleNamespace

import pytest
import torch
from torchvision.transforms import v2

from routing_lightning.datamodules import (
    CIFARMTLDataModule,
    DigitsMTLDataModule,
    FolderMTLDataModule,
    MINMTLDataModule,
    MNISTMTLDataModule,
)
from routing_lightning.datamodules.augment import Augmentation, windows_by_copies, windows_by_gather
from routing_lightning.errors import UsageError

IMAGES = torch.randint(0, 256, (400, 3, 6, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LAST = IMAGES.contiguous(memory_format=torch.channels_last)


def possible(transform: v2.Transform, image: torch.Tensor, draws: int = 400) -> set[bytes]:
    """What torchvision makes of an image, over many draws."""
    return {transform(image).numpy().tobytes() for _ in range(draws)}


@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(0.5),
        v2.RandomCrop(4),
        v2.RandomCrop((6, 7), padding=1),
        v2.RandomCrop((6, 7), padding=[1, 2], fill=9),
        v2.RandomCrop((6, 7), padding=[1, 0, 2, 1]),
        v2.RandomCrop((6, 7), padding=1, padding_mode="reflect"),
        v2.RandomErasing(0.5, scale=(0.5, 0.5), ratio=(1, 1)),
    ],
    ids=lambda transform: str(transform)[:60],
)
@pytest.mark.parametrize("images", [IMAGES, LAST], ids=["NCHW", "NHWC"])
def test_batches_give_what_torchvision_gives_and_all_of_it(transform, images):
    torch.manual_seed(0)
    image = images[:1]
    batch = torch.empty_like(images).copy_(image)
    before = batch.clone()
    results = {result.contiguous().numpy().tobytes() for result in Augmentation([transform])(batch)}
    assert results == possible(transform, image[0])
    assert len(results) > 1
    assert torch.equal(batch, before)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_share_of_flips(p):
    torch.manual_seed(0)
    result = Augmentation([v2.RandomHorizontalFlip(p)])(IMAGES)
    flipped = (result == IMAGES.flip(3)).flatten(1).all(1)
    assert (flipped | (result == IMAGES).flatten(1).all(1)).all()
    assert abs(float(flipped.float().mean()) - p) < 0.08


def test_one_after_the_other_by_the_global_source():
    augment = Augmentation([v2.RandomCrop(4), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4)])
    torch.manual_seed(1)
    first = augment(LAST)
    torch.manual_seed(1)
    assert torch.equal(first, augment(LAST))
    assert first.shape == (400, 3, 4, 4) and first.dtype == torch.uint8
    assert not torch.equal(first, augment(LAST))


def test_too_large_a_crop_is_told():
    with pytest.raises(ValueError, match="takes 9 x 9 out of images of 6 x 7"):
        Augmentation([v2.RandomCrop(9)])(IMAGES)
    with pytest.raises(ValueError, match="takes 20 x 20 out of images of 8 x 9, padding included"):
        Augmentation([v2.RandomCrop(20, padding=1)])(IMAGES)


def test_windows_are_the_same_by_copies_and_by_gather():
    top, left = torch.arange(400) % 3, torch.arange(400) % 4
    pixels = IMAGES.permute(0, 2, 3, 1)
    windows = [make(pixels, top, left, 4, 3) for make in (windows_by_copies, windows_by_gather)]
    assert torch.equal(*windows)
    assert torch.equal(windows[0][5], pixels[5, 2:6, 1:4])


def stand_in_trainer(training: bool = True, epoch: int = 0, rank: int = 0, batch: int = 0) -> SimpleNamespace:
    progress = SimpleNamespace(current=SimpleNamespace(ready=batch))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    return SimpleNamespace(training=training, current_epoch=epoch, global_rank=rank, fit_loop=loop)


AUGMENT = [v2.RandomCrop(6, padding=2)]


@pytest.mark.parametrize(
    "datamodule",
    [
        CIFARMTLDataModule("none", augment=AUGMENT),
        MINMTLDataModule("none", image_size=6, augment=AUGMENT),
        FolderMTLDataModule("none", image_size=6, augment=AUGMENT),
        MNISTMTLDataModule("none", augment=AUGMENT),
        DigitsMTLDataModule(augment=AUGMENT),
    ],
    ids=lambda datamodule: type(datamodule).__name__,
)
def test_training_alone_is_changed_by_noise_of_epoch_process_and_batch(datamodule):
    assert "augment" not in datamodule.hparams

    def images(**state: int) -> torch.Tensor:
        datamodule.trainer = stand_in_trainer(**state)
        squares = LAST[:, :, :, :6]
        return datamodule.on_after_batch_transfer((squares, torch.zeros(400), torch.zeros(400)), 0)[0]

    plain = LAST[:, :, :, :6]
    assert torch.equal(images(training=False), plain)
    first = images()
    torch.rand(3)
    assert torch.equal(first, images())
    for other in (plain, images(epoch=1), images(rank=1), images(batch=1)):
        assert first.shape == other.shape and first.dtype == torch.uint8 and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("transform", "words"),
    [(v2.RandomCrop(16), "RandomCrop takes 16 x 16 out of images of 8 x 8"), (v2.Resize(4), "but must keep both")],
)
def test_what_does_not_fit_the_images_is_told_before_training(transform, words):
    data = DigitsMTLDataModule(augment=[transform], train_fraction=0.02)
    data.setup("test")  # which changes no images
    with pytest.raises(UsageError, match=words):
        data.setup("fit")


def test_the_check_draws_no_random_numbers_of_the_run():
    data = DigitsMTLDataModule(augment=[v2.RandomCrop(8, padding=1), v2.RandomHorizontalFlip()], train_fraction=0.02)
    before = torch.get_rng_state()
    data.setup("fit")
    assert torch.equal(before, torch.get_rng_state())
