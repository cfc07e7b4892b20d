"""Are settings of functions and schedules checked by name, range and kind?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from fedcore.errors import ConfigError
from fedcore.objective.view import View
from fedcore.schedule import SCHEDULES, Progress, schedule_of
from fedcore.settings import Divisor, check_settings


def term(view: View, margin: float = 1.0, temperature: Divisor = 0.5, steps: int = 3) -> Tensor:
    return view.features.sum() * margin / temperature * steps


@dataclass(frozen=True)
class Decay:
    """e^(-rate p)."""

    rate: Divisor
    floor: float = 0.0

    def __call__(self, at: Progress) -> Tensor:
        return torch.exp(-self.rate * at.p).clamp(min=self.floor)


@pytest.fixture
def decay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES._things, "decay", Decay(5.0))


@pytest.mark.parametrize("thing", [term, partial(term, margin=2.0)])
def test_what_is_in_range_passes(thing) -> None:
    check_settings(thing, {"margin": 0, "temperature": 0.1, "steps": 2.0}, "algorithm.terms.term")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"margni": 1}, "algorithm.terms.term.margni: got 1, want a known setting. Try margin"),
        ({"temperature": 0}, "want a number from 1e-09 to 100000. Try 0.5"),
        ({"margin": -1.0}, "want a number from 0 to 100000. Try 1.0"),
        ({"steps": 2.5}, "want a whole number from 0 to 100000. Try 3"),
        ({"margin": float("nan")}, "want a number from 0"),
        ({"margin": True}, "want a number from 0"),
    ],
)
def test_what_is_not_is_told(given: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError) as told:
        check_settings(term, given, "algorithm.terms.term")
    assert words in str(told.value)


def test_a_schedule_takes_settings(decay: None) -> None:
    assert schedule_of("decay") == Decay(5.0)
    assert schedule_of({"decay": {"rate": 2.0, "floor": 0.1}}) == Decay(2.0, 0.1)
    assert schedule_of({"cosine": {}}) == SCHEDULES.get("cosine")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"decay": {"rat": 2.0}}, "clients.lr_schedule.decay.rat: got 2.0, want a known setting"),
        ({"decay": {"rate": 0.0}}, "clients.lr_schedule.decay.rate: got 0.0"),
        ({"linear": {"rate": 2.0}}, "Try none: it has no settings"),
        ({"decya": {}}, "Try decay"),
        ({"decay": {}, "linear": {}}, "want one schedule"),
        ({}, "want one schedule"),
    ],
)
def test_a_wrong_schedule_is_told(decay: None, said: dict, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        schedule_of(said, "clients.lr_schedule")
    assert words in str(told.value)


def test_a_schedule_with_state_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counting(at: Progress) -> Tensor:
        asked.append(1)
        return torch.full_like(at.p, 1 / len(asked))

    monkeypatch.setitem(SCHEDULES._things, "counting", counting)
    with pytest.raises(ConfigError, match="other factors when it is asked again"):
        schedule_of("counting")


def test_a_schedule_that_leaves_0_to_1_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES._things, "rising", lambda at: 0.5 + at.p)
    with pytest.raises(ConfigError, match=r"from 0 to 1, and at p = 0\.525 it gives 1\.025"):
        schedule_of("rising")
