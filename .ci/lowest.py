"""Prints pip constraints that pin each dependency to the lowest version that pyproject.toml allows.

python .ci/lowest.py [EXTRA ...]   # the dependencies and those of the extras

Read from pyproject.toml at each call, so that bounds and pins cannot drift apart. What is not named there (the
dependencies of dependencies) stays for pip to choose. Needs Python 3.11.
"""

import re
import sys
from pathlib import Path

import tomllib

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*(?P<versions>[^;]*)")


def lowest(requirements: list[str], itself: str) -> dict[str, str]:
    """Name -> lowest version of each requirement, the project's own extras left out."""
    found = {}
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        assert match, requirement
        if match["name"] == itself:
            continue
        bounds = re.findall(r">=\s*([^,\s]+)", match["versions"])
        if len(bounds) != 1:
            raise SystemExit(f"pyproject.toml: {requirement!r} needs one lower bound, like 'name>=1.0'.")
        found[match["name"]] = bounds[0]
    return found


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in sys.argv[1:] for line in extras[extra])]
    for name, version in sorted(lowest(wanted, project["name"]).items()):
        print(f"{name}=={version}")
