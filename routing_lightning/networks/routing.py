"""RoutingNetwork: the routing algorithm (paper, Algorithm 1) over any network that holds routed layers."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.otherwise import as_before, children_from, keep, start_of
from routing_lightning.networks.pace import check_factor, freeze_old, old_parameters
from routing_lightning.networks.probe import probe
from routing_lightning.networks.routed_layer import OpenPass, RoutedLayer
from routing_lightning.networks.specialise import put_in_place
from routing_lightning.networks.stitch import StitchedPass, Stitches, alone
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.nn.conv import ConvBlocks
from routing_lightning.nn.tasks import checked_tasks
from routing_lightning.nn.tracing import on_host, refuse_tracing
from routing_lightning.routers.base import Router, RoutingSpec, Trace

KINDS = ((ConvBlocks, "conv"), (LinearBlocks, "fc"))


class RoutingNetwork(nn.Module):
    """Routing: at each depth the router picks, per sample, one block of that depth's layer (paper, Algorithm 1).

    The depths are the calls of the routed layers, in the order in which the body makes them. One pass on an example, at
    the start, finds them and the sizes of what the router sees.

    Args:
        body: any network that takes a batch and holds routed layers.
        router: who picks; is built here for this body.
        num_tasks: T, number of tasks, at least 1.
        example: inputs (N, ...) such as those to come, of which the first is used; None: the first batch. Give it
            before an optimizer is made or a state is loaded: the router's own parameters are made then.

    Attributes:
        layers: the routed layers.
        calls: the routed layer of each depth, once there was an example.
        stitches: mixtures between the tasks' routes, if the router asks for them.
        old_blocks: of each layer, the number of blocks from before tasks joined; None if none did.
        old_lr: factor on the learning rate of what was there before.

    Raises:
        UsageError: if there is no routed layer or no task, or something does not fit: a block its activation, the
            blocks of a layer each other, PASS a layer that changes sizes, the router the network.
    """

    def __init__(self, body: nn.Module, router: Router, num_tasks: int = 1, example: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(num_tasks, int) or isinstance(num_tasks, bool) or num_tasks < 1:
            raise UsageError(f"num_tasks is {num_tasks!r}; give a number of tasks, at least 1.")
        if not isinstance(router, Router):
            raise UsageError(f"router is {router!r}; give a Router, such as RewardRouter(TabularPolicy(), WPL()).")
        if isinstance(body, RoutingNetwork):
            raise UsageError("the body is a RoutingNetwork already; give its body, as replace_by_routed() makes one.")
        self.body = body
        self.router = router
        self.num_tasks = num_tasks
        # Plain lists, so that the layers keep one name each.
        self.layers = list(dict.fromkeys(routed_layers(body)))
        self.calls: list[RoutedLayer] = []
        self.stitches: Stitches | None = None
        self.old_blocks: list[int] | None = None
        self.old_lr = 1.0
        if not self.layers:
            raise UsageError(f"{type(body).__name__} holds no routed layer; give at least 1, or use route().")
        if example is not None:
            self.build(example)

    def build(self, example: Tensor) -> Tensor:
        """Finds depths and sizes, and builds the router.

        Args:
            example: inputs (N, ...), of which the first is used.

        Returns:
            The body's output for it, (1, ...).
        """
        found, output = probe(self.body, self.layers, example)
        self.calls = [call.layer for call in found]
        spec = RoutingSpec(
            self.num_tasks,
            [layer.blocks.num_blocks for layer in self.calls],
            [layer.allow_pass for layer in self.calls],
            [call.state_size for call in found],
            [self.layers.index(layer) for layer in self.calls],
        )
        self.router.build(spec)
        if self.router.stitch:
            self.stitches = Stitches(found, self.num_tasks)
        return output

    def depth_names(self) -> list[str]:
        """The layer of each depth, by its name in the body.

        A layer that has a number only is called by its kind (conv, fc, or block), counted from 1; one that is called
        again, by which call it is.
        """
        given = {layer: name for name, layer in self.body.named_modules()}
        kinds: dict[str, int] = {}
        names: dict[RoutedLayer, str] = {}
        for layer in self.layers:
            names[layer] = given.get(layer, "")
            if not any(letter.isalpha() for letter in names[layer]):
                kind = next((name for blocks, name in KINDS if isinstance(layer.blocks, blocks)), "block")
                kinds[kind] = kinds.get(kind, 0) + 1
                names[layer] = f"{kind} {kinds[kind]}"
        found: list[str] = []
        for depth, layer in enumerate(self.calls):
            before = self.calls[:depth].count(layer)
            found.append(names[layer] + (f", call {before + 1}" if before else ""))
        return found

    def forward(
        self,
        x: Tensor,
        tasks: Tensor | None = None,
        *,
        explore: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Trace]:
        """Routes a batch (Algorithm 1).

        Args:
            x: (N, ...), what the body takes.
            tasks: (N,) int64 in [0, T); best on the host: a table's route is then known without waiting for a device.
                None stands for a dummy task, 0.
            explore: draw actions from the policy, else take the most probable; None: as ``self.training`` says.
            generator: source of the drawing's noise, on the host.

        Returns:
            The body's output and the trace.
        """
        refuse_tracing(self)
        if not self.calls:
            self.build(x)
        explore = self.training if explore is None else explore
        trace = self._start(len(x), tasks, explore, generator)
        with self._pass(trace) as routing:
            x = self.body(x) if trace.alternatives is None else self._run_and_keep(x, trace)
        routing.close()
        return x, trace

    @on_host
    def _start(self, count: int, tasks: Tensor | None, explore: bool, generator: torch.Generator | None) -> Trace:
        """The trace of a batch of so many samples."""
        if isinstance(tasks, Tensor):
            tasks = tasks.cpu()
        tasks = torch.zeros(count, dtype=torch.long) if tasks is None else checked_tasks(tasks, self.num_tasks)
        return self.router.start(tasks, explore=explore, generator=generator)

    @property
    def _towers(self) -> Stitches | None:
        """What mixes the tasks' routes, once these stay."""
        return self.stitches if self.router.is_over else None

    @on_host
    def _pass(self, trace: Trace) -> "RoutingPass | StitchedPass":
        """The pass of a batch, through stitched towers if there are any by now."""
        towers = self._towers
        if towers is None:
            return RoutingPass(self, trace)
        return StitchedPass(self.calls, towers, self.router.routes(), trace.tasks)

    def _run_and_keep(self, x: Tensor, trace: Trace) -> Tensor:
        """Runs the body, and keeps what :meth:`otherwise` needs."""
        assert trace.alternatives is not None
        asked = (trace.alternatives >= 0).any(0).nonzero().flatten().tolist()
        start = start_of(self.body, self.calls, asked[0] if asked else 0)
        if start.child is None:
            trace.kept = keep(start, x, own=False)
            return cast(Tensor, self.body(x))
        for number, child in enumerate(cast(nn.Sequential, self.body)):
            if number == start.child:
                trace.kept = keep(start, x, own=isinstance(child, RoutedLayer))
            x = child(x)
        return x

    def otherwise(self, trace: Trace) -> Tensor:
        """What the body had given in the pass of a trace if each sample had taken the trace's ``alternatives``.

        All else is as it was: weights, so ask before the optimizer steps, mode, the noise of dropout, and the other
        actions. Batches are normalised by their statistics in training, but move no running ones. Only the part of
        the network above the first of those depths is run, where the body is an ``nn.Sequential``. A gradient, where
        there are any, reaches the blocks of the alternatives alone. Asked once: what the trace kept is dropped.

        Args:
            trace: of a pass whose router asked for alternatives.

        Returns:
            As :meth:`forward`.

        Raises:
            UsageError: if the trace kept nothing.
        """
        kept, other = trace.kept, trace.alternatives
        if kept is None or other is None:
            raise UsageError("the trace of this pass knows no alternatives; ask once, and where its router wants them.")
        trace.kept = None
        actions = other.where(other >= 0, trace.actions)
        parts = children_from(self.body, kept.start)
        tried = [
            parameter
            for layer, blocks in zip(self.calls, other.unbind(1), strict=True)
            for block in set(blocks.tolist()) - {-1, layer.blocks.num_blocks}
            for parameter in layer.blocks.block_parameters(block)
        ]
        x: Tensor = kept.x
        with as_before(kept, parts, tried), ForcedPass(self.calls, actions, kept.start.depth):
            for part in parts:
                x = part(x)
        return x

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Says why the state of a network does not fit one that has not seen an example."""
        if not self.calls and any(name.startswith(f"{prefix}router.") for name in state_dict):
            errors = arguments[-1]
            errors.append("the network has seen no example yet, so its router has no parameters; call build(example).")
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def specialise(self, task: int) -> nn.Module:
        """The network of one task: a copy of the body in which the blocks that the task takes replace the layers.

        In evaluation it gives what the routing network gives for samples of the task. It holds no router and no other
        blocks, but for those that stitches mix in.

        Args:
            task: in [0, T).

        Raises:
            UsageError: if there is no such task, or its route depends on the activations.
        """
        if not self.calls:
            raise UsageError("the network has seen no example yet; call build(example) first.")
        if not isinstance(task, int) or isinstance(task, bool) or not 0 <= task < self.num_tasks:
            raise UsageError(f"task is {task!r}; give 0..{self.num_tasks - 1}.")
        routes = self.router.routes()  # refuses routers that look at activations
        route = routes[task].tolist()
        trace = self.router.start(torch.tensor([task]), explore=False)
        blocks = []
        for depth, (layer, action) in enumerate(zip(self.calls, route, strict=True)):
            weight = self.router.decide(trace, torch.empty(1, 0), depth).weight
            block = alone(layer, action)
            blocks.append(block if weight is None else nn.Sequential(block, Scale(weight.detach()[0])))
        towers = self._towers
        if towers is not None:
            blocks[towers.first :] = towers.specialise(self.calls, routes, task)
        # The copy holds the routed layers themselves, which the blocks then replace: theirs are not copied in vain.
        body = copy.deepcopy(self.body, {id(layer): layer for layer in self.calls})
        return put_in_place(body, self.calls, blocks).eval()

    def hold_back(self, old_tasks: int, old_blocks: Sequence[int], factor: float) -> None:
        """Lets what was there before tasks joined learn slower, or not at all.

        With factor 0 no old parameter gets a gradient, batch normalisations keep their statistics in training, too,
        and the old tasks keep their routes: what they get stays as it is, to the bit.

        Args:
            old_tasks: number of tasks that were there before, numbered first.
            old_blocks: of each of ``layers``, how many blocks were there before, numbered first.
            factor: factor on the old parameters' learning rate, in [0, 1]; 0: frozen.

        Raises:
            UsageError: if a number is out of its range, or old parts cannot be frozen.
        """
        check_factor("old_lr", factor)
        counts = [layer.blocks.num_blocks for layer in self.layers]
        fits = len(old_blocks) == len(counts) and all(0 <= a <= b for a, b in zip(old_blocks, counts, strict=True))
        if not fits or not 0 < old_tasks <= self.num_tasks:
            raise UsageError(
                f"old_blocks is {list(old_blocks)} and old_tasks {old_tasks} in a network of {counts} blocks and "
                f"{self.num_tasks} tasks; give for each layer how many blocks were there, and how many tasks."
            )
        self.old_blocks, self.old_lr = list(old_blocks), factor
        if factor == 0:
            freeze_old(self.body, self.layers, old_blocks)
            self.router.hold_tasks(old_tasks)

    def paced_parameters(self) -> tuple[list[nn.Parameter], float]:
        """Parameters that were there before tasks joined, and the factor on their learning rate."""
        if self.old_blocks is None or self.old_lr in (0, 1):
            return [], 1.0
        return old_parameters(self.body, self.layers, self.old_blocks), self.old_lr

    def active_parameters(self) -> list[nn.Parameter]:
        """Parameters of the blocks that got a sample in training since :meth:`reset_active`."""
        return [parameter for layer in self.layers for parameter in layer.blocks.active_parameters()]

    def block_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of all blocks."""
        for layer in self.layers:
            for block in range(layer.blocks.num_blocks):
                yield from layer.blocks.block_parameters(block)

    def reset_active(self) -> None:
        """Forgets which blocks got a sample."""
        for layer in self.layers:
            layer.blocks.reset_active()


def routed_layers(module: nn.Module) -> Iterator[RoutedLayer]:
    """The routed layers in a module, but for those of a routing network within it, which serves them itself."""
    if isinstance(module, RoutedLayer):
        yield module
    if not isinstance(module, RoutingNetwork):
        for child in module.children():
            yield from routed_layers(child)


class RoutingPass(OpenPass):
    """One pass of a batch through a routing network.

    Args:
        network: the network.
        trace: the trace that its router started.
    """

    def __init__(self, network: RoutingNetwork, trace: Trace) -> None:
        super().__init__(network.calls)
        self.router = network.router
        self.trace = trace
        self.actions: list[Tensor] = []  # of each depth so far

    @on_host
    def apply(self, layer: RoutedLayer, x: Tensor) -> Tensor:
        """Asks the router about the next depth and sends each sample through its block."""
        depth = len(self.actions)
        self.check_next(layer, depth)
        if len(x) != len(self.trace.tasks):
            raise UsageError(
                f"the routed layer at depth {depth + 1} got activations {tuple(x.shape)} for {len(self.trace.tasks)} "
                "samples; their first dimension must be the batch."
            )
        state = layer.state(x) if self.router.uses_state else x
        decision = self.router.decide(self.trace, state, depth)
        actions = decision.actions.cpu()
        self.actions.append(actions)
        y: Tensor = layer.blocks(x, actions)
        if decision.weight is None:
            return y
        return y * decision.weight.to(y).view(-1, *[1] * (y.dim() - 1))

    @on_host
    def close(self) -> None:
        """Completes the trace."""
        self.check_whole(len(self.actions))
        if self.router.uses_state:
            self.trace.actions = torch.stack(self.actions, 1)


class ForcedPass(OpenPass):
    """A pass in which the actions are given.

    Args:
        calls: the routed layer of each depth.
        actions: (N, D) int64 on the host.
        depth: number of routed layers that were called before.
    """

    def __init__(self, calls: Sequence[RoutedLayer], actions: Tensor, depth: int) -> None:
        super().__init__(calls)
        self.actions = actions
        self.depth = depth

    def apply(self, layer: RoutedLayer, x: Tensor) -> Tensor:
        """Sends each sample through its block."""
        self.depth += 1
        return cast(Tensor, layer.blocks(x, self.actions[:, self.depth - 1]))


class Scale(nn.Module):
    """Multiplies by a number.

    Args:
        factor: a scalar.
    """

    factor: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> (N, ...)."""
        return x * self.factor
