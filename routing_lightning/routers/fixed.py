"""Fixed routes: the controls that a router has to beat, and sharing made by hand."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import Router, RoutingSpec, Trace
from routing_lightning.routers.host import HostModule
from routing_lightning.routers.rules import OptionRules, Rule


class FixedRoutes(HostModule, Router):
    """Each task has a route from the start and keeps it: routing without learning.

    Args:
        routes: ``"random"``: a block drawn for each task and depth; ``"own"``: block t for task t, nothing shared where
            there are enough blocks; ``"shared"``: one block per depth for all. Or, for each task, its block at each
            depth: D numbers for each of T tasks.
        seed: seed of the draw, at least 0, apart from the seed of the training.
        shared_depths: at so many depths, the first ones, all tasks take block 0 whatever ``routes`` says, at least 0.
            With ``own`` and a network of four convolutions first, 4 is the paper's task specific-all-fc.
        stitch: mix the fully connected layers of all tasks' routes by cross-stitch units, see
            :class:`~routing_lightning.networks.Stitches`.

    Attributes:
        table: (T, D) int64 on the host, the routes. Part of the checkpoint.

    Raises:
        UsageError: if a value is out of its range.
    """

    option_rules: ClassVar[OptionRules] = {
        **dict.fromkeys(("routes", "seed", "shared_depths"), Rule.SETTLED),
        "stitch": Rule.READS,
    }

    uses_state = False
    table: Tensor

    def __init__(
        self,
        routes: Literal["random", "own", "shared"] | list[list[int]] = "random",
        seed: int = 0,
        shared_depths: int = 0,
        stitch: bool = False,
    ) -> None:
        super().__init__()
        if shared_depths < 0:
            raise UsageError(f"shared_depths of FixedRoutes is {shared_depths}; give a number of depths, at least 0.")
        if seed < 0:
            raise UsageError(f"seed of FixedRoutes is {seed}; give at least 0.")
        if not isinstance(routes, (list, tuple)) and routes not in ("random", "own", "shared"):
            raise UsageError(f"routes of FixedRoutes is {routes!r}; give 'random', 'own', 'shared' or a list per task.")
        self.given = routes
        self.seed = seed
        self.shared_depths = shared_depths
        self.stitch = stitch

    def build(self, spec: RoutingSpec) -> None:
        """Makes the table.

        Raises:
            UsageError: if given routes do not fit the network.
        """
        super().build(spec)
        if self.shared_depths > len(spec.num_blocks):
            raise UsageError(
                f"shared_depths of FixedRoutes is {self.shared_depths}, but the network has {len(spec.num_blocks)} "
                f"routed depths; give 0..{len(spec.num_blocks)}, or route more layers, as RoutingAllLayers does."
            )
        self.register_buffer("table", self._routes(spec))
        self.table[:, : self.shared_depths] = 0

    def _routes(self, spec: RoutingSpec) -> Tensor:
        tasks, sizes = torch.arange(spec.num_tasks), spec.num_actions
        if self.given == "own":
            return torch.stack([tasks % blocks for blocks in spec.num_blocks], 1)
        if self.given == "shared":
            return torch.zeros(spec.num_tasks, len(sizes), dtype=torch.long)
        if self.given == "random":
            generator = torch.Generator().manual_seed(self.seed)
            return torch.stack([torch.randint(size, (len(tasks),), generator=generator) for size in sizes], 1)
        rows = [list(row) for row in self.given]
        fits = all(len(row) == len(sizes) and all(0 <= a < n for a, n in zip(row, sizes, strict=True)) for row in rows)
        if len(rows) != spec.num_tasks or not fits:
            raise UsageError(
                f"routes of FixedRoutes is {rows}; give {spec.num_tasks} lists (tasks) of {len(sizes)} blocks, each "
                f"below {sizes} (the actions at each depth)."
            )
        return torch.tensor(rows, dtype=torch.long)

    @property
    def is_over(self) -> bool:
        """Always: the routes stay from the start."""
        return True

    def start(self, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None) -> Trace:
        """The trace of a batch with each sample's route; see the base class."""
        return Trace(tasks, tasks, explore, generator, actions=self.table[tasks])
