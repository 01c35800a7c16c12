"""MkDocs hook: pages that are files elsewhere in the repository (README, data/README.md, ...), links adapted.

Each of these files is written for its place in the repository. The site has them as they stand; a link in them to
``docs/x.md`` is one to ``x.md`` there, and likewise for the files that are pages themselves. MkDocs then checks all of
them as it does for its own pages.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {  # page of the site: file in the repository
    "index.md": "README.md",
    "data.md": "data/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages."""
    from mkdocs.structure.files import File

    for page, path in PAGES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=adapted(text, path)))
    return files


def on_serve(server: Any, **_: Any) -> None:
    """Lets `mkdocs serve` notice changes of these files."""
    for path in PAGES.values():
        server.watch(str(ROOT / path))


def adapted(text: str, path: str) -> str:
    """The text with links that lead from the site's root, in place of the folder of the file."""

    def to_page(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        pages = {file: page for page, file in PAGES.items()}
        return pages.get(target, target.removeprefix("docs/"))

    return LINK.sub(to_page, text)
