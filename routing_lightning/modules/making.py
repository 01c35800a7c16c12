"""Making a network from the sizes of the data, with mistakes told in a sentence."""

from collections.abc import Callable
from typing import Any

from torch import nn

from routing_lightning.errors import UsageError


def made(maker: Callable[..., nn.Module], sizes: dict[str, Any], what: str) -> nn.Module:
    """The module that a maker makes of sizes.

    Args:
        maker: a class or function that takes the sizes by position.
        sizes: the sizes, by what they are, in order.
        what: what it has to be, for the error.

    Raises:
        UsageError: if it cannot be made of these sizes.
    """
    try:
        module = maker(*sizes.values())
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        name = f" {maker.__name__}" if isinstance(maker, type) else ""  # the command line hands over a function
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        given = ", ".join(f"{key} {list(value) if isinstance(value, tuple) else value}" for key, value in sizes.items())
        raise UsageError(f"the network{name} cannot be made of {given} ({reason}); give {what}.") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"the network's maker gives a {type(module).__name__}; give {what}.")
    return module
