"""Schedules of eta and lam: from the step to the share of the peak, in [0, 1].

Steps count from 0; the last is T - 1, and every schedule is defined beyond it. Warm-up applies to
all of them: eta rises in T_w equal parts to its peak, and s counts the steps after the one at which
the peak is reached, so that s = 0 has share 1. (That step is T_w with `from_zero`, whose step 0
has eta 0, and else T_w - 1; without warm-up it is 0.) Under the equal-memory schedules the
steps of the warm-up count in proportion to their eta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedcore.config_lm import LMConfig, OptimizerConfig, ScheduleConfig
from fedcore.errors import ConfigError
from fedcore.lm.scale import scaled
from fedcore.registry import Registry

Array = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]


def peak_step(settings: ScheduleConfig) -> int:
    """The first step, from 0, with the full eta."""
    return max(0, settings.warmup - (0 if settings.from_zero else 1))


@dataclass(frozen=True)
class Run:
    """What a schedule may depend on: the run's length, its settings, its pull."""

    steps: int  # T
    settings: ScheduleConfig
    pull: float  # lam eta_max of the main group

    @property
    def peak(self) -> int:
        """The first step, from 0, with the full eta."""
        return peak_step(self.settings)

    def after(self, end: int, start: int | None = None) -> int:
        """Steps from `start` (the peak, unless given) to `end`, at least one to divide by."""
        return max(1, end - (self.peak if start is None else start))


class Schedule(NamedTuple):
    """A schedule: the share of the peak s steps after the peak, and what there is to know of it."""

    share: Callable[[Steps, Run], Array]
    about: str
    decay: str = ""  # the ema schedules bring a lam: constant, or tied to eta


LM_SCHEDULES: Registry[Schedule] = Registry("lm.schedule.name")


def _constant(s: Steps, run: Run) -> Array:
    """1."""
    return np.ones(s.shape)


def _line(s: Steps, length: int, floor: float) -> Array:
    """From 1 down to `floor` in `length` steps, and `floor` from there on."""
    return floor + (1 - floor) * (1 - np.clip(s / length, 0, 1))


def _linear(s: Steps, run: Run) -> Array:
    """floor + (1 - floor)(1 - s / S): the last step has the floor."""
    return _line(s, run.after(run.steps - 1), run.settings.floor)


def _cosine(s: Steps, run: Run) -> Array:
    """floor + (1 - floor)(1 + cos(pi s / S)) / 2, and the floor from T_c on."""
    end = run.steps - 1 if run.settings.cosine_steps is None else run.settings.cosine_steps
    done = np.clip(s / run.after(end), 0, 1)
    return run.settings.floor + (1 - run.settings.floor) * 0.5 * (1 + np.cos(math.pi * done))


def _wsd(s: Steps, run: Run) -> Array:
    """1, and over the last `decay_share` of the run a line to the floor."""
    last = run.steps - 1
    start = max(run.peak, last - round(run.settings.decay_share * run.steps))
    return _line(s - (start - run.peak), run.after(last, start), run.settings.floor)


def _inverse_sqrt(s: Steps, run: Run) -> Array:
    """sqrt(T_w / (T_w + s)); without a warm-up T_w counts as 1."""
    warm = max(1, run.settings.warmup)
    falling: Array = np.sqrt(warm / (warm + s))
    return falling


def _ema_constant_wd(s: Steps, run: Run) -> Array:
    """1 / (1 + lam eta_max s) solves eta_j = eta_{j-1} (1 - lam eta_j)."""
    return 1 / (1 + run.pull * s)


def _ema_coupled_wd(s: Steps, run: Run) -> Array:
    """1 / sqrt(1 + 2 lam_max eta_max s), the continuous limit of the exact recursion."""
    falling: Array = 1 / np.sqrt(1 + 2 * run.pull * s)
    return falling


def _ema_sqrt_exact(s: Steps, run: Run) -> Array:
    """e_j = e_{j-1} (1 - a e_j^2) with a = lam_max eta_max, solved for e_j; O(max s)."""
    shares = [1.0]
    for _ in range(int(s.max(initial=0))):
        e = shares[-1]
        # the textbook root (-1 + sqrt(1 + 4 a e^2)) / (2 a e) is 0/0 at a = 0
        shares.append(2 * e / (1 + math.sqrt(1 + 4 * run.pull * e * e)))
    return np.asarray(shares)[s]


for name, schedule in {
    "constant": Schedule(_constant, "the peak throughout"),
    "linear": Schedule(_linear, "a line from the peak to `floor` at the last step"),
    "cosine": Schedule(_cosine, "half a cosine to `floor` at `cosine_steps` or the last step"),
    "wsd": Schedule(_wsd, "the peak, then a line to `floor` in the last `decay_share`"),
    "inverse_sqrt": Schedule(_inverse_sqrt, "sqrt(warmup / t) after the warm-up"),
    "ema_constant_wd": Schedule(
        _ema_constant_wd, "1/(1 + x): all steps weigh the same, lam constant", "constant"
    ),
    "ema_coupled_wd": Schedule(
        _ema_coupled_wd, "1/sqrt(1 + 2x): the same with lam tied to eta", "tied"
    ),
    "ema_sqrt_exact": Schedule(
        _ema_sqrt_exact, "ema_coupled_wd by its exact discrete recursion", "tied"
    ),
}.items():
    LM_SCHEDULES.add(name, schedule)


def share(schedule: Schedule, t: Steps, run: Run) -> Array:
    """The share of the peak, warm-up included, at the steps t: float64 like t, in [0, 1]."""
    t = np.asarray(t, dtype=np.int64)
    first = 0 if run.settings.from_zero else 1
    warm = np.minimum(1.0, (t + first) / max(1, run.settings.warmup))
    rising = t < run.peak
    return np.where(rising, warm, schedule.share(np.maximum(0, t - run.peak), run))


class Rates(NamedTuple):
    """Shares of each group's own peak eta and peak lam: one pair serves all groups."""

    eta_share: Array  # [T]
    lam_share: Array  # [T]


def main_lr(optimizer: OptimizerConfig) -> float:
    """Peak eta of the main group: the matrices."""
    return optimizer.muon_lr if optimizer.name == "muon" else optimizer.lr


def rates(config: LMConfig) -> Rates:
    """Shares of eta and lam for every step of the run, each [T].

    The ema schedules are exact for the main group (`main_lr`, `weight_decay`, after
    scale_for_batch); a group with another lr or decay follows the same shares. Raises `ConfigError`
    for an lm.schedule.weight_decay that the schedule does not allow.
    """
    optimizer = scaled(config)
    run = Run(config.steps, config.schedule, main_lr(optimizer) * optimizer.weight_decay)
    t = np.arange(config.steps, dtype=np.int64)
    schedule = LM_SCHEDULES.get(config.schedule.name)
    eta = share(schedule, t, run)
    return Rates(eta, _decay(_decay_name(config.schedule, schedule), eta, t, run))


def _decay(name: str, eta: Array, t: Steps, run: Run) -> Array:
    if name == "constant":
        return np.ones_like(eta)
    if name == "tied":
        return eta
    return share(LM_SCHEDULES.get(name, "lm.schedule.weight_decay"), t, run)


def _decay_name(settings: ScheduleConfig, schedule: Schedule) -> str:
    """`weight_decay`; an ema schedule has its own, and another one would undo it."""
    said = settings.weight_decay
    if schedule.decay and said not in ("constant", schedule.decay):
        want = f"{schedule.decay}, which {settings.name} brings"
        raise ConfigError("lm.schedule.weight_decay", said, want, "leaving it out")
    return schedule.decay or said
