"""The memory setting, in fresh processes, since it lasts as long as a process."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from routing_lightning.allocator import SWITCH

# page faults of writing to 8 MiB that were freed just before; 2048 pages
SCRIPT = """
import resource, sys
from routing_lightning.allocator import keep_freed_memory
print(keep_freed_memory())
import numpy as np
for turn in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array = np.ones(2**20)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del array
print(faults)
"""


def run(**environment: str) -> tuple[str, int]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k not in ("LD_PRELOAD", SWITCH)}
    inherited["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=inherited | environment, capture_output=True, text=True, check=True
    )
    answer, faults = done.stdout.split()
    return answer, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_serves_again_without_a_page_fault():
    answer, faults = run()
    assert answer == "True" and faults < 100


@pytest.mark.parametrize("environment", [{SWITCH: "0"}, {"MALLOC_ARENA_MAX": "2"}])
def test_can_be_switched_off_and_respects_the_users_settings(environment):
    assert run(**environment)[0] == "False"
