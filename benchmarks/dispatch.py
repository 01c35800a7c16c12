"""Ways to send a batch to its blocks: forward, backward and SGD step of one routed layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import Options, Table, in_turns, milliseconds
from routing_lightning.nn import dispatch
from routing_lightning.nn.dispatch import Route

IN = 128
LARGEST = 2**28  # numbers in an intermediate result, 1 GiB
OURS: dict[type[torch.autograd.Function], str] = {
    dispatch._SegmentLinear: "sort + product per block",
    dispatch._PaddedLinear: "padded batched product",
    dispatch._CompiledLinear: "compiled loop",
}


def ours(function: type[torch.autograd.Function], count: int, out: int, x: Tensor, actions: Tensor) -> Callable:
    """One of our ways: a parameter per block."""
    blocks = [nn.Parameter(torch.randn(IN + 1, out, device=x.device) * 0.05) for _ in range(count)]
    optimizer = torch.optim.SGD(blocks, lr=1e-6)
    group = optimizer.param_groups[0]

    def way() -> None:
        route = Route.of(actions, count, x.device)
        group["params"] = [blocks[block] for block in route.blocks]
        function.apply(x, route, True, *group["params"]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return way


def stacked(forward: Callable[[Tensor, Tensor], Tensor], count: int, out: int, x: Tensor) -> Callable:
    """A way over one stacked parameter: its gradient and the optimizer's step cover all blocks."""
    weight = nn.Parameter(torch.randn(count, IN + 1, out, device=x.device) * 0.05)
    optimizer = torch.optim.SGD([weight], lr=1e-6)

    def way() -> None:
        forward(torch.cat([x, x.new_ones(len(x), 1)], 1), weight).relu().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return way


def ways(count: int, size: int, out: int, device: str) -> dict[str, Callable]:
    """All ways that fit into memory."""
    x = torch.randn(size, IN, device=device, requires_grad=True)
    actions = torch.randint(count, (size,))
    on_device = actions.to(device)
    rows = torch.arange(size, device=device)

    def gathered(x: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(x.unsqueeze(1), weight[on_device]).squeeze(1)

    def dense(x: Tensor, weight: Tensor) -> Tensor:
        return torch.matmul(x, weight)[on_device, rows]

    def grouped(x: Tensor, weight: Tensor) -> Tensor:
        order = torch.argsort(on_device, stable=True)
        ends = torch.bincount(on_device, minlength=count).cumsum(0).int()
        y = functional.grouped_mm(x[order, :-1].contiguous(), weight[:, :-1].contiguous(), offs=ends)
        return torch.empty_like(y).index_copy(0, order, y)

    host_only = () if device == "cpu" else (dispatch._CompiledLinear,)
    found = {name: ours(way, count, out, x, actions) for way, name in OURS.items() if way not in host_only}
    if size * IN * out <= LARGEST:
        found["gathered weights"] = stacked(gathered, count, out, x)
    if count * size * out <= LARGEST:
        found["dense, then select"] = stacked(dense, count, out, x)
    if hasattr(functional, "grouped_mm") and out % 8 == 0:  # it wants rows of a multiple of 16 bytes
        found["grouped_mm, without bias"] = stacked(grouped, count, out, x)
    return found


def run(options: Options) -> list[Table]:
    """Milliseconds of forward, backward and SGD step; the fastest way of each row is named."""
    tables = []
    names = (
        *OURS.values(),
        "gathered weights",
        "dense, then select",
        "grouped_mm, without bias",
    )
    for out in (128, 5):
        table = Table(f"forward, backward and SGD of one layer {IN} -> {out}, ms, float32, routes drawn evenly")
        for count in (5, 20, 100) if options.quick else (5, 20, 100, 1000):
            for size in (16, 256) if options.quick else (16, 64, 256, 1024, 4096):
                times = in_turns(ways(count, size, out, options.device), options)
                row: dict[str, object] = {"blocks": count, "batch": size}
                row |= {name: milliseconds(times[name]) if name in times else "-" for name in names}
                row["fastest"] = min(times, key=lambda name: milliseconds(times[name]))
                row["chosen"] = chosen(count, size, out, options.device)
                table.rows.append(row)
        tables.append(table)
    return tables


def chosen(count: int, size: int, out: int, device: str) -> str:
    """The way that our rule takes for such a batch."""
    route = Route.of(torch.randint(count, (size,)), count, torch.device("cpu"))
    return OURS[dispatch.fastest_way(torch.empty(0, device=device), route, torch.empty(IN + 1, out))]
