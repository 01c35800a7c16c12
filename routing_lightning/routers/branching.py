"""BranchingRouter: tasks part from a common network one depth at a time, by paired counterfactual rewards."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import BlockCopy, Router, RoutingSpec, Trace
from routing_lightning.routers.decider import Decider
from routing_lightning.routers.draw import draw
from routing_lightning.routers.host import HostModule
from routing_lightning.routers.learner import Learner
from routing_lightning.routers.paired import PairedDifference
from routing_lightning.routers.policies import TabularPolicy
from routing_lightning.routers.q_learning import ApproximateQLearning, QLearning
from routing_lightning.routers.rules import OptionRules, Rule

Undecided = Literal["favourite", "common", "majority"]
FEW = 10  # batches: in fewer the noise of single samples decides
UNDECIDED: tuple[Undecided, ...] = ("favourite", "common", "majority")
LIKELY = 0.95
"""How sure all tasks together must be of what those do that are not certain alone."""


class BranchingRouter(HostModule, Router):
    """Finds where tasks share and where they part, by staged counterfactual branching.

    All tasks start on one common block everywhere. One depth at a time is opened: the weights of the common block, and
    what the optimizer keeps of them, are copied into the other blocks of the depth, and each sample takes one of its
    task's candidates, as the task's policy draws: the common block or the task's own. Besides the training step the
    part of the network above that depth is run once more on the batch, each sample with another candidate than it took;
    the difference of its two rewards, all else being equal, moves the policy, and the candidates that were not taken
    learn from that pass, so that no block misses a sample while there is a search. The depth is closed when the tasks
    are certain, together or most of them, or after a number of batches; each task keeps what it is certain of, and
    where it is not, what the tasks together are sure of. After the last depth the routes stay.

    Copies of one block start out equal, so a task that parts loses nothing but what the others' samples taught; and
    since the rest of the network is settled, the comparison is about this depth alone.

    Block K - 1 of a layer of K blocks is the common one, block t % (K - 1) is task t's own: with a block more than
    there are tasks each has one for itself. PASS is never taken.

    Rewards: the model's ``final_reward``; ``negative_loss`` tells more than ``correct``.

    Args:
        learner: what moves a policy, a table of each task's candidates, by the gains; :class:`PairedDifference` by
            default; :class:`WPL` and others see the gain as the return. Not Q-learning.
        candidates: C, how many blocks a task chooses from at a depth, at least 2: the common one, its own, and those
            that the next tasks would own.
        order: which depth is opened first: ``"last_first"``, ``"first_last"``, or a list of depths, from 1, each at
            most once; at those left out all tasks share.
        sweeps: how often to go through the depths, at least 1. In later sweeps those who have parted stay apart; the
            others get the chance again.
        begin: share of the training before the search, in [0, 1), in which all tasks share everything: a network that
            knows nothing yet has nothing to compare.
        search: share of the training in which to search at most, in (0, 1]; divided evenly among the depths.
        stage: in its place, the most batches that a depth is open, at least 1; with ``begin: 0`` for training without
            an end.
        pace: the i-th of n depths, from 0, is opened no earlier than after a share ``(i / n) ** pace`` of the search,
            even if those before it closed early; at least 1, infinite for as soon as it can be. With the last layer
            first, the last ones part early, which they must, and the first ones are asked when there is something that
            they would give up: a young network parts too easily.
        settle: share of those in which the blocks of a depth that was just opened learn without being compared, in
            [0, 1): copies differ by noise alone at first. Candidates are drawn alike then.
        shortest: share of the others after which a depth may close, in [0, 1].
        undecided: what a task that is not certain keeps when its depth closes: the choice of the ``"majority"``, for
            which the policies of all that still share count as experts of equal weight, and the depth closes, too, when
            they are certain together; where all together are not sure (0.95) either, each goes on as at the depth that
            was asked before, and parts at the first one; its own ``"favourite"``; or the ``"common"`` block.
        certainty: probability of its favourite from which on a task is certain, or all together, in (0.5, 1).
        quorum: share of the tasks that must be certain for a depth to close, in (0, 1].
        most: bound of a gain, above 0: a single sample must not decide.
        stitch: mix the fully connected layers of all tasks' routes by cross-stitch units once the search is over, see
            :class:`~routing_lightning.networks.Stitches`.

    Attributes:
        opened: int64 on the host, number of depths opened so far, in all sweeps. Part of the checkpoint, as the table
            of the policy and all of the following are.
        closed: int64 on the host, number of depths closed so far; one less than those opened while one is open.
        batches: int64 on the host, batches since the start, until the search is over.
        waited: int64 on the host, batches since the last depth was opened.
        first: int64 on the host, batches before the first depth is opened.
        longest: int64 on the host, the most batches that a depth is open; 0 until that is known.
        routes_so_far: (T, D) int64 on the host, the candidate that each task has at each depth.

    Raises:
        UsageError: if a value is out of its range, or the learner is Q-learning.
    """

    option_rules: ClassVar[OptionRules] = {
        **dict.fromkeys(("learner", "order", "sweeps", "candidates", "stitch"), Rule.READS),
        **dict.fromkeys(("begin", "search", "stage"), Rule.SETTLED),
    }
    null_means: ClassVar[Mapping[str, str]] = {"learner": "PairedDifference"}

    uses_state = False
    opened: Tensor
    closed: Tensor
    batches: Tensor
    waited: Tensor
    first: Tensor
    longest: Tensor
    routes_so_far: Tensor
    blocks: Tensor

    def __init__(
        self,
        learner: Learner | None = None,
        candidates: int = 2,
        order: Literal["last_first", "first_last"] | list[int] = "last_first",
        sweeps: int = 1,
        begin: float = 0.05,
        search: float = 0.2,
        stage: int | None = None,
        pace: float = 2.0,
        settle: float = 0.3,
        shortest: float = 0.15,
        undecided: Undecided = "majority",
        certainty: float = 0.999,
        quorum: float = 0.9,
        most: float = 2.0,
        stitch: bool = False,
    ) -> None:
        super().__init__()
        checks: list[tuple[str, Any, bool, str]] = [
            ("candidates", candidates, candidates >= 2, "at least 2"),
            ("sweeps", sweeps, sweeps >= 1, "at least 1"),
            ("begin", begin, 0 <= begin < 1, "a share in [0, 1)"),
            ("undecided", undecided, undecided in UNDECIDED, f"one of {', '.join(UNDECIDED)}"),
            ("search", search, 0 < search <= 1, "a share in (0, 1]"),
            ("begin + search", begin + search, stage is not None or begin + search <= 1, "shares of at most 1 in all"),
            ("stage", stage, stage is None or stage >= 1, "a number of batches, at least 1, or null"),
            ("pace", pace, pace >= 1, "at least 1"),
            ("settle", settle, 0 <= settle < 1, "a share in [0, 1)"),
            ("shortest", shortest, 0 <= shortest <= 1, "a share in [0, 1]"),
            ("certainty", certainty, 0.5 < certainty < 1, "a probability in (0.5, 1)"),
            ("quorum", quorum, 0 < quorum <= 1, "a share in (0, 1]"),
            ("most", most, 0 < most < math.inf, "a finite number above 0"),
        ]
        for name, value, right, allowed in checks:
            if not right:
                raise UsageError(f"{name} of BranchingRouter is {value}; give {allowed}.")
        if isinstance(order, str) and order not in ("last_first", "first_last"):
            raise UsageError(f"order of BranchingRouter is {order!r}; give 'last_first', 'first_last' or depths.")
        if not isinstance(order, str) and not len(order):
            raise UsageError(
                "order of BranchingRouter is [], with which no depth is asked; give at least one, or take FixedRoutes "
                "with routes: shared."
            )
        if isinstance(learner, (QLearning, ApproximateQLearning)):
            raise UsageError(
                f"learner of BranchingRouter is {type(learner).__name__}, which learns what whole routes are worth; "
                "give PairedDifference, or one that learns from a return, such as WPL or REINFORCE."
            )
        self.decider = Decider(TabularPolicy(), PairedDifference() if learner is None else learner)
        self.candidates = candidates
        self.order = order
        self.sweeps, self.begin, self.undecided = sweeps, begin, undecided
        self.search, self.stage, self.pace = search, stage, pace
        self.settle, self.shortest = settle, shortest
        self.certainty, self.quorum, self.most = certainty, quorum, most
        self.stitch = stitch
        self._copies: list[BlockCopy] = []

    def build(self, spec: RoutingSpec) -> None:
        """Makes the tables; see the base class.

        Raises:
            UsageError: if ``order`` names a depth that there is not, or one twice.
        """
        super().build(spec)
        depth = len(spec.num_blocks)
        few = min((blocks for blocks in spec.num_blocks if blocks > 1), default=self.candidates)
        if few < self.candidates:
            raise UsageError(
                f"candidates of BranchingRouter is {self.candidates}, but a layer has {few} blocks; give at most {few} "
                "or more num_blocks."
            )
        self.depths = _depths(self.order, depth) * self.sweeps
        self.decider.build(spec.num_tasks, RoutingSpec(spec.num_tasks, [self.candidates] * depth))
        blocks = torch.tensor(spec.num_blocks).view(1, -1, 1)
        tasks = torch.arange(spec.num_tasks).view(-1, 1, 1)
        others = (tasks + torch.arange(self.candidates - 1)) % (blocks - 1).clamp(min=1)  # of one block: that
        common = (blocks - 1).expand(spec.num_tasks, -1, 1)
        self.blocks = torch.cat([common, others], 2)  # (T, D, C), the block of each candidate
        for name in ("opened", "closed", "batches", "waited", "first", "longest"):
            self.register_buffer(name, torch.tensor(0))
        self.longest.fill_(self.stage or 0)
        self.register_buffer("routes_so_far", torch.zeros(spec.num_tasks, depth, dtype=torch.long))

    # -- stages --------------------------------------------------------------------------------------------------------

    def plan(self, batches: float) -> None:
        """Divides the search among the depths, unless a checkpoint or ``stage`` has done so; see the base class."""
        if not self.is_over and all(self.spec.num_blocks[depth] == 1 for depth in self.depths):
            raise UsageError(
                "BranchingRouter has nothing to decide, since num_blocks is 1 at each depth that it asks; give at "
                "least 2 (one more than tasks: a block for each), or take FixedRoutes with routes: shared."
            )
        if self.longest and (self.stage is None or self.opened or not self.begin):
            return
        if not math.isfinite(batches):
            raise UsageError(
                f"search of BranchingRouter is {self.search} and begin {self.begin}, shares of the training, but "
                "nobody knows how long that is; set trainer.max_epochs or max_steps; or stage of the router, and "
                "begin 0."
            )
        first, longest = self._shares(batches)
        self.first.fill_(first)
        if not self.longest:
            self.longest.fill_(longest)

    def _shares(self, batches: float) -> tuple[int, int]:
        """Batches before the first depth opens, and the most that one is open, of a training of so many batches."""
        longest = self.stage or max(1, round(self.search * batches / max(1, len(self.depths))))
        return round(self.begin * batches), longest

    def _kept_plan(self, batches: float) -> list[str]:
        """Says that the search goes on as it was planned for a training of another length, if it does."""
        kept, count = (int(self.first), int(self.longest)), len(self.depths)
        if math.isfinite(batches):
            own = self._shares(batches)
            now = f"{own[0]} and {own[1]} of a training of {batches:g}"
        else:
            own = (kept[0], self.stage or -1)  # a training without an end has no shares
            now = "shares of this one, whose length nobody knows"
        if own == kept or (self.stage is not None and (not self.begin or self.opened == count)):
            return []
        over = ", and its search is over" if self.is_over else ""
        return [
            f"BranchingRouter goes on with the checkpoint's plan{over}, whose run had another length or shares: "
            f"{kept[0]} batches before the search and up to {kept[1]} for each of {count} depths, not {now}; to plan "
            "anew, start a new run from the weights (--weights in place of --ckpt_path) with another begin or search."
        ]

    def foresee(self, batches: float, layers: Sequence[str]) -> list[str]:
        """Whether a depth is open too shortly to tell, the last too late, or a plan is old; see the base class."""
        if self.is_over:
            return self._kept_plan(batches)
        found, longest, count = self._kept_plan(batches), int(self.longest), len(self.depths)
        settled = self.settle * longest
        compared = longest - math.ceil(settled)
        longer = "search" if self.stage is None else "stage"
        if compared < FEW:
            found.append(
                f"BranchingRouter keeps each depth open for {longest} batches and compares in {compared} of them, "
                f"too few to tell where parting pays; raise {longer}, or train longer."
            )
        least = max(1, math.ceil(settled + self.shortest * (longest - settled)))
        now = int(self.batches)
        for number in range(int(self.opened), count):
            now = max(now, math.ceil(self.first + longest * count * (number / count) ** self.pace)) + least
        if now > batches:
            found.append(
                f"the search of BranchingRouter takes {now} batches at least ({count} depths of up to {longest}), but "
                f"the training has {batches:g}: some depths will not be asked; {self._way_out()}."
            )
        return found

    def left_open(self, layers: Sequence[str]) -> list[str]:
        """Which layers were never asked, and which was still open; see the base class."""
        if self.is_over:
            return []
        parts = [] if self.open_depth is None else [f"was still asking {layers[self.open_depth]}"]
        never = sorted(set(self.depths[int(self.opened) :]) - set(self.depths[: int(self.opened)]))
        if never:
            parts.append(f"never asked {', '.join(layers[depth] for depth in never)}")
        words = " and ".join(parts) or "has sweeps left"
        return [f"the search of BranchingRouter did not end: it {words}; {self._way_out()}."]

    def _way_out(self) -> str:
        """What to change for the search to end."""
        if self.stage is None:
            return "train as long as planned at the start, or lower begin or search"
        return f"lower stage ({self.stage} batches for each depth), or train longer"

    @property
    def open_depth(self) -> int | None:
        """The depth at which tasks may part now, from 0; None if there is none."""
        return self.depths[int(self.closed)] if self.opened > self.closed else None

    @property
    def is_over(self) -> bool:
        """Whether the search is over, so that the routes stay."""
        return int(self.closed) == len(self.depths)

    @property
    def is_comparing(self) -> bool:
        """Whether a depth is open and its blocks have learned enough to be compared."""
        return self.open_depth is not None and int(self.waited) >= self.settle * int(self.longest)

    def _advance(self) -> None:
        """Closes the open depth and opens the next one, each if it is time."""
        depth = self.open_depth
        if depth is not None and self._is_time_to_close(depth):
            self._close(depth)
            self.closed += 1
        opened, count = int(self.opened), len(self.depths)
        if self.opened == self.closed and opened < count:
            earliest = int(self.first) + int(self.longest) * count * (opened / count) ** self.pace
            if self.batches >= earliest:
                self._open(self.depths[opened], self.depths[:opened])
                self.opened += 1
                self.waited.zero_()

    def _is_time_to_close(self, depth: int) -> bool:
        waited, longest = int(self.waited), int(self.longest)
        settled = self.settle * longest
        sure = self._certain(depth).float().mean() >= self.quorum
        if self.undecided == "majority":
            sure = sure or self._together(depth).max() > self.certainty
        return waited >= longest or (bool(sure) and waited >= settled + self.shortest * (longest - settled))

    def _certain(self, depth: int) -> Tensor:
        """Which tasks are certain of their favourite at the open depth: (T,) bool."""
        return self._open_policies(depth).amax(-1) > self.certainty

    def _close(self, depth: int) -> None:
        favourite = self._favourites()[:, depth]
        if self.undecided != "favourite":
            instead = torch.zeros_like(favourite)
            if self.undecided == "majority":
                instead = self._expected(depth)
            favourite = favourite.where(self._certain(depth), instead)
        self.routes_so_far[:, depth] = favourite

    def _expected(self, depth: int) -> Tensor:
        """Candidate for each task whose own gains do not tell: (T,)."""
        together = self._together(depth)
        if together.max() > LIKELY:
            return together.argmax().expand(self.spec.num_tasks)
        closed, once = int(self.closed), len(self.depths) // self.sweeps
        if closed % once:
            parts = self.routes_so_far[:, self.depths[closed - 1]] > 0
        else:  # nothing was asked before in this sweep, and in a later one who still shares has been asked
            parts = torch.full((self.spec.num_tasks,), closed == 0)
        return parts * (1 + together[1:].argmax())

    def _together(self, depth: int) -> Tensor:
        """How sure the tasks that still share are of each candidate at the open depth, taken together: (C,)."""
        rows = self._open_policies(depth)[self.routes_so_far[:, depth] == 0]
        together = rows.clamp(min=1e-30).log().sum(0) / math.sqrt(max(1, len(rows)))
        return together.softmax(0)

    def _open(self, depth: int, before: Sequence[int]) -> None:
        layers, source = self.spec.layers, self.spec.num_blocks[depth] - 1
        shares = self.routes_so_far[:, depth] == 0
        same = [other for other in before if layers[other] == layers[depth]]
        if depth not in before and same:
            return  # its blocks have parted already, at another depth
        taken = {int(self.blocks[task, d, c]) for d in same for task, c in enumerate(self.routes_so_far[:, d])}
        targets = set(self.blocks[shares, depth].flatten().tolist()) - {source} - taken
        if depth in before:
            assert isinstance(self.decider.policy, TabularPolicy)
            table = self.decider.policy.table
            fresh = self.decider.learner.initial_table(self.spec.num_tasks, [self.candidates])
            table[shares, depth] = fresh[shares, 0]
            self.decider.learner.forget(shares, depth)
        if targets:
            self._copies.append(BlockCopy(depth, source, sorted(targets)))

    def copies(self) -> list[BlockCopy]:
        """The common block of a depth that was opened just now; see the base class."""
        found, self._copies = self._copies, []
        return found

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _policies(self) -> Tensor:
        """Distribution of each task over its candidates at each depth: (T, D, C)."""
        return self.decider.rows(torch.arange(self.spec.num_tasks))

    def _favourites(self) -> Tensor:
        """Candidate of each task at each depth, the common block where nothing is known yet: (T, D)."""
        depth = self.open_depth
        if depth is None:
            return self.routes_so_far
        found = self.routes_so_far.clone()
        favourites = self._policies()[:, depth].argmax(-1)
        found[:, depth] = found[:, depth].where(found[:, depth] > 0, favourites)
        return found

    def _open_policies(self, depth: int) -> Tensor:
        """Distribution of each task over its candidates at the open depth, (T, C); who has parted stays apart."""
        rows, routes = self._policies()[:, depth], self.routes_so_far[:, depth]
        kept = nn.functional.one_hot(routes, self.candidates).float()
        return rows.where((routes == 0)[:, None], kept)

    def start(self, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None) -> Trace:
        """All actions and, at the open depth, alternatives; see the base class."""
        routes = self.blocks.gather(2, self._favourites().unsqueeze(2)).squeeze(2)
        trace = Trace(tasks, tasks, explore, generator, actions=routes[tasks])
        depth = self.open_depth
        if depth is None or not explore:
            return trace
        shares = self.routes_so_far[tasks, depth] == 0
        taken = draw(self._open_policies(depth)[tasks], generator)
        shift = torch.ones_like(taken)
        if self.candidates > 2:
            shift = torch.randint(1, self.candidates, taken.shape, generator=generator)
        blocks = self.blocks[tasks, depth]
        trace.actions[:, depth] = blocks.gather(1, taken.unsqueeze(1)).squeeze(1)
        other = (taken + shift) % self.candidates
        trace.alternatives = torch.full_like(trace.actions, -1)
        tried = blocks.gather(1, other.unsqueeze(1)).squeeze(1)
        trace.alternatives[:, depth] = tried.where(shares, -1)
        return trace

    @torch.no_grad()
    def probabilities(self) -> Tensor:
        """The policy of each task over the blocks: (T, D, K) float32 on the host."""
        given = nn.functional.one_hot(self._favourites(), self.candidates).float()
        if self.open_depth is not None:
            given[:, self.open_depth] = self._open_policies(self.open_depth)
        found = torch.zeros(*given.shape[:2], max(self.spec.num_actions), dtype=torch.float32)
        return found.scatter_add_(2, self.blocks, given)

    # -- learning ------------------------------------------------------------------------------------------------------

    def own_parameters(self) -> list[nn.Parameter]:
        """Those of the policy, if the learner follows a gradient."""
        return list(self.parameters())

    def configure(self) -> list[tuple[Optimizer, Any]]:
        """Makes the optimizer of a learner that follows a gradient; see the base class."""
        made = self.decider.learner.configure(self.decider.policy)
        return [] if made is None else [made]

    @torch.no_grad()
    def learn(self, trace: Trace) -> None:
        """Moves the policies of the open depth by the gains, and goes on to the next depth if it is time."""
        if not self.longest:
            raise UsageError("nobody told BranchingRouter how long the training is; call plan(batches), or give stage.")
        depth = self.open_depth
        if depth is not None and trace.alternatives is not None:
            if trace.final_reward is None or trace.alternative_reward is None:
                raise UsageError(
                    "the trace lacks final_reward or alternative_reward; set both before the router learns, the second "
                    "from the network's otherwise(trace)."
                )
            gain = (trace.final_reward - trace.alternative_reward).clamp(-self.most, self.most)
            trace.returns = torch.zeros(trace.actions.shape, dtype=torch.float32)
            trace.returns[:, depth] = gain.where(trace.alternatives[:, depth] >= 0, 0.0)
            if self.is_comparing:
                self.decider.learner.learn(self.decider.policy, self._seen(trace, depth))
        if not self.is_over:
            self.batches += 1
            self.waited += 1
            self._advance()

    def _seen(self, trace: Trace, depth: int) -> Trace:
        """What the learner sees: the samples that had a choice, with candidates in place of blocks."""
        assert trace.alternatives is not None and trace.returns is not None
        asked = trace.alternatives[:, depth] >= 0
        taken, other = (self._candidate(trace, blocks, depth)[asked] for blocks in (trace.actions, trace.alternatives))
        return Trace(
            trace.tasks[asked], trace.agents[asked], actions=taken, alternatives=other, returns=trace.returns[asked]
        )

    def _candidate(self, trace: Trace, actions: Tensor, depth: int) -> Tensor:
        """Which candidate of its task an action at the open depth is; -1 at the others: (N, D)."""
        found = torch.full_like(trace.actions, -1)
        found[:, depth] = (self.blocks[trace.tasks, depth] == actions[:, depth, None]).int().argmax(1)
        return found


def _depths(order: str | Sequence[int], count: int) -> list[int]:
    """The depths in the order in which they are opened, from 0."""
    if isinstance(order, str):
        return list(range(count))[:: -1 if order == "last_first" else 1]
    if len(set(order)) < len(order) or not all(1 <= depth <= count for depth in order):
        raise UsageError(f"order of BranchingRouter is {list(order)}; give depths in 1..{count}, each at most once.")
    return [depth - 1 for depth in order]
