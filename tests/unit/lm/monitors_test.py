"""Do the monitors read what the theory says, tell each failure once, and go on after a resume?"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from fedcore.config_lm import LMConfig, MonitorConfig, OptimizerConfig, ScheduleConfig
from fedcore.lm import memory
from fedcore.lm.monitors import Group, Measured, Monitor, Reading
from fedcore.lm.scale import RMSController, decay_for, resting_decay
from fedcore.lm.schedules import rates
from fedcore.telemetry.events import LMStepEvent

MUON = OptimizerConfig(name="muon")
A, B = (memory.long_run_std(MUON, (64, columns)) or 0.0 for columns in (64, 128))


def config(steps: int, eta: float, lam: float, name: str = "constant", **more: Any) -> LMConfig:
    return LMConfig(
        steps=steps,
        optimizer=OptimizerConfig(lr=eta, weight_decay=lam),
        schedule=ScheduleConfig(name=name, floor=0.0),
        **more,
    )


def monitor(given: LMConfig, std: float | None = 1.0, state: Any = None) -> Monitor:
    own = given.optimizer
    groups = [
        Group("decay", ("a", "b"), std, own.lr, own.weight_decay),
        Group("plain", ("c",), std, own.lr, 0.0),
    ]
    return Monitor(given, rates(given), groups, state)


def at(step: int, rms: float, change: float = 1e-4, plain: float = 1.0) -> Measured:
    values = {"a": rms, "b": rms, "c": plain}
    return Measured(step, values, dict.fromkeys("abc", change), {"a": 30, "b": 10, "c": 5})


def test_a_group_is_the_root_of_the_mean_square_of_all_its_numbers() -> None:
    reading = monitor(config(10, 1e-3, 0.1)).read(
        Measured(0, {"a": 1.0, "b": 3.0, "c": 1.0}, {"a": 0.1, "b": 0.1, "c": 0.2}, {**SIZES})
    )
    expected = math.sqrt((30 * 1 + 10 * 9) / 40)
    assert reading.weight_rms == pytest.approx({"decay": expected, "plain": 1.0})
    assert reading.weight_rms_predicted == pytest.approx(reading.weight_rms)
    assert reading.update_ratio == pytest.approx({"decay": 0.1 / expected, "plain": 0.2})
    assert reading.layer_rms == {"a": 1.0, "b": 3.0, "c": 1.0}


SIZES = {"a": 30, "b": 10, "c": 5}


@pytest.mark.parametrize(
    ("optimizer", "group", "std"),
    [
        ("adamw", "decay", 1.0),
        ("sgdm", "decay", None),  # the gradient's, which nobody knows before
        ("signsgdm", "decay", 3.644),
        ("muon", "decay", 1.0),  # embeddings are matrices, and AdamW's
        ("muon", "muon", math.sqrt((64 * 64 * A**2 + 64 * 128 * B**2) / (64 * 192))),
    ],
)
def test_a_group_has_the_c_of_its_shapes(optimizer, group: str, std: float | None) -> None:
    shapes = {"a": (64, 64), "b": (64, 128)}
    got = Group.of(group, shapes, OptimizerConfig(name=optimizer), lr=1e-3, weight_decay=0.1)
    assert got.parameters == ("a", "b")
    assert got.std == (None if std is None else pytest.approx(std, rel=1e-3))


@pytest.mark.parametrize("name", ["constant", "cosine", "ema_constant_wd", "ema_coupled_wd"])
def test_the_prediction_is_the_recursion_from_the_first_measurement(name: str) -> None:
    given = config(400, 1e-2, 0.5, name)
    watch = monitor(given)
    readings = [watch.read(at(step, 0.3)) for step in (0, 1, 50, 51, 400)]
    shares = rates(given)
    eta, lam = 1e-2 * shares.eta_share, 0.5 * shares.lam_share
    path = [0.3, *memory.predicted_rms(eta, lam, 1.0, 0.3)]
    for reading, step in zip(readings, (0, 1, 50, 51, 400), strict=True):
        assert reading.weight_rms_predicted["decay"] == pytest.approx(path[step])
    assert readings[-1].weight_rms_predicted["plain"] == pytest.approx(
        math.sqrt(1 + np.square(eta).sum())
    )
    assert readings[-1].initialisation_left == pytest.approx(memory.kept(eta, lam)[0])


def test_memory_is_told_in_steps() -> None:
    steps = monitor(config(10, 1e-3, 0.1)).read(at(5, 1.0)).memory_steps
    assert steps == pytest.approx({"T1": 10, "T2": 20, "T3": 10_000})


def test_the_reading_is_a_part_of_the_event() -> None:
    """Its fields are the event's, and endless memory becomes null in the line."""
    reading = monitor(config(10, 1e-3, 0.0)).read(at(5, 1.0))
    rest: dict[str, Any] = {
        **{"step": 5, "steps": 10, "loss": 1.0, "learning_rate": 1e-3, "weight_decay": 0.0},
        **{"gradient_norm": 1.0, "tokens": 1, "tokens_per_second": 1.0},
    }
    record = LMStepEvent(**rest, **reading.fields()).record()
    assert record["memory_steps"]["T3"] is None
    assert record["initialisation_left"] == 1.0


def test_a_resumed_monitor_goes_on_as_if_it_had_not_stopped() -> None:
    given = config(2000, 1e-2, 0.05, "cosine")
    whole, first = monitor(given), monitor(given)
    for step in (0, 100, 300):
        whole.read(at(step, 0.1))
        first.read(at(step, 0.1))
    second = monitor(given, state=json.loads(json.dumps(first.state)))
    for step, rms in ((500, 0.4), (501, 0.8), (2000, 0.05)):
        assert second.read(at(step, rms)) == whole.read(at(step, rms))


def test_sgdm_is_predicted_from_its_own_updates() -> None:
    """Its c is the gradient's std; an averaged gradient has sqrt((1 - beta) / (1 + beta)) of it."""
    given = config(500, 1e-2, 0.4)
    given = given.model_copy(
        update={"optimizer": given.optimizer.model_copy(update={"name": "sgdm"})}
    )
    watch = monitor(given, std=None)
    change = 1e-2 * 7.0 * math.sqrt(0.1 / 1.9)
    watch.read(at(0, 0.3, change))
    got = watch.read(at(500, 0.3, change)).weight_rms_predicted["decay"]
    assert got == pytest.approx(memory.predicted_rms([1e-2] * 500, [0.4] * 500, 7.0, 0.3)[-1])


def told(watch: Monitor, *measured: Measured) -> list[str]:
    return [words for one in measured for words in watch.read(one).alerts]


def quiet(steps: int = 1000) -> LMConfig:
    """x = 2: long enough to forget the start, short enough to keep the early data."""
    return config(steps, 1e-2, 2 / (1e-2 * steps))


def test_explosion_is_told_once_when_the_ratio_rises_past_two() -> None:
    watch = monitor(quiet())
    assert told(watch, at(0, 0.3), at(10, 0.5), at(20, 0.55)) == []  # ratio below 2
    (words,) = told(watch, at(30, 0.9), at(40, 1.2), at(50, 1.5))
    ratio = 0.9 / memory.predicted_rms([1e-2] * 30, [0.2] * 30, 1.0, 0.3)[-1]
    assert words.startswith(f"explosion: the RMS of group decay is {ratio:.2f} times")


def test_a_high_ratio_that_falls_is_no_explosion() -> None:
    watch = monitor(quiet())
    watch.read(at(0, 0.3))
    watch.state["groups"]["decay"]["ratio"] = 5.0
    assert told(watch, at(10, 0.9)) == []


def test_collapse_is_told_when_eta_ends_and_the_weights_fall() -> None:
    watch = monitor(config(1000, 1e-2, 0.2, "linear"))
    assert told(watch, at(0, 0.3), at(400, 0.3), at(950, 0.2)) == []
    (words,) = told(watch, at(990, 0.14), at(1000, 0.13))
    assert words.startswith("collapse: eta is at 0.0")
    assert "group decay fell to 0.47" in words


def test_an_initialisation_that_is_forgotten_is_no_collapse() -> None:
    """It falls while eta is high: what it falls to is the size the weights work at."""
    watch = monitor(config(1000, 1e-2, 0.2, "linear"))
    assert told(watch, at(0, 1.0), at(400, 0.3), at(950, 0.25), at(1000, 0.24)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (config(1000, 1e-2, 2.0), r"early data forgotten: x = lam eta_max T = 20, so T3 = 50"),
        (config(1000, 1e-2, 0.05), r"never forgotten: x = lam eta_max T = 0\.5 < 1, and 61%"),
        (config(1000, 1e-2, 0.0), r"x = lam eta_max T = 0 < 1, and 100%"),
    ],
)
def test_what_the_rates_foretell_is_told_at_the_first_measurement(given, words: str) -> None:
    watch = monitor(given)
    (alert,) = told(watch, at(0, 0.3))
    assert re.search(words, alert)
    assert told(watch, at(1, 0.3)) == []


@pytest.mark.parametrize("name", ["ema_constant_wd", "ema_coupled_wd"])
def test_equal_memory_forgets_nothing(name: str) -> None:
    assert told(monitor(config(1000, 1e-2, 20.0, name)), at(0, 0.3)) == []


def test_under_a_controller_the_target_is_the_prediction() -> None:
    given = config(1000, 1e-2, 0.2, monitor=MonitorConfig(target_rms=0.05))
    watch = monitor(given)
    watch.read(at(0, 0.3))
    reading: Reading = watch.read(at(10, 0.06))
    assert reading.ratio["decay"] == pytest.approx(1.2)
    assert reading.weight_rms_predicted["plain"] > 1  # not decayed: not held


# -- the controller


def test_the_resting_decay_is_the_law_turned_round() -> None:
    lam = resting_decay(0.03, 1.0, 1e-3)
    assert memory.law(1e-3, lam) == pytest.approx(0.03)


def test_a_layer_at_its_target_gets_the_decay_that_offsets_its_growth() -> None:
    """It grew by nothing under lam eta = 2e-4: that pull is kept."""
    assert decay_for(0.1, 0.1, 0.1, pulled=2e-4, eta=1e-3, steps=50) == pytest.approx(0.2)
    assert decay_for(0.1, 0.1, 0.2, pulled=0.0, eta=1e-3, steps=50) == 0.0  # never negative
    assert decay_for(9.0, 0.1, 0.1, pulled=0.0, eta=1e-3, steps=50) == 0.5 / 50 / 1e-3  # bounded


@pytest.mark.parametrize("mean", [0.0, 0.05])
@pytest.mark.parametrize("start", [0.02, 0.1])
@pytest.mark.parametrize("name", ["constant", "cosine"])
def test_the_rms_is_held_within_three_percent(mean: float, start: float, name: str) -> None:
    """AdamW, gradients with and without a mean, eta at rest and falling to a tenth."""
    target, every, steps = 0.05, 20, 1500
    given = LMConfig(
        steps=steps,
        optimizer=OptimizerConfig(lr=2e-3),
        schedule=ScheduleConfig(name=name, floor=0.1),
    )
    eta = 2e-3 * rates(given).eta_share
    draw = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(start * torch.randn(4000, generator=draw))
    optimizer = torch.optim.AdamW([p], lr=1.0, betas=(0.9, 0.95))
    control, seen = RMSController(target, {"p": 1.0}), []
    for step in range(steps):
        if step % every == 0:
            seen.append(float(p.detach().square().mean().sqrt()))
            control = RMSController(target, control.std, json.loads(json.dumps(control.state)))
            lam = control.decays(step, {"p": seen[-1]}, {"p": float(eta[step])})["p"]
        optimizer.param_groups[0].update(lr=float(eta[step]), weight_decay=lam)
        p.grad = mean + torch.randn(4000, generator=draw)
        optimizer.step()
    np.testing.assert_allclose(seen[len(seen) // 2 :], target, rtol=0.03)
