"""Pictures of noise in the shape of the real data sets, for benchmarks without data."""

import torch

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, MultiTaskDataset


class Synthetic(MultiTaskDataModule):
    """Noise; by default of the size of CIFAR-MTL.

    Args:
        num_tasks: number of tasks.
        num_classes: labels per task.
        count: training samples; a fifth of them for the test.
        channels: channels of an image.
        size: height and width of an image.
        batch_size: samples per batch and process.
    """

    def __init__(
        self,
        num_tasks: int = 20,
        num_classes: int = 5,
        count: int = 50_000,
        channels: int = 3,
        size: int = 32,
        batch_size: int = 16,
    ) -> None:
        super().__init__(batch_size=batch_size)
        self.save_hyperparameters()
        self.mean, self.std = (0.5,) * channels, (0.25,) * channels
        self.shape = (num_tasks, num_classes, count, channels, size)

    def load_data(self) -> MultiTaskData:
        num_tasks, num_classes, count, channels, size = self.shape
        generator = torch.Generator().manual_seed(0)

        def part(count: int) -> MultiTaskDataset:
            images = torch.randint(256, (count, size, size, channels), generator=generator, dtype=torch.uint8)
            tasks = torch.arange(count) % num_tasks
            labels = torch.arange(count) // num_tasks % num_classes
            return MultiTaskDataset(images.permute(0, 3, 1, 2), torch.arange(count), tasks, labels)

        labels = [[str(label) for label in range(num_classes)]] * num_tasks
        return MultiTaskData([str(task) for task in range(num_tasks)], labels, part(count), None, part(count // 5))
