"""Names of classes, in the order of their labels: short texts that can be shown and stored."""

from __future__ import annotations

from collections.abc import Sequence

MOST_CHARACTERS = 255  # of a name: that of any folder fits
MOST_TOGETHER = 2**22  # characters of all names, which stand in one manifest and one header
JOINERS = "\u200c\u200d"  # no printable characters to Python, and part of words in many languages


def trouble_with(names: Sequence[str], classes: int) -> str | None:
    """Why these cannot be the names of so many classes; None = they can."""
    if len(names) != classes:
        return f"{len(names):,} class names for {classes:,} classes"
    bad = next((label for label, name in enumerate(names) if not _can_be_shown(name)), None)
    if bad is not None:
        shown = repr(names[bad][:40])  # escaped, as it may be anything
        return f"the name of class {bad} is {shown}, of {len(names[bad]):,} characters"
    if (total := sum(map(len, names))) > MOST_TOGETHER:
        return f"class names of {total:,} characters, want at most {MOST_TOGETHER:,}"
    return None


def _can_be_shown(name: str) -> bool:
    fits = bool(name.strip()) and len(name) <= MOST_CHARACTERS
    return fits and all(c.isprintable() or c in JOINERS for c in name)
