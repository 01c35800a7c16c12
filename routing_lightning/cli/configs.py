"""The configs that there are, each with what it is."""

from pathlib import Path

KINDS = {"": "complete jobs", "data": "data", "methods": "methods", "networks": "networks", "trainer": "processes"}
"""Folders of configs, and what is in them."""


def config_folder() -> Path | None:
    """The folder ``configs``: in the working directory, else in the checkout; None if there is none."""
    for folder in (Path("configs"), Path(__file__).parents[2] / "configs"):
        if folder.is_dir():
            return folder
    return None


def first_comment(path: Path) -> str:
    """The first line of a config, which says what it is; empty if that is no comment."""
    with path.open() as file:
        line = file.readline()
    return line.removeprefix("#").strip() if line.startswith("#") else ""


def configs_by_kind(folder: Path) -> dict[str, list[Path]]:
    """The configs in each folder of :data:`KINDS`, in order; kinds of which there is none are left out."""
    found = {kind: sorted((folder / kind).glob("*.yaml")) for kind in KINDS}
    return {kind: paths for kind, paths in found.items() if paths}
