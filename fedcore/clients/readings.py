"""What a client reports of a round: a row of numbers, collected without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.clients.optim import over
from fedcore.clients.state import ClientState, Tensors
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


class Totals:
    """Readings of one local epoch: means of the losses, the last step's lambda. No sync in here."""

    def __init__(self) -> None:
        self.steps: Tensor | None = None  # [K] steps so far

    def add(self, step: StepReadings, active: Tensor) -> None:
        on = active.to(step.terms.dtype)
        if self.steps is None:
            self.steps, self.terms = on, step.terms * on[:, None]
            self.base, self.align, self.last = step.base * on, step.align * on, step
            return
        self.steps = self.steps + on
        self.terms = self.terms + step.terms * on[:, None]
        self.base, self.align = self.base + step.base * on, self.align + step.align * on
        keep = [
            torch.where(over(active, new), new, old)
            for new, old in zip(step, self.last, strict=True)
        ]
        self.last = StepReadings(*keep)

    def tensors(self) -> Tensors:
        """All of it by name, each [K, ...]; nothing before the first step."""
        if self.steps is None:
            return {}
        sums = {"steps": self.steps, "terms": self.terms, "base": self.base, "align": self.align}
        return sums | {f"last/{k}": v for k, v in self.last._asdict().items()}

    @classmethod
    def of(cls, tensors: Tensors) -> Totals:
        """What `tensors` gave."""
        totals = cls()
        if tensors:
            totals.steps, totals.terms = tensors["steps"], tensors["terms"]
            totals.base, totals.align = tensors["base"], tensors["align"]
            totals.last = StepReadings(*(tensors[f"last/{k}"] for k in StepReadings._fields))
        return totals

    def readings(self, state: ClientState, algorithm: Algorithm) -> Tensor:
        """[K, len(READINGS) + n] float64 in the order of READINGS, then the terms."""
        assert self.steps is not None  # a client with samples has at least one step
        finite = torch.isfinite(self.base) & torch.isfinite(self.last.norm)
        for tensor in state.model_tensors().values():
            if tensor.is_floating_point():
                finite = finite & torch.isfinite(tensor).flatten(1).all(1)
        steps, last = self.steps, self.last
        columns = [
            self.base / steps,
            self.align / steps,
            last.raw,
            last.effective,
            *algorithm.rule.form.log_variances(state.log_var).unbind(1),
            last.norm,
            last.rest,
            finite.to(last.norm.dtype),
        ]
        wide = [column.double() for column in columns]
        return torch.cat([torch.stack(wide, 1), (self.terms / steps[:, None]).double()], 1)
