"""LambdaRule: the weight of the align loss, all that V4...V14 differ in.

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
from fedcore.objective.guards import Form, Guard, LogVariances, NoGuard
from fedcore.objective.learners import Learner, Uncertainty
from fedcore.schedule import Clock, Constant, Progress, Schedule

LOG_VAR_LIMIT = 30.0
"""A learned log-variance stays within +-30, so that e^(l-a) is finite in float32. A loss that is
exactly 0 would otherwise pull its log-variance to minus infinity."""

LARGEST_START = 1e6
"""Of a learned lambda: far from any use, and its log-variance well inside the limit."""

LAMBDA_MAX = 50.0
"""The published lambda_max, for rules that have none."""


class Slot(Flag):
    """Where the annealing factor s(p) enters the loss."""

    NONE = 0
    WEIGHTS = auto()  # effective lambda = s * raw
    ALIGN = auto()  # sigma loss: 0.5 s e^-a A
    LOG = auto()  # sigma loss: 0.5 s a


class StartRule(Protocol):
    """lambda0 of each client, from the labels it holds."""

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest lambda0 that a client can get."""

    def __call__(self, label_counts: Tensor) -> Tensor:
        """lambda0 [...], float64, of clients with label histograms [..., C]."""


@dataclass(frozen=True)
class Fixed:
    """The same lambda0 for every client; 0 = no alignment."""

    lam: float

    @property
    def span(self) -> tuple[float, float]:
        """Smallest and largest lambda0."""
        return self.lam, self.lam

    def __call__(self, label_counts: Tensor) -> Tensor:
        return torch.full(label_counts.shape[:-1], self.lam, dtype=torch.float64)


@dataclass(frozen=True)
class FromEntropy:
    """lambda0 = low + (high - low) H / log2 C, H the entropy in bits of the label histogram."""

    low: float
    high: float

    @property
    def span(self) -> tuple[float, float]:
        """Smallest and largest lambda0."""
        return self.low, self.high

    def __call__(self, label_counts: Tensor) -> Tensor:
        most = math.log2(max(label_counts.shape[-1], 2))
        return self.low + (self.high - self.low) * (label_entropy(label_counts) / most)


def label_entropy(label_counts: Tensor) -> Tensor:
    """Entropy [...] of label histograms [..., C], in bits; 0 for one without samples. Float64."""
    counts = label_counts.to(torch.float64)
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    entropy: Tensor = -torch.special.xlogy(share, share).sum(-1) / math.log(2)
    return entropy


class Weighted(NamedTuple):
    """The loss to differentiate, and the lambda that was in it. Each [...]."""

    loss: Tensor  # weight loss + sigma loss
    raw: Tensor  # sigma^2_local / sigma^2_align
    effective: Tensor  # what multiplied the align loss: the logged value is the used value


@dataclass(frozen=True, kw_only=True)
class LambdaRule:
    """How lambda starts, who moves it, and how it is annealed and guarded.

    A client's lambda is held in two numbers [..., 2], which `form` reads: usually l and a.
    Raises `ConfigError` for parts that do not go together.
    """

    start: StartRule = Fixed(0.0)
    learner: Learner | None = None  # None = it stays where it starts
    anneal: Schedule = Constant()
    slots: Slot = Slot.NONE
    clock: Clock = "epoch"
    guard: Guard = NoGuard()
    form: Form = LogVariances()

    def __post_init__(self) -> None:
        self._check_start()
        if self.form != LogVariances() and self.guard != NoGuard():
            want = "no guard beside a bound: lambda cannot pass it"
            raise ConfigError("algorithm.rule.guard", self.guard, want, "guard: {}, or bound: 0")
        if self.has_sigma_loss:
            return
        if self.slots & (Slot.ALIGN | Slot.LOG):
            slots = [s.name.lower() for s in self.slots if s.name]
            self._refuse("slots", slots, "weights only", "slots: [weights]")
        if self.guard != NoGuard():
            self._refuse("guard", self.guard, "no guard", "guard: {}")
        if self.form != LogVariances():
            self._refuse("bound", self.form, "no bound", "bound: null")

    def _check_start(self) -> None:
        low, high = self.start.span
        if self.learner is not None and not 0 < low <= high <= LARGEST_START:
            want = f"above 0 and at most {LARGEST_START:g}, for a lambda that is learned"
            raise ConfigError("algorithm.rule.start", (low, high), want, "fixed: 5")
        bound = getattr(self.form, "lambda_max", math.inf)
        if high >= bound:
            want = f"a bound above every lambda0, and one starts at {high:g}"
            raise ConfigError("algorithm.rule.bound", bound, want, f"bound: {2 * high:g}")

    @staticmethod
    def _refuse(key: str, got: object, want: str, way_out: str) -> None:
        reason = f"{want}, since without `learned: uncertainty` there is no sigma loss"
        raise ConfigError(
            f"algorithm.rule.{key}", got, reason, f"learned: uncertainty, or {way_out}"
        )

    @property
    def has_sigma_loss(self) -> bool:
        """Whether lambda is learned by the sigma loss."""
        return isinstance(self.learner, Uncertainty)

    @property
    def limit(self) -> float:
        """Raw lambda above which it counts as exploded: the rule's own lambda_max, or the usual."""
        bounds = [getattr(part, "lambda_max", None) for part in (self.guard, self.form)]
        return next((float(b) for b in bounds if b is not None), LAMBDA_MAX)

    def first_log_var(self, label_counts: Tensor) -> Tensor:
        """The two numbers [..., 2], float64, of lambda0 for label histograms [..., C]."""
        return self.form.start(self.start(label_counts))

    def factor(self, at: Progress) -> Tensor:
        """The annealing factor s(p) [] on this rule's clock, in [0, 1]."""
        return self.anneal(at.on(self.clock))

    def weigh(self, base: Tensor, align: Tensor, log_var: Tensor, at: Progress) -> Weighted:
        """The loss [...] and the lambda in it, from losses B, A [...] and the two numbers [..., 2].

        The weight loss sees a detached lambda, the sigma loss sees detached losses: only here do
        the two meet.
        """
        local, other = self.form.log_variances(log_var).unbind(-1)
        s = self.factor(at)
        raw = torch.exp(local - other).detach()
        effective = raw * s if Slot.WEIGHTS in self.slots else raw
        loss = base + effective * align
        if self.has_sigma_loss:
            loss = loss + self.sigma_loss(base.detach(), align.detach(), local, other, s)
        return Weighted(loss, raw, effective)

    def sigma_loss(self, B: Tensor, A: Tensor, local: Tensor, align: Tensor, s: Tensor) -> Tensor:
        """0.5 e^-l B + 0.5 d e^-a A + 0.5 (l + k a) + guard [...] (Kendall et al. 2018, annealed).

        Losses B, A, log-variances l (`local`) and a (`align`): [...]. d, k: s [] in its slot, or 1.
        """
        d, k = self._placed(s)
        fit = torch.exp(-local) * B + d * torch.exp(-align) * A
        return 0.5 * fit + 0.5 * (local + k * align) + self.guard.penalty(local, align)

    def equilibrium(
        self, base: Tensor, align: Tensor, raw: Tensor, measured: Tensor, at: Progress
    ) -> Tensor:
        """Raw lambda* [...] at which lambda would rest if the losses stayed at B and A [...].

        A lambda that nobody moves rests where it is, at `raw` [...]. measured [...]: where the
        gradients put it, for a learner that balances gradients; NaN where no closed form is known.
        """
        if self.learner is None:
            return raw
        if not self.has_sigma_loss:
            return measured
        d, k = self._placed(self.factor(at))
        return self.form.rest(self.guard.rest(base, d * align, k * torch.ones_like(base)))

    def _placed(self, s: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(s)
        return (s if Slot.ALIGN in self.slots else one), (s if Slot.LOG in self.slots else one)
