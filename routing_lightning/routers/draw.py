"""Drawing actions from a policy's distribution."""

import numba
import numpy as np
import torch
from torch import Tensor


@numba.njit(cache=True, nogil=True)
def _invert(probabilities, noise, actions):  # type: ignore[no-untyped-def]
    """The first action at which the cumulative distribution exceeds noise times its total, for each row."""
    for row in range(len(actions)):
        total = 0.0
        for k in range(probabilities.shape[1]):
            total += probabilities[row, k]
        point, cumulative = noise[row] * total, 0.0
        actions[row] = 0
        for k in range(probabilities.shape[1]):
            cumulative += probabilities[row, k]
            if cumulative > point:  # so this action has a probability; the last sum is the total, which point is below
                actions[row] = k
                break


def draw(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws one action per row by inverting the cumulative distribution; never one of probability 0.

    Args:
        probabilities: (..., K), rows that sum to about 1.
        generator: source of the noise, on the host.

    Returns:
        (...) int64, actions in [0, K).
    """
    if probabilities.device.type == "cpu":
        given = probabilities.detach().float().numpy()
        actions = np.empty(given.shape[:-1], np.int64)
        points = torch.rand(actions.size, generator=generator, dtype=torch.float32).numpy()
        _invert(given.reshape(-1, given.shape[-1]), points, actions.reshape(-1))
        return torch.from_numpy(actions)
    cumulative = probabilities.float().cumsum(-1)
    total = cumulative[..., -1:]
    # float32 by name here and elsewhere: at precision bf16-true torch's default type has 8 bits.
    noise = torch.rand(total.shape, generator=generator, dtype=torch.float32)
    noise = noise.to(total.device, non_blocking=True) * total
    # Rounding could lift the noise to the total itself, past the last action with a probability.
    noise = torch.minimum(noise, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative <= noise).sum(-1)
