"""Images per second from the datamodules, ready to enter the network: gathered, float32 and normalised."""

import itertools

from benchmarks.harness import Options, Table, significant
from benchmarks.synthetic import Synthetic
from routing_lightning.datamodules import CIFARMTLDataModule, DigitsMTLDataModule, MultiTaskDataModule
from routing_lightning.modules.pixels import PixelNormalisation


def rate(data: MultiTaskDataModule, options: Options) -> float:
    """Images per second through the training loader and the model's normalisation; the median of several runs."""
    data.prepare_data()
    data.setup("fit")
    normalise = PixelNormalisation(len(data.mean))
    normalise.learn(data.mean, data.std)
    batches = max(1, (4_000 if options.quick else 20_000) // data.batch_size)
    rates = []
    for _ in range(5):
        count = 0
        start = options.clock()
        for batch in itertools.islice(itertools.cycle(data.train_dataloader()), batches):
            count += len(normalise(batch[0]))
        rates.append(count / (options.clock() - start))
    return sorted(rates)[2]


def run(options: Options) -> list[Table]:
    """Rates at batch 16 and 256: digits, noise of the other data sets' shapes, and CIFAR-MTL where there is a root."""
    table = Table("images per second from the datamodules, on the host")
    for size in (16, 256):
        sources: dict[str, MultiTaskDataModule] = {
            "Digits-MTL, 8x8x1": DigitsMTLDataModule(batch_size=size),
            "noise as MNIST-MTL, 28x28x1": Synthetic(10, 2, 20_000, 1, 28, size),
            "noise as CIFAR-MTL, 32x32x3": Synthetic(20, 5, 50_000, 3, 32, size),
            "noise as MIN-MTL, 84x84x3": Synthetic(10, 5, 10_000, 3, 84, size),
        }
        if options.root is not None:
            sources["CIFAR-MTL, files of the root"] = CIFARMTLDataModule(root=options.root, batch_size=size)
        for name, data in sources.items():
            table.rows.append({"data": name, "batch": size, "images / s": significant(rate(data, options))})
    return [table]
