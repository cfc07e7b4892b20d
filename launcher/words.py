"""Numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime


def number(value: float | None) -> str:
    """Three digits, and thousands in groups; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share of 1 with one decimal."""
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.1f}%"


def duration(seconds: float | None) -> str:
    """Seconds as a reader says them: 21.4 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def size(count: float | None) -> str:
    """Bytes in decimal units: 3.19 MB."""
    if count is None:
        return "-"
    for unit, of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= of:
            return f"{count / of:.3g} {unit}"
    return f"{count:.0f} B"


def moment(unix: float) -> str:
    """A time in UTC, to the minute."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ranges(numbers: Iterable[int], most: int = 8) -> str:
    """Whole numbers with runs of them joined: 1-3, 7; beyond `most` parts how many are left."""
    parts: list[tuple[int, int]] = []
    for n in sorted(set(numbers)):
        if parts and n == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], n)
        else:
            parts.append((n, n))
    return spans(parts, most)


def spans(parts: Sequence[tuple[int, int]], most: int = 8) -> str:
    """The same of the first and last number of each run."""
    words = [str(first) if first == last else f"{first}-{last}" for first, last in parts[:most]]
    return ", ".join(words) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def named(unit: str, numbers: Iterable[int]) -> str:
    """The unit and the numbers: round 3, rounds 3-7, 9."""
    found = set(numbers)
    return f"{unit}{'' if len(found) == 1 else 's'} {ranges(found)}"


def shortened(name: str, most: int = 16) -> str:
    """A name of at most so many characters; dots stand for the rest."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def count(number: int, unit: str) -> str:
    """So many of a unit: 1 client, 2 clients."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
