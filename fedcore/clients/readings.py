"""What a client reports of a round: a row of numbers, collected without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.clients.layout import Tensors
from fedcore.clients.state import ClientState, sent
from fedcore.clients.step import StepReadings

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
        """One step of the first k clients; of all of them if it is the first."""
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
        """What `tensors` gave."""
        if not tensors:
            return cls()
        totals = cls(tensors["sums"], tensors["last"])
        totals.steps = tensors["steps"].cpu()
        return totals

    def record(self, state: ClientState) -> Tensor:
        """What `readings` needs of these clients once the round is over: [K, 4 + 2 (6 + n)]."""
        assert self.sums is not None  # a client has at least one step
        assert self.last is not None
        steps = sent(self.steps, self.sums.device)[:, None].double()
        own = [steps, largest(state)[:, None], state.log_var.double()]
        return torch.cat([*own, self.sums, self.last], 1)


def record_width(terms: int) -> int:
    """Columns of a record, for so many loss terms."""
    return 4 + 2 * (6 + terms)


def readings(records: Tensor, algorithm: Algorithm, limit: Tensor) -> Tensor:
    """[K, len(READINGS) + n] float64 in the order of READINGS, then the terms; of records.

    For all clients of a round at once: it is a score of small operations. limit []: a client with a
    parameter above it counts as not finite.
    """
    width = 6 + len(algorithm.terms)
    steps, largest, log_var = records[:, :1], records[:, 1], records[:, 2:4]
    sums, last = torch.split(records[:, 4:], width, dim=1)
    mean = sums / steps
    _, _, raw, effective, norm, rest = last[:, :6].unbind(1)
    sound = torch.isfinite(mean[:, 0]) & torch.isfinite(mean[:, 1]) & torch.isfinite(norm)
    sound &= largest <= limit
    log_variances = algorithm.rule.form.log_variances(log_var).unbind(1)
    columns = [mean[:, 0], mean[:, 1], raw, effective, *log_variances, norm, rest, sound.double()]
    return torch.cat([torch.stack(columns, 1), mean[:, 6:]], 1)


def largest(state: ClientState) -> Tensor:
    """Largest magnitude [K] of each client's parameters; not finite if one of these, or one of the
    batch statistics, is not."""
    values = state.weights  # aminmax and the infinity norm are twenty times slower over an axis
    found = torch.maximum(values.amax(1), -values.amin(1)).double()
    for buffer in state.buffers.values():
        if buffer.is_floating_point():
            found = found + 0 * buffer.flatten(1).sum(1).double()
    return found
