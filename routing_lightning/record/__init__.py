"""What a run leaves behind of its routes and its tests: the raw numbers behind all figures, and their files."""

from routing_lightning.record.route_record import (
    FILE_NAME,
    POOLED,
    RouteRecord,
    Trial,
    action_labels,
    claim_file,
    in_use,
    least_use,
    shares,
    usage,
    write_whole,
)
from routing_lightning.record.tested import TEST_FILE, TestedTask, load_test, save_test, sum_up

__all__ = [
    "FILE_NAME",
    "POOLED",
    "TEST_FILE",
    "RouteRecord",
    "TestedTask",
    "Trial",
    "action_labels",
    "claim_file",
    "in_use",
    "least_use",
    "load_test",
    "save_test",
    "shares",
    "sum_up",
    "usage",
    "write_whole",
]
