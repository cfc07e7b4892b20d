"""One run's metrics.jsonl as arrays: what plots and reports start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcore.errors import ConfigError
from fedcore.telemetry.events import fits
from fedcore.telemetry.jsonl import last_of_each, read_events

Array = npt.NDArray[np.float64]


def _is_whole(record: dict[str, Any], kind: str) -> bool:
    """Whether a record is of that kind and has what places it; others are passed over."""
    needs = {"client": ("round", "client"), "round": ("round", "accuracy")}[kind]
    return record.get("event") == kind and all(key in record for key in needs)


@dataclass(frozen=True)
class History:
    """The client and round records of one run, by round; R rounds, K clients."""

    name: str
    clients: list[dict[str, Any]]
    rounds: list[dict[str, Any]]

    @classmethod
    def of(cls, run_dir: Path) -> History:
        """From a run directory; `ConfigError` if no round is recorded there."""
        path = run_dir / "metrics.jsonl"
        if not path.is_file():
            raise ConfigError("RUN", str(run_dir), "a run directory with metrics.jsonl", "runs/...")
        records = last_of_each(filter(fits, read_events(path)))
        found = cls.of_records(run_dir.resolve().name, records)
        if not found.clients:
            raise ConfigError("RUN", str(run_dir), "a run with a finished round", "again later")
        return found

    @classmethod
    def of_records(cls, name: str, records: Sequence[dict[str, Any]]) -> History:
        """From what is left of a file by `last_of_each`; there may be no round among it."""
        clients, rounds = (
            sorted((r for r in records if _is_whole(r, kind)), key=lambda r: int(r["round"]))
            for kind in ("client", "round")
        )
        return cls(name, clients, rounds)

    def per_client(self, field: str) -> tuple[Array, Array]:
        """Rounds [R], counted from 1, and values [R, K], clients in id order; NaN = none."""
        return self._table(lambda record: record.get(field))

    def per_term(self, name: str) -> tuple[Array, Array]:
        """Rounds [R], counted from 1, and values [R, K] of one loss term; NaN = none."""
        return self._table(lambda record: (record.get("terms") or {}).get(name))

    def terms(self) -> list[str]:
        """Names of the loss terms, in the order of the file."""
        return list(dict.fromkeys(name for r in self.clients for name in r.get("terms") or {}))

    def _table(self, of: Callable[[dict[str, Any]], float | None]) -> tuple[Array, Array]:
        rounds, values = client_table(self.clients, "round", of)
        return rounds + 1, values

    def per_round(self, field: str) -> tuple[Array, Array]:
        """Rounds [R], counted from 1, and their values [R]."""
        return _columns([(r["round"] + 1, r.get(field)) for r in self.rounds])

    def accuracy(self, readout: str) -> tuple[Array, Array]:
        """Evaluated rounds, counted from 1, and the accuracy of a read-out in each."""
        return _columns([(r["round"] + 1, r["accuracy"].get(readout)) for r in self.rounds])

    def readouts(self) -> list[str]:
        """Names of the read-outs, in the order of the file."""
        return list(dict.fromkeys(name for r in self.rounds for name in r["accuracy"]))


def client_table(
    records: Sequence[dict[str, Any]], place: str, of: Callable[[dict[str, Any]], float | None]
) -> tuple[Array, Array]:
    """Rounds or steps [R] of the clients' records and their values [R, K], by id; NaN = none.

    place: the key that says when.
    """
    row = {r: i for i, r in enumerate(sorted({r[place] for r in records}))}
    column = {k: i for i, k in enumerate(sorted({r["client"] for r in records}))}
    values = np.full((len(row), len(column)), np.nan)
    for record in records:
        value = of(record)
        if value is not None:
            values[row[record[place]], column[record["client"]]] = value
    return np.array(list(row), dtype=np.float64), values


def _columns(pairs: Sequence[tuple[int, float | None]]) -> tuple[Array, Array]:
    known = [pair for pair in pairs if pair[1] is not None]
    table = np.array(known, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def median(values: Array) -> Array:
    """Median [R] over the clients that have a value [R, K]; NaN where none has."""
    return _over_known(values, np.nanmedian)


def span(values: Array) -> tuple[Array, Array]:
    """Smallest and largest [R] over the clients that have a value [R, K]; NaN where none has."""
    return _over_known(values, np.nanmin), _over_known(values, np.nanmax)


def quantiles(values: Array, shares: Sequence[float]) -> Array:
    """Quantiles [R, Q] over the clients that have a value [R, K]; NaN where none has."""
    return np.stack([_over_known(values, partial(np.nanquantile, q=q)) for q in shares], axis=1)


def _over_known(values: Array, function: Any) -> Array:
    # numpy warns of a row that is all NaN: leave it out
    known = ~np.isnan(values).all(axis=1)
    result = np.full(len(values), np.nan)
    if known.any():
        result[known] = function(values[known], axis=1)
    return result
