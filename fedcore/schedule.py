"""Schedules: from how far the run is to a factor in [0, 1], elementwise."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedcore.config_section import Named
from fedcore.errors import ConfigError
from fedcore.registry import Registry
from fedcore.settings import check_settings

Clock = Literal["epoch", "round"]


class Progress(NamedTuple):
    """How far the run is; every field is a scalar []."""

    p: Tensor  # share of all local epochs of the run done, 0...1
    by_round: Tensor  # share of all rounds done, 0...1
    local: Tensor  # share of this round's local epochs done, 0...1
    spread: Tensor  # client-prototype std over its first-round value; 1 before the first upload

    def on(self, clock: Clock) -> Progress:
        """The same progress with `p` read off that clock (V11 anneals by rounds)."""
        return self if clock == "epoch" else self._replace(p=self.by_round)


def progress(
    round: int, rounds: int, epoch: int, epochs: int, spread: float, like: Tensor
) -> Progress:
    """Progress before a local epoch of a round, both counted from 0; typed and placed as `like`.

    spread: client-prototype std over its first-round value.
    """
    values = (
        (round * epochs + epoch) / (rounds * epochs),
        round / rounds,
        epoch / epochs,
        spread,
    )
    # filled in on the device: a copy to it would be waited for
    return Progress(*(like.new_full((), value) for value in values))


class Schedule(Protocol):
    """An annealing factor s, from how far the run is."""

    def __call__(self, at: Progress) -> Tensor:
        """s in [0, 1] at that progress, of the shape of `at.p`."""


@dataclass(frozen=True)
class Constant:
    """s = 1: no annealing."""

    def __call__(self, at: Progress) -> Tensor:
        return torch.ones_like(at.p)


@dataclass(frozen=True)
class Linear:
    """s = 1 - p: from 1 down to 0."""

    def __call__(self, at: Progress) -> Tensor:
        return (1 - at.p).clamp(0, 1)


@dataclass(frozen=True)
class Cosine:
    """s = (1 + cos(pi p)) / 2: from 1 down to 0, slowly at both ends."""

    def __call__(self, at: Progress) -> Tensor:
        return 0.5 * (1 + torch.cos(math.pi * at.p.clamp(0, 1)))


@dataclass(frozen=True)
class Consensus:
    """s = spread, at most 1: falls as the clients' prototypes come together."""

    def __call__(self, at: Progress) -> Tensor:
        return at.spread.clamp(0, 1)


SCHEDULES: Registry[Schedule] = Registry("algorithm.rule.anneal")
SCHEDULES.add("constant", Constant())
SCHEDULES.add("linear", Linear())
SCHEDULES.add("cosine", Cosine())
SCHEDULES.add("consensus", Consensus())


def schedule_of(said: Named, key: str = "algorithm.rule.anneal") -> Schedule:
    """The schedule of a name, with its settings if some are given.

    `ConfigError` for an unknown name or setting, and for a factor outside of [0, 1].
    """
    schedule = SCHEDULES.get(said, key) if isinstance(said, str) else _with_settings(said, key)
    _check_range(schedule, said, key)
    return schedule


def _with_settings(said: dict[str, dict[str, float]], key: str) -> Schedule:
    if len(said) != 1:
        raise ConfigError(key, said, "one schedule", f"{key}=cosine")
    ((name, given),) = said.items()
    schedule = SCHEDULES.get(name, key)
    taken = check_settings(schedule, given, f"{key}.{name}")
    return replace(schedule, **taken) if is_dataclass(schedule) else schedule


def _check_range(schedule: Schedule, said: Named, key: str) -> None:
    """Tried over a whole run: a factor above 1 or below 0 would be a slip, and turn signs round."""
    p = torch.linspace(0, 1, 41, dtype=torch.float64)
    try:
        values, again = schedule(Progress(p, p, p, p)), schedule(Progress(p, p, p, p))
    except Exception as error:
        want = f"a schedule of all points at once; this raises {type(error).__name__}: {error}"
        raise ConfigError(key, said, want, "torch.where in place of an if") from error
    if not torch.equal(values, again):
        want = "a schedule without state, and this gives other factors when it is asked again"
        raise ConfigError(key, said, want, "a frozen dataclass: a run that goes on asks anew")
    wrong = ~((values >= 0) & (values <= 1))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        want = f"factors from 0 to 1, and at p = {float(p[at]):g} it gives {float(values[at]):g}"
        raise ConfigError(key, said, want, "a schedule, or settings, that stay there")
