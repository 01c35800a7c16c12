"""Fonts that have the characters of the names of tasks and classes."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from matplotlib import font_manager

# Beside matplotlib's own font, which has Latin, Greek, Cyrillic, Arabic and Hebrew letters: those with which systems
# show Chinese, Japanese, Korean, Indian and Thai names.
_OTHERS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "SimHei",
    "Noto Sans Devanagari",
    "Nirmala UI",
    "Noto Sans Thai",
    "Leelawadee UI",
    "Symbola",
)
_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_told: set[str] = set()


@cache
def families() -> tuple[str, ...]:
    """Matplotlib's own font and those of other scripts that are installed, in the order in which they are asked."""
    installed = set(font_manager.get_font_names())
    return ("DejaVu Sans", *(name for name in _OTHERS if name in installed))


@contextmanager
def missing_characters(tell: bool) -> Iterator[None]:
    """Within it, one sentence for all characters that no font has, once per process; Matplotlib warns of each.

    Args:
        tell: whether the sentence is said: not where the text stays text, and the reader's fonts count.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    missing = []
    for warning in caught:
        if found := _MISSING.match(str(warning.message)):
            missing.append(chr(int(found[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if tell and missing and not _told:
        few = "".join(dict.fromkeys(missing))[:8]
        warnings.warn(
            f"no font that figures use has {few} …; boxes stand for them: install a font such as Noto Sans "
            "CJK (the report's drawings take the browser's fonts).",
            stacklevel=3,
        )
        _told.add(few)
