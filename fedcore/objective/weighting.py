"""LambdaRule: the weight of the alignment loss, all that V4...V14 differ in.

Elementwise over any leading shape. l = log sigma^2_local, a = log sigma^2_align; raw lambda =
exp(l - a). See docs/algorithms.md, section 2, for the formulas and their closed forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedcore.errors import ConfigError
from fedcore.schedule import Clock, Constant, Progress, Schedule

LOG_VAR_LIMIT = 30.0
"""A learned log-variance stays within +-30, so that e^(l-a) is finite in float32. A loss that is
exactly 0 would otherwise pull its log-variance to minus infinity."""


class Slot(Flag):
    """Where s(p) enters."""

    NONE = 0
    WEIGHTS = auto()  # effective lambda = s * raw
    ALIGN = auto()  # sigma loss: 0.5 s e^-a A
    LOG = auto()  # sigma loss: 0.5 s a


class StartRule(Protocol):
    def __call__(self, label_counts: Tensor) -> Tensor:
        """lambda0 [...] of clients with label histograms [..., C]."""


@dataclass(frozen=True)
class Fixed:
    """The same lambda0 for every client; 0 = no alignment."""

    lam: float

    def __call__(self, label_counts: Tensor) -> Tensor:
        return torch.full(label_counts.shape[:-1], self.lam, dtype=torch.float64)


@dataclass(frozen=True)
class FromEntropy:
    """low + (high - low) H / log2 C, H the entropy in bits of the label histogram."""

    low: float
    high: float

    def __call__(self, label_counts: Tensor) -> Tensor:
        counts = label_counts.to(torch.float64)
        share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
        entropy = -torch.special.xlogy(share, share).sum(-1) / math.log(2)
        share_of_most: Tensor = entropy / math.log2(max(counts.shape[-1], 2))
        return self.low + (self.high - self.low) * share_of_most


class Guard(Protocol):
    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        """What is added to the sigma loss at log-variances l and a."""

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        """Raw lambda at which the guarded sigma loss is at rest, for losses held at B and dA."""


@dataclass(frozen=True)
class NoGuard:
    """lambda* = k B / (d A)."""

    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        return torch.zeros_like(local)

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        return k * B / dA


@dataclass(frozen=True)
class InverseVariance:
    """gamma e^-a, so lambda* = k B / (d A + 2 gamma): bounded by B / 2 gamma (V13)."""

    gamma: float

    def penalty(self, local: Tensor, align: Tensor) -> Tensor:
        return self.gamma * torch.exp(-align)

    def rest(self, B: Tensor, dA: Tensor, k: Tensor) -> Tensor:
        return k * B / (dA + 2 * self.gamma)


@dataclass(frozen=True)
class Hinge:
    """gamma relu(raw - lambda_max): nothing below lambda_max, a pull back above it (V14)."""

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


class Weighted(NamedTuple):
    """The loss to differentiate, and the lambda that was in it. Each [...]."""

    loss: Tensor  # weight loss + sigma loss
    raw: Tensor  # sigma^2_local / sigma^2_align
    effective: Tensor  # what multiplied the align loss: the logged value is the used value


@dataclass(frozen=True, kw_only=True)
class LambdaRule:
    """How lambda starts, whether it is learned, and how it is annealed and guarded."""

    start: StartRule = Fixed(0.0)
    learned: bool = False
    anneal: Schedule = Constant()
    slots: Slot = Slot.NONE
    clock: Clock = "epoch"
    guard: Guard = NoGuard()

    def __post_init__(self) -> None:
        if not self.learned and self.slots & (Slot.ALIGN | Slot.LOG):
            raise ConfigError(
                "algorithm.rule.slots",
                [s.name.lower() for s in self.slots if s.name],
                "weights only, since a lambda that is not learned has no sigma loss",
                "algorithm.rule.learned=true, or slots: [weights]",
            )

    def first_log_var(self, label_counts: Tensor) -> Tensor:
        """(l, a) = (ln lambda0, 0) [..., 2] for label histograms [..., C]. Float64."""
        local = torch.log(self.start(label_counts))
        if self.learned:  # a lambda0 of 0 could never be left: keep it inside the range
            local = local.clamp(-LOG_VAR_LIMIT, LOG_VAR_LIMIT)
        return torch.stack([local, torch.zeros_like(local)], dim=-1)

    def factor(self, at: Progress) -> Tensor:
        """s(p) on this rule's clock."""
        return self.anneal(at.on(self.clock))

    def weigh(self, base: Tensor, align: Tensor, log_var: Tensor, at: Progress) -> Weighted:
        """Losses B, A [...] and log-variances [..., 2] to the loss and the lambda used.

        The weight loss sees a detached lambda, the sigma loss sees detached losses: this is the
        only place where the two meet.
        """
        local, other = log_var[..., 0], log_var[..., 1]
        s = self.factor(at)
        raw = torch.exp(local - other).detach()
        effective = raw * s if Slot.WEIGHTS in self.slots else raw
        loss = base + effective * align
        if self.learned:
            loss = loss + self.sigma_loss(base.detach(), align.detach(), local, other, s)
        return Weighted(loss, raw, effective)

    def sigma_loss(self, B: Tensor, A: Tensor, local: Tensor, align: Tensor, s: Tensor) -> Tensor:
        """0.5 e^-l B + 0.5 d e^-a A + 0.5 (l + k a) + guard (Kendall et al. 2018, annealed)."""
        d, k = self._placed(s)
        fit = torch.exp(-local) * B + d * torch.exp(-align) * A
        return 0.5 * fit + 0.5 * (local + k * align) + self.guard.penalty(local, align)

    def equilibrium(self, base: Tensor, align: Tensor, log_var: Tensor, at: Progress) -> Tensor:
        """Raw lambda* [...] at which the sigma loss is at rest for losses held at B and A.

        A lambda that is not learned rests where it is.
        """
        if not self.learned:
            return torch.exp(log_var[..., 0] - log_var[..., 1])
        d, k = self._placed(self.factor(at))
        return self.guard.rest(base, d * align, k * torch.ones_like(base))

    def _placed(self, s: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(s)
        return (s if Slot.ALIGN in self.slots else one), (s if Slot.LOG in self.slots else one)
