"""Two sampling WPL learners against the known equilibria of matrix games (docs/paper.md, reading 2)."""

import numba
import numpy as np
import pytest

from routing_lightning.routers.wpl import _wpl_loop

# payoffs to the row player, payoffs to the column player, equilibrium of each
GAMES = {
    "matching pennies": ([[1, -1], [-1, 1]], [[-1, 1], [1, -1]], [1 / 2, 1 / 2], [1 / 2, 1 / 2]),
    "2x2": ([[0, 3], [1, 2]], [[3, 2], [0, 1]], [1 / 2, 1 / 2], [1 / 2, 1 / 2]),
    "rock-paper-scissors": (
        [[0, -1, 1], [1, 0, -1], [-1, 1, 0]],
        [[0, 1, -1], [-1, 0, 1], [1, -1, 0]],
        [1 / 3, 1 / 3, 1 / 3],
        [1 / 3, 1 / 3, 1 / 3],
    ),
}


@numba.njit
def play(policy, baseline, row_payoff, column_payoff, plays, rate, printed, seed):
    """Plays, one update per play and player; gives the average policy of the second half."""
    np.random.seed(seed)
    agents = np.arange(2)
    actions = np.zeros((2, 1), np.int64)
    returns = np.zeros((2, 1))
    sizes = np.array([policy.shape[2]])
    average = np.zeros((2, policy.shape[2]))
    for step in range(plays):
        for player in range(2):
            noise, action = np.random.random(), 0
            while action < policy.shape[2] - 1 and noise >= policy[player, 0, action]:
                noise -= policy[player, 0, action]
                action += 1
            actions[player, 0] = action
        returns[0, 0] = row_payoff[actions[0, 0], actions[1, 0]]
        returns[1, 0] = column_payoff[actions[0, 0], actions[1, 0]]
        _wpl_loop(policy, baseline, False, agents, actions, returns, sizes, rate, rate, printed, 0.0, 1.0, False)
        if step >= plays // 2:
            average += policy[:, 0]
    return average / (plays - plays // 2)


def played(game: str, start: int, printed: bool):
    row, column, *equilibrium = GAMES[game]
    generator = np.random.default_rng(start)
    policy = generator.dirichlet(np.ones(len(row)), (2, 1)) if start else np.full((2, 1, len(row)), 1 / len(row))
    payoffs = np.array(row, float), np.array(column, float)
    average = play(policy, np.zeros((2, 1, 1)), *payoffs, 200_000, 1e-3, printed, start)
    return policy[:, 0], average, np.array(equilibrium)


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("game", GAMES)
def test_original_scaling_reaches_the_mixed_equilibrium(game, start):
    last, average, equilibrium = played(game, start, printed=False)
    np.testing.assert_allclose(average, equilibrium, atol=0.02)
    np.testing.assert_allclose(last, equilibrium, atol=0.06)


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("game", GAMES)
def test_printed_scaling_ends_in_a_corner(game, start):
    last, _, _ = played(game, start, printed=True)
    assert (last.max(axis=1) > 0.9).all()
