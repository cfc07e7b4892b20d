"""What a client reports of a round: a row of numbers, collected without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.batch import sent
from fedcore.clients.layout import Tensors
from fedcore.clients.state import ClientState
from fedcore.clients.step import StepReadings

Limits = Sequence[Tensor] | None
"""Of the parameters, and of each batch statistic, each []; above it a sum of models runs over."""

READINGS = (
    "base",
    "align",
    "lambda_raw",
    "lambda_effective",
    "log_var_local",
    "log_var_align",
    "norm",
    "rest",
    "finite",
)
"""Columns of that row, before its n loss terms."""


def columns_of(readings: Tensor) -> dict[str, Tensor]:
    """READINGS by name, each [K], of [K, len(READINGS) + n]."""
    return dict(zip(READINGS, readings.unbind(1), strict=False))


class Totals:
    """Readings of one local epoch: sums, and those of the last step. No sync in here."""

    def __init__(self, sums: Tensor | None = None, last: Tensor | None = None) -> None:
        self.sums, self.last = sums, last  # [K, 6 + n] float64; None before the first step
        self.steps = torch.zeros(0 if sums is None else len(sums), dtype=torch.int64)  # [K]

    def add(self, step: StepReadings) -> None:
        """Add one step of the lane's first k clients; of all of them if it is the first step."""
        terms, *rest = step
        row = torch.cat([torch.stack([x.double() for x in rest], 1), terms.double()], 1)
        if self.sums is None or self.last is None:
            self.sums, self.last = row, row.clone()
            self.steps = torch.ones(len(row), dtype=torch.int64)
            return
        self.sums[: len(row)] += row
        self.last[: len(row)] = row
        self.steps[: len(row)] += 1

    def tensors(self) -> Tensors:
        """All of it by name, each [K, ...]; nothing before the first step."""
        if self.sums is None or self.last is None:
            return {}
        return {"sums": self.sums, "last": self.last, "steps": self.steps}

    @classmethod
    def of(cls, tensors: Tensors) -> Totals:
        """The totals whose `tensors` these are."""
        if not tensors:
            return cls()
        totals = cls(tensors["sums"], tensors["last"])
        totals.steps = tensors["steps"].cpu()
        return totals

    def record(self, state: ClientState, limits: Limits = None) -> Tensor:
        """The row of each client from which `readings` are made: [K, `record_width(n)`], float64.

        limits: above which a parameter or batch statistic counts as not finite.
        """
        assert self.sums is not None  # a client has at least one step
        assert self.last is not None
        steps = sent(self.steps, self.sums.device)[:, None].double()
        own = [steps, excess(state, limits)[:, None], state.log_var.double()]
        return torch.cat([*own, self.sums, self.last], 1)


def record_width(terms: int) -> int:
    """Columns of a record with so many loss terms."""
    return 4 + 2 * (6 + terms)


def readings(records: Tensor, algorithm: Algorithm) -> Tensor:
    """What each client reports [K, len(READINGS) + n], float64: READINGS, then n loss terms.

    records [K, `record_width(n)`]: of all clients of a round at once, since it is some twenty small
    operations. A client with a number above its limit counts as not finite.
    """
    width = 6 + len(algorithm.terms)
    steps, excess, log_var = records[:, :1], records[:, 1], records[:, 2:4]
    sums, last = torch.split(records[:, 4:], width, dim=1)
    mean = sums / steps
    _, _, raw, effective, norm, rest = last[:, :6].unbind(1)
    sound = torch.isfinite(mean[:, 0]) & torch.isfinite(mean[:, 1]) & torch.isfinite(norm)
    sound &= excess <= 1
    log_variances = algorithm.rule.form.log_variances(log_var).unbind(1)
    columns = [mean[:, 0], mean[:, 1], raw, effective, *log_variances, norm, rest, sound.double()]
    return torch.cat([torch.stack(columns, 1), mean[:, 6:]], 1)


def excess(state: ClientState, limits: Limits = None) -> Tensor:
    """Largest parameter or batch statistic of each client over its limit [K], float64.

    NaN for a client that has one that is not finite.
    """
    statistics = [v.flatten(1) for v in state.buffers.values() if v.is_floating_point()]
    found: Tensor = torch.zeros(len(state), dtype=torch.float64, device=state.log_var.device)
    for number, values in enumerate([state.weights, *statistics]):
        limit = torch.inf if limits is None else limits[number]
        found = torch.maximum(found, magnitude(values) / limit)  # hands on a nan
    return found


def magnitude(values: Tensor) -> Tensor:
    """Largest magnitude [K] float64 of values [K, n]."""
    # aminmax and the infinity norm are twenty times slower over an axis
    return torch.maximum(values.amax(1), -values.amin(1)).double()
