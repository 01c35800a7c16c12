"""The protocol of routers: what each of them is asked, whoever decides and however it learns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from routing_lightning.errors import UsageError


@dataclass(frozen=True)
class RoutingSpec:
    """What a router has to decide about: the depths of a network, in the order of their calls.

    Attributes:
        num_tasks: T, number of tasks.
        num_blocks: number of blocks at each of the D depths.
        may_pass: whether each depth has PASS as a further action, the last one; nowhere by default.
        state_sizes: size of the state before each depth; None where it is not known.
        layers: which layer each depth is a call of, by number; by default each is a layer of its own.
    """

    num_tasks: int
    num_blocks: Sequence[int]
    may_pass: Sequence[bool] = ()
    state_sizes: Sequence[int | None] = ()
    layers: Sequence[int] = ()

    def __post_init__(self) -> None:
        depth = len(self.num_blocks)
        object.__setattr__(self, "num_blocks", list(self.num_blocks))
        object.__setattr__(self, "may_pass", list(self.may_pass) or [False] * depth)
        object.__setattr__(self, "state_sizes", list(self.state_sizes) or [None] * depth)
        object.__setattr__(self, "layers", list(self.layers) or list(range(depth)))

    @property
    def num_actions(self) -> list[int]:
        """Number of actions (blocks, and PASS where there is one) at each of the D depths."""
        return [blocks + passes for blocks, passes in zip(self.num_blocks, self.may_pass, strict=True)]

    def known_state_sizes(self, who: str) -> list[int]:
        """Sizes of the states, for those who need them all.

        Args:
            who: who needs them, for the error.

        Raises:
            UsageError: if one is not known.
        """
        sizes = [size for size in self.state_sizes if size is not None]
        if len(sizes) < len(self.state_sizes):
            raise UsageError(f"{who} looks at activations, whose sizes are not known; give the network an example.")
        return sizes


@dataclass
class Trace:
    """What happened to the samples of a batch (paper, Algorithm 2), as tensors.

    N samples, D decisions (depths) each. Nothing is a Python object per sample.

    Attributes:
        tasks: (N,) int64 on the host, the task of each sample.
        agents: (N,) int64 on the host, the agent who routed each sample.
        explore: whether actions are drawn; else the most probable ones are taken.
        generator: source of the drawing's noise, on the host; None: torch's own.
        actions: (N, D) int64 on the host, the action at each depth: a block, or ``num_blocks`` for PASS; -1 means no
            decision.
        states: the D states (N, size_d) that the router saw, where it learns from them; else empty.
        scores: what a router that learns by the gradient of the loss keeps of each depth for its auxiliary loss.
        probabilities: (N, D, K) float32 on the host, what each action was drawn from; zeros beyond K_d. None where
            nobody asks for them.
        alternatives: (N, D) int64 on the host, another action at a depth, of which the router wants to know the reward
            that the sample would have got; -1: none there. None where nobody asks.
        kept: what the network needs to run the batch again with those.
        final_reward: (N,) float32, r_final.
        alternative_reward: (N,) float32, what r_final had been with ``alternatives``.
        rewards: (N, D) float32, the immediate rewards r_i.
        returns: (N, D) float32, the returns R_i (paper, Algorithm 3).
    """

    tasks: Tensor
    agents: Tensor
    explore: bool = False
    generator: torch.Generator | None = None
    actions: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    states: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    probabilities: Tensor | None = None
    alternatives: Tensor | None = None
    kept: Any = None
    final_reward: Tensor | None = None
    alternative_reward: Tensor | None = None
    rewards: Tensor | None = None
    returns: Tensor | None = None


class Decision(NamedTuple):
    """A router's decision about a batch at one depth.

    Attributes:
        actions: (N,) int64, the block of each sample, or ``num_blocks`` for PASS; on any device, best on the host.
        weight: (N,), what each sample's output is multiplied by, through which a router can learn by the gradient of
            the loss; None: nothing.
    """

    actions: Tensor
    weight: Tensor | None = None


class BlockCopy(NamedTuple):
    """A block whose weights others of its layer are to begin with.

    Attributes:
        depth: a depth of the layer, in [0, D).
        source: the block.
        targets: the others.
    """

    depth: int
    source: int
    targets: list[int]


class Router(nn.Module):
    """Decides which block each sample takes at each depth. Base of all routers.

    A pass asks :meth:`start` once and then :meth:`decide` at each depth. In training the loss takes in
    :meth:`auxiliary_loss`, and after the step :meth:`learn` gets the trace of all processes' samples with the final
    reward of each. A router that learns by reward overrides ``learn``; one that learns by the gradient of the loss
    gives weights, auxiliary losses or both, and its parameters belong to the network's optimizer; a fixed one overrides
    neither.

    Attributes:
        uses_state: whether decisions depend on the activations. If not, :meth:`start` fills in all actions.
        stitch: whether cross-stitch units mix the fully connected layers of all tasks' routes, as soon as these stay
            (:attr:`is_over`); see :class:`~routing_lightning.networks.Stitches`.
        joint: whether :meth:`learn` steps with gradients that the network's backward pass leaves, by way of
            :meth:`auxiliary_loss`.
        spec: what there is to decide, known after :meth:`build`.
        old_tasks: number of tasks, numbered first, that were there before others joined; 0: all are alike.
        old_blocks: number of blocks of each routed layer, numbered first, that were there before; None likewise.
        old_lr: factor on the learning rate of all of the network that was there before, in [0, 1]; 0: frozen.
    """

    uses_state: bool = True
    stitch: bool = False
    joint: bool = False
    spec: RoutingSpec
    old_tasks: int = 0
    old_blocks: list[int] | None = None
    old_lr: float = 1.0

    def build(self, spec: RoutingSpec) -> None:
        """Gives the router its final shape; called once, by the network that it routes.

        Raises:
            UsageError: if the router cannot serve such a network, or serves one already.
        """
        if hasattr(self, "spec"):
            raise UsageError(f"this {type(self).__name__} serves a network already; make a router for each network.")
        self.spec = spec

    def start(self, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None) -> Trace:
        """Starts the trace of a batch.

        Args:
            tasks: (N,) int64 in [0, T), on the host.
            explore: draw actions; else take the most probable ones.
            generator: source of the noise, on the host; None: torch's own.

        Returns:
            The trace, with all actions if they do not depend on activations.
        """
        return Trace(tasks, tasks, explore, generator)

    def decide(self, trace: Trace, x: Tensor, depth: int) -> Decision:
        """Decides at one depth.

        Args:
            trace: the trace so far.
            x: (N, size), the state: the activation before this depth, feature maps averaged over the picture. For
                routers that do not use it, the activation as it is.
            depth: in [0, D).
        """
        if self.uses_state:
            raise TypeError(f"router {type(self).__name__} does not say how to decide: override decide")
        return Decision(trace.actions[:, depth])

    def auxiliary_loss(self, trace: Trace) -> Tensor | None:
        """A scalar to add to the mean loss of the batch, or None. The trace has its final reward."""
        return None

    def learn(self, trace: Trace) -> None:
        """Learns from the trace of all processes' samples, which has its final reward; called after each batch.

        Every process gets the same trace and must end with the same router: draw no noise here.
        """

    def foresee(self, batches: float, layers: Sequence[str]) -> list[str]:
        """What a training of this length cannot decide, a sentence each; none by default. After :meth:`plan`.

        Args:
            batches: of the whole training, as for :meth:`plan`.
            layers: the name of each depth.
        """
        return []

    def left_open(self, layers: Sequence[str]) -> list[str]:
        """What the training that ends now did not decide, a sentence each; none by default.

        Args:
            layers: the name of each depth.
        """
        return []

    def plan(self, batches: float) -> None:
        """Learns how long the training is to be, before it starts.

        Args:
            batches: number of batches, infinite where nobody knows.

        Raises:
            UsageError: if the router has to know.
        """

    def copies(self) -> list[BlockCopy]:
        """Blocks to be copied now, with what the optimizer keeps of them; asked once after each :meth:`learn`."""
        return []

    @property
    def is_over(self) -> bool:
        """Whether the routes of tasks stay as they are from now on."""
        return False

    def hold_tasks(self, count: int) -> None:
        """Keeps the routes of the first tasks as they are, whatever comes.

        Args:
            count: number of tasks.

        Raises:
            UsageError: if this router cannot.
        """
        raise UsageError(
            f"{type(self).__name__} has no routes of single tasks that could stay as they are; take a RewardRouter of "
            "TabularPolicy with agents 'per_task'."
        )

    def own_parameters(self) -> list[nn.Parameter]:
        """Parameters that :meth:`learn` moves; all others belong to the network's optimizer."""
        return []

    def configure(self) -> list[tuple[Optimizer, Any]]:
        """Makes the optimizers that :meth:`learn` steps: pairs of optimizer and learning rate scheduler (or None)."""
        return []

    def routes(self) -> Tensor:
        """The route of each task in evaluation: (T, D) int64 on the host.

        Raises:
            UsageError: if it depends on the activations.
        """
        if self.uses_state:
            raise UsageError(
                f"{type(self).__name__} looks at activations, so a task has no one route; take a router whose routes "
                "depend on the task alone, or the routes of a trace."
            )
        if not hasattr(self, "spec"):
            raise UsageError(f"this {type(self).__name__} serves no network yet; give it to a RoutingNetwork.")
        return self.start(torch.arange(self.spec.num_tasks), explore=False).actions

    @torch.no_grad()
    def probabilities(self) -> Tensor:
        """The policy of each task: (T, D, K) float32 on the host, rows on the simplex; by default its route's.

        Raises:
            UsageError: if it depends on the activations.
        """
        return nn.functional.one_hot(self.routes(), max(self.spec.num_actions)).float()
