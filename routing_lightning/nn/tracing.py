"""Tracing, which would take the route of the example for that of every batch."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from routing_lightning.errors import UsageError

WAY_OUT = (
    "take the network of one task: `python train.py export CHECKPOINT --out DIR`, or specialise(task) of the "
    "RoutingNetwork, which is an ordinary network"
)

Function = TypeVar("Function", bound=Callable[..., Any])


def on_host(function: Function) -> Function:
    """Keeps a function out of what ``torch.compile`` compiles, since it works on the host, anew for each batch.

    The compiler would take its NumPy for torch, compile it again for each route, and fail where inference mode begins.
    """
    return torch.compiler.disable(function)  # type: ignore[no-any-return]


# Asked itself while compiling: torch 2.11 answers "exporting" to all that it compiles.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_traced() -> bool:
    """Whether what is called now is recorded by ``torch.jit.trace``, ``torch.export`` or ``torch.fx``.

    ``torch.compile`` is none of them: it guards what it takes for granted.
    """
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")  # costly to import; unused where it is not
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return bool(traced or torch.compiler.is_exporting() or (proxies and proxies.get_proxy_mode() is not None))


def refuse_tracing(part: object) -> None:
    """Refuses to run where the operations of one example are recorded, whose route is among them.

    The recorders' own check, on the same example, would find nothing.

    Raises:
        UsageError: if this call is recorded.
    """
    if is_traced():
        raise UsageError(
            f"{type(part).__name__} cannot be traced or exported as a whole, since the route of the example would be "
            f"fixed for every batch; {WAY_OUT}."
        )
