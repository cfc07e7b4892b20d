"""One finding: a claim, what was measured of it, and the criterion that makes it seen or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.telemetry.history import Array
from launcher.study.measure import Measure
from launcher.words import number

NEAR = 1.5  # factor within which two values count as near each other
SLOPE = 0.25  # distance from 1 within which raw lambda counts as following 1/s
RISE = 0.1  # share by which a loss must rise to count
OVERSHOOT = 2.0  # a bound of mean losses may be passed by this: B of single steps scatters
SEEDS = 2  # pairs of runs below which a difference in accuracy says nothing
EXPLODES = 10.0  # growth of lambda that counts as an explosion: s itself falls about tenfold


@dataclass(frozen=True)
class Finding:
    """A claim, what was measured of it, and the verdict."""

    name: str
    title: str
    expected: str
    measured: tuple[Measure, ...]
    criterion: str
    seen: bool | None  # None: a run that it needs is missing
    told: str  # what happened, in a sentence with the numbers

    @property
    def verdict(self) -> str:
        """Whether the claim was seen, in words."""
        return {True: "seen", False: "not seen", None: "no data"}[self.seen]


def within(value: Measure, low: float, high: float = np.inf) -> bool | None:
    """Whether the median lies there; None if it is not known, as in all of these."""
    return None if value.median is None else low <= value.median <= high


def near(value: Measure) -> bool | None:
    """Whether the median is within a factor NEAR of 1."""
    return within(value, 1 / NEAR, NEAR)


def beyond(value: Measure, other: Measure, times: float) -> bool | None:
    """Whether a median is at least so many times another."""
    if value.median is None or other.median is None:
        return None
    return value.median >= times * other.median


def both(*parts: bool | None) -> bool | None:
    """All of them; None if one is not known."""
    return None if None in parts else all(parts)


def show(value: Measure) -> str:
    """The median as a reader wants it."""
    return number(value.median)


def points(values: Array) -> str:
    """Differences of accuracy, one a seed."""
    words = [f"{100 * v:+.1f}" for v in values]
    return f"{', '.join(words)} points" if words else "-"
