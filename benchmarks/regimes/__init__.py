"""How much tasks should share in different regimes of data: each method in each, and its regret to the best there."""
