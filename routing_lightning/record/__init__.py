"""What a run leaves behind of its routes: the raw numbers behind all figures, and their file."""

from routing_lightning.record.route_record import (
    FILE_NAME,
    POOLED,
    RouteRecord,
    action_labels,
    in_use,
    least_use,
    shares,
    usage,
    write_whole,
)

__all__ = [
    "FILE_NAME",
    "POOLED",
    "RouteRecord",
    "action_labels",
    "in_use",
    "least_use",
    "shares",
    "usage",
    "write_whole",
]
