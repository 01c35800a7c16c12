import torch
from hypothesis import given
from hypothesis import strategies as st

from routing_lightning.routers import correctness_reward, returns


@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), depth=st.integers(1, 5))
def test_returns_equal_the_sum_as_printed(seed, gamma, depth):
    generator = torch.Generator().manual_seed(seed)
    final = torch.randn(7, generator=generator, dtype=torch.float64)
    rewards = torch.randn(7, depth, generator=generator, dtype=torch.float64)
    for n in range(7):
        for i in range(depth):
            expected = final[n] + sum(gamma ** (j - i) * rewards[n, j] for j in range(i, depth))
            torch.testing.assert_close(returns(final, rewards, gamma)[n, i], expected)


def test_correctness_reward_is_plus_and_minus_one():
    reward = correctness_reward(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3]))
    assert reward.tolist() == [1.0, -1.0, 1.0] and reward.dtype == torch.float32
