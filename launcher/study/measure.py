"""What is measured of runs: ratios and slopes, a number for each client of each run, then medians.

A version is the histories of its completed runs, by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.telemetry.history import Array, History

Version = Mapping[int, History]
Versions = Mapping[str, Version]

ENSEMBLES = ("feature_ensemble", "iffi", "output_ensemble")
WARM_UP = 0.3  # share of the rounds in which lambda still comes from its start


def last(version: Version, field: str) -> Array:
    """The field in the last round, for each client of each run."""
    return _all(run.per_client(field)[1][-1] for run in version.values())


def last_over_first(version: Version, field: str) -> Array:
    """Last round over first round."""
    return _all(v[-1] / v[0] for v in _values(version, field))


def last_over_settled(version: Version, field: str) -> Array:
    """Last round over the first one after the warm-up."""
    return _all(v[-1] / v[warm(len(v))] for v in _values(version, field))


def over_equilibrium(version: Version) -> Array:
    """Raw lambda over its closed form in the last round."""
    fields = (_values(version, f"lambda_{kind}") for kind in ("raw", "equilibrium"))
    return _all(raw[-1] / rest[-1] for raw, rest in zip(*fields, strict=True))


def largest(version: Version, field: str, first: int = 0) -> float:
    """The largest value of any client of any run from round `first` on; NaN without runs."""
    values = _all(v[first:].ravel() for v in _values(version, field))
    return float(np.nanmax(values)) if values.size else np.nan


def slope(version: Version, field: str) -> Array:
    """Slope of log field over log 1/s after the warm-up, for each client: 1 = it follows 1/s."""
    return _all(_slopes(run, run.per_client(field)[1]) for run in version.values())


def slope_without_losses(version: Version) -> Array:
    """The same of raw lambda times A/B: that of 1/s alone."""

    def without(run: History) -> Array:
        names = ("lambda_raw", "align_loss", "base_loss")
        raw, align, base = (run.per_client(name)[1] for name in names)
        return raw * align / base

    return _all(_slopes(run, without(run)) for run in version.values())


def _slopes(run: History, values: Array) -> Array:
    """Least-squares slope of each client's log values [R, K] over its log 1/s."""
    start = warm(len(values))
    x, y = -np.log(run.per_client("annealing_factor")[1][start:]), np.log(values[start:])
    x, y = x - x.mean(0), y - y.mean(0)
    spread = (x**2).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):  # a constant s has no slope: NaN
        result: Array = (x * y).sum(0) / spread
    return result


def ratio(version: Version, other: Version, field: str) -> Array:
    """The field of a version over another's in the last round: same seed, same client."""
    return _all(
        version[seed].per_client(field)[1][-1] / other[seed].per_client(field)[1][-1]
        for seed in version
        if seed in other
    )


def accuracy(version: Version, readout: str) -> dict[int, float]:
    """Accuracy after the last round, by seed."""
    values = {seed: run.accuracy(readout)[1] for seed, run in version.items()}
    return {seed: float(v[-1]) for seed, v in values.items() if len(v)}


def paired(version: Version, other: Version, readout: str) -> dict[int, float]:
    """Accuracy of a version above another's, by seed."""
    own, base = accuracy(version, readout), accuracy(other, readout)
    return {seed: own[seed] - base[seed] for seed in own if seed in base}


def warm(rounds: int) -> int:
    """The first round that counts as after the warm-up."""
    return min(int(rounds * WARM_UP), max(rounds - 2, 0))


def _values(version: Version, field: str) -> list[Array]:
    return [run.per_client(field)[1] for run in version.values()]


def _all(parts: Iterator[Array] | Sequence[Array]) -> Array:
    """One flat array of what is known."""
    values = np.concatenate([np.empty(0), *parts])
    known: Array = values[np.isfinite(values)]
    return known


@dataclass(frozen=True)
class Measure:
    """A measured quantity: its median, and the range that half of the values lie in."""

    what: str
    median: float | None
    low: float | None = None  # quartiles
    high: float | None = None
    count: int = 0

    @classmethod
    def of(cls, what: str, values: Array) -> Measure:
        """From one value for each client of each run."""
        if not values.size:
            return cls(what, None)
        low, middle, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
        return cls(what, middle, low, high, len(values))

    @classmethod
    def single(cls, what: str, value: float) -> Measure:
        """A measure of one number, without a spread."""
        return cls(what, float(value), count=1) if np.isfinite(value) else cls(what, None)
