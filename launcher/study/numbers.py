"""The table of the study: what each version came to in its last round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcore.telemetry.history import Array
from launcher.compare_tables import percent
from launcher.study import measure
from launcher.study.measure import Version, Versions
from launcher.words import number

FIELDS = {
    "raw λ": "lambda_raw",
    "equilibrium": "lambda_equilibrium",
    "effective λ": "lambda_effective",
    "B": "base_loss",
    "A": "align_loss",
}


def facts(version: Version) -> dict[str, Any]:
    """All numbers of one version as JSON values."""
    last = {name: measure.last(version, field) for name, field in FIELDS.items()}
    spread = [float(run.per_round("prototype_std")[1][-1]) for run in version.values()]
    return {
        "seeds": sorted(version),
        "last round": {name: _quantiles(values) for name, values in last.items()},
        "largest raw λ": _finite(measure.largest(version, "lambda_raw")),
        "prototype spread": statistics.fmean(spread) if spread else None,
        "accuracy": {name: measure.accuracy(version, name) for name in _readouts(version)},
    }


def lambda_rows(versions: Versions) -> list[dict[str, str]]:
    """Lambda, losses and prototypes as text: a row a version, by column title."""
    return [_lambda_row(name, facts(version)) for name, version in versions.items()]


def _lambda_row(name: str, found: Mapping[str, Any]) -> dict[str, str]:
    return {
        "version": name,
        "seeds": str(len(found["seeds"])),
        **{title: number(q and q["median"]) for title, q in found["last round"].items()},
        "largest raw λ": number(found["largest raw λ"]),
        "prototype spread": number(found["prototype spread"]),
    }


def accuracy_rows(versions: Versions) -> list[dict[str, str]]:
    """Accuracy as text: a row a version, by column title; every row has every column."""
    names = list(dict.fromkeys(n for version in versions.values() for n in _readouts(version)))
    return [
        {"version": label}
        | {n.replace("_", " "): percent(measure.accuracy(version, n)) for n in names}
        for label, version in versions.items()
    ]


def _readouts(version: Version) -> list[str]:
    return list(dict.fromkeys(name for run in version.values() for name in run.readouts()))


def _quantiles(values: Array) -> dict[str, float] | None:
    if not values.size:
        return None
    low, middle, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"quartile": low, "median": middle, "third_quartile": high}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
