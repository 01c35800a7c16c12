"""Seeds of the noise of training steps: the same for a resumed run, another one on each process."""

import numpy as np


class NoiseKeys:
    """Seeds of the batches' noise: another one per seed, epoch, process and batch.

    They depend on nothing else, so a resumed run draws what the unbroken run would have drawn.

    Args:
        seed: seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._source: tuple[int, int, int] | None = None
        self._base = 0

    def key(self, epoch: int, rank: int, batch: int) -> int:
        """Seed of a batch's noise, in [0, 2^63)."""
        source = (self.seed, epoch, rank)
        if source != self._source:
            self._source = source
            self._base = int(np.random.SeedSequence(source).generate_state(1, np.uint64)[0])
        # SplitMix64 (Steele et al., 2014): the batch's number of the sequence that starts at the base.
        key = (self._base + (batch + 1) * 0x9E3779B97F4A7C15) % 2**64
        key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        key = (key ^ (key >> 27)) * 0x94D049BB133111EB % 2**64
        return (key ^ (key >> 31)) >> 1
