"""Small parts of the report's page, as HTML."""

import html
from collections.abc import Iterable

from matplotlib.figure import Figure

from routing_lightning.plots import to_svg


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign; none for what rounds to 0."""
    points = round(100 * share, 1)
    return f"{points:+.1f}" if points else "0.0"


def text(value: object) -> str:
    """A value as text of a page."""
    return html.escape(str(value))


def count(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f}"


def figure(drawn: Figure, caption: str, label: str) -> str:
    """A figure as SVG, with its caption, which is HTML already, and a label for those who cannot see it."""
    # Text of this size is still legible; a narrower screen scrolls.
    attributes = f'role="img" aria-label="{text(label)}" style="min-width:{drawn.get_figwidth() * 70:.0f}px"'
    svg = to_svg(drawn).replace("<svg ", f"<svg {attributes} ", 1)
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str) -> str:
    """A table of cells that are HTML already; the first cell of a row is its header."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = ""
    for first, *others in rows:
        cells = "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in others)
        body += f'<tr><th scope="row">{first.replace("_", "_<wbr>")}</th>{cells}</tr>'
    # The caption stands outside of what scrolls, so that it wraps; a region that scrolls is reachable by keyboard.
    return (
        f'<p class="caption">{caption}</p><div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )
