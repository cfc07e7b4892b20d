"""What keeps a learned lambda finite: guards added to the sigma loss, and bounded forms of lambda.

l = log sigma^2_local, a = log sigma^2_align. Elementwise over any leading shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Guard(Protocol):
    """A penalty on the sigma loss, and where lambda rests under it."""

    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        """What is added to the sigma loss, [...], at log-variances l and a [...]."""

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        """Raw lambda [...] at which the guarded sigma loss rests while losses stay at B and A.

        dA: d A, with d = s where s(p) scales the align loss, else 1.
        k: s where it scales log sigma^2_align, else 1. All [...].
        """


@dataclass(frozen=True)
class NoGuard:
    """No penalty: lambda* = k B / (d A)."""

    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        return torch.zeros_like(local)

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        return k * B / dA


@dataclass(frozen=True)
class InverseVariance:
    """Penalty gamma e^-a, so lambda* = k B / (d A + 2 gamma): bounded by B / (2 gamma) (V13)."""

    gamma: float

    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        return self.gamma * torch.exp(-align)

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        return k * B / (dA + 2 * self.gamma)


@dataclass(frozen=True)
class Hinge:
    """Penalty gamma relu(raw - lambda_max): none below lambda_max, a pull back above it (V14)."""

    gamma: float
    lambda_max: float

    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        return self.gamma * torch.relu(torch.exp(local - align) - self.lambda_max)

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        """k B / d A while below lambda_max; above, the root r of the two rest conditions
        B/u = 1 + 2 gamma r and dA/v = k - 2 gamma r with r = u/v, never below the hinge's kink."""
        free = k * B / dA
        b = dA + 2 * self.gamma * B
        # the stable form of the quadratic's positive root: no cancellation for a small gamma
        root = 2 * k * B / (b + torch.sqrt(b * b + 8 * self.gamma * dA * B * k))
        return torch.where(free <= self.lambda_max, free, root.clamp(min=self.lambda_max))


class Form(Protocol):
    """How the two learned numbers of a client, [..., 2], stand for (l, a)."""

    def start(self, lam: Tensor) -> Tensor:
        """The numbers [..., 2] for lambda0 [...]: sigma^2_local = lambda0, sigma^2_align = 1."""

    def log_variances(self, numbers: Tensor) -> Tensor:
        """The log-variances (l, a) [..., 2] that the numbers [..., 2] stand for."""

    def rest(self, raw: Tensor) -> Tensor:
        """Raw lambda [...] at rest in this form, if it rests at `raw` [...] without bounds."""


@dataclass(frozen=True)
class LogVariances:
    """The two numbers are l and a themselves (Kendall et al. 2018)."""

    def start(self, lam: Tensor) -> Tensor:
        return torch.stack([torch.log(lam), torch.zeros_like(lam)], dim=-1)

    def log_variances(self, numbers: Tensor) -> Tensor:
        return numbers

    def rest(self, raw: Tensor) -> Tensor:
        return raw


@dataclass(frozen=True)
class Bounded:
    """Numbers (l, theta) with raw lambda = lambda_max sigmoid(theta): it cannot explode.

    The sigma loss is the same function of l and a = l - ln(raw lambda), so an equilibrium below
    lambda_max stays where it was; one above it becomes lambda_max.
    """

    lambda_max: float

    def start(self, lam: Tensor) -> Tensor:
        return torch.stack([torch.log(lam), torch.logit(lam / self.lambda_max)], dim=-1)

    def log_variances(self, numbers: Tensor) -> Tensor:
        local, theta = numbers[..., 0], numbers[..., 1]
        align = local - math.log(self.lambda_max) - F.logsigmoid(theta)
        return torch.stack([local, align], dim=-1)

    def rest(self, raw: Tensor) -> Tensor:
        return raw.clamp(max=self.lambda_max)
