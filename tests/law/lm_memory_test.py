"""Does weight decay remember what the theory says, in the optimisers' own arithmetic?

Probes run through torch's optimisers with lr and weight_decay written into the groups each step, as
a trainer does; `bench/weight_rms.py` has the same measurements at full size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bench import weight_rms as wr
from fedcore.config_lm import OptimizerConfig
from fedcore.lm import memory

D = (20_000,)
ETA, LAM = 1e-3, 4.0  # lam eta = 4e-3: T3 = 250 steps
SWIFT = wr.steady(ETA, LAM)
LAW = memory.law(ETA, LAM)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# -- the weight of each step


@pytest.mark.parametrize(
    ("name", "build", "tolerance"),
    [
        ("ema_constant_wd", wr.sgd, 1e-12),
        ("ema_sqrt_exact", wr.sgd, 1e-12),
        ("ema_coupled_wd", wr.sgd, 0.25e-3),
        ("ema_constant_wd", wr.signs, 1e-11),  # eps = 1e-12 beside the gradient's 1
        ("ema_sqrt_exact", wr.signs, 1e-11),
        ("ema_coupled_wd", wr.signs, 0.25e-3),
    ],
)
def test_every_step_weighs_the_same(name: str, build: wr.Build, tolerance: float) -> None:
    """t w_j = 1, read off weights that saw a gradient once, in torch's SGD and torch's AdamW."""
    weights = wr.probe(build, *wr.schedule(name, 1500, 1e-2, 0.1))
    np.testing.assert_allclose(weights / weights.mean(), 1, rtol=0, atol=tolerance)
    assert memory.flatness(weights) < 1 + 1e-3


@pytest.mark.parametrize("build", [wr.sgd, wr.signs])
@pytest.mark.parametrize("name", ["constant", "cosine", "wsd", "linear"])
def test_the_curve_of_any_schedule_agrees_with_torch(name: str, build: wr.Build) -> None:
    eta, lam = wr.schedule(name, 800, 1e-2, 0.3)
    ours = memory.gradient_weights(eta, lam)
    np.testing.assert_allclose(wr.probe(build, eta, lam), ours, rtol=1e-9, atol=0)


def test_momentum_keeps_part_of_the_last_gradients() -> None:
    """t w_j = 1 - beta1^(t - j + 1), and the running sums say the same."""
    eta, lam = wr.schedule("ema_constant_wd", 1000, 1e-2, 0.1)
    weights = wr.probe(wr.sgdm, eta, lam)
    flat = memory.update_weights(eta, lam).mean()
    expected = 1 - 0.9 ** np.arange(1000, 0, -1)
    np.testing.assert_allclose(weights / flat, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(memory.gradient_weights(eta, lam, 0.9), weights, rtol=1e-11)


def test_running_sums_stand_where_the_closed_form_divides_by_zero() -> None:
    """lam eta = 1 - beta1: the two geometric series have the same ratio."""
    eta, lam = np.full(60, 0.1), np.full(60, 1.0)
    np.testing.assert_allclose(
        memory.gradient_weights(eta, lam, 0.9), wr.probe(wr.sgdm, eta, lam), rtol=1e-12
    )


# -- the initialisation


@pytest.mark.parametrize("build", [wr.sgd, wr.adamw, wr.sgdm, wr.rmsprop, wr.signsgdm])
def test_without_gradients_the_start_is_left_as_one_over_one_plus_x(build: wr.Build) -> None:
    """Steps s = 1 ... t leave 1 / (1 + x) exactly; step s = 0 takes another 1 - lam eta_max."""
    eta, lam = wr.schedule("ema_constant_wd", 901, 1e-2, 0.5)
    assert wr.left(build, eta[1:], lam[1:]) == pytest.approx(1 / (1 + 0.005 * 900), rel=1e-12)
    assert wr.left(build, eta, lam) == pytest.approx(memory.kept(eta, lam)[0], rel=1e-12)


def test_coupled_decay_leaves_one_over_root_one_plus_two_x() -> None:
    eta, lam = wr.schedule("ema_coupled_wd", 901, 1e-2, 0.5)
    pull = 0.005
    assert wr.left(wr.adamw, eta, lam) == pytest.approx((1 + 2 * pull * 900) ** -0.5, rel=2 * pull)


def test_the_start_of_one_memory_is_left_by_37_percent() -> None:
    """T3 = T; and the first step has 0.58 of its uniform weight, not the notes' 0.23."""
    eta, lam = np.full(10_000, 1e-3), np.full(10_000, 0.1)
    weights = memory.gradient_weights(eta, lam)
    assert memory.kept(eta, lam)[0] == pytest.approx(math.exp(-1), rel=1e-4)
    assert weights[0] / weights.mean() == pytest.approx(1 / (math.e - 1), rel=1e-3)
    assert memory.Memory.of(eta, lam).t3 == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("name", "settings", "effective", "first_half"),
    [
        ("constant", {}, 0.20, 0.007),
        ("cosine", {"floor": 0.1}, 0.73, 0.265),
        ("linear", {"floor": 0.0}, 0.70, 0.282),
        ("wsd", {"floor": 0.0}, 0.33, 0.018),
        ("ema_constant_wd", {}, 1.0, 0.5),
        ("ema_coupled_wd", {}, 1.0, 0.5),
    ],
)
def test_the_diagnostics_have_the_published_values(
    name: str, settings: dict[str, Any], effective: float, first_half: float
) -> None:
    """t = 1e4, lam eta_max = 1e-3. A falling eta lengthens memory."""
    got = memory.Memory.of(*wr.schedule(name, 10_000, 1e-2, 0.1, **settings))
    assert got.effective_share == pytest.approx(effective, abs=0.0055)
    assert got.first_half == pytest.approx(first_half, abs=0.00055)


# -- the size of the weights


# builder: list of parameters -> optimiser; settings; RMS over sqrt(eta / (2 lam)) at gradient std 1
RMS_LAWS = [
    (wr.adamw, OptimizerConfig(), 0.989),
    (wr.rmsprop, OptimizerConfig(name="rmsprop"), 0.985),
    (wr.sgdm, OptimizerConfig(name="sgdm"), 1.0),
    (wr.signsgdm, OptimizerConfig(name="signsgdm"), 3.644),
]


@pytest.mark.parametrize(("build", "config", "measured"), RMS_LAWS)
@pytest.mark.parametrize("scale", wr.SCALES)
def test_random_gradients_give_the_law(
    build: wr.Build, config: OptimizerConfig, measured: float, scale: float
) -> None:
    """c is 1 or a constant whatever the gradient's size, but for SGDM, which is linear in it."""
    std = memory.long_run_std(config, D, gradient_std=scale)
    assert std is not None
    rms = wr.rms_after(build, *SWIFT, shape=D, scale=scale)
    assert rms / LAW / (scale if config.name == "sgdm" else 1) == pytest.approx(measured, rel=0.02)
    assert rms == pytest.approx(memory.law(ETA, LAM, std), rel=0.03)


@pytest.mark.parametrize("shape", [(96, 96), (48, 144), (144, 48)])
def test_muons_law_holds_for_square_wide_and_tall_matrices(shape: tuple[int, int]) -> None:
    rms = wr.rms_after(wr.muon, *wr.steady(ETA, LAM, 3.0), shape=shape)
    std = memory.long_run_std(OptimizerConfig(name="muon"), shape)
    assert std is not None
    assert rms == pytest.approx(memory.law(ETA, LAM, std), rel=0.05)


def test_the_update_of_adam_and_muon_has_the_rms_that_is_said() -> None:
    """One step without decay, long after the start."""
    for build, name, shape in ((wr.adamw, "adamw", (300, 60)), (wr.muon, "muon", (60, 180))):
        eta = np.append(np.zeros(60), 1.0)
        rms = wr.rms_after(build, eta, np.zeros(61), shape=shape)
        assert rms == pytest.approx(memory.update_rms(OptimizerConfig(name=name), shape), rel=0.03)


def test_at_rest_an_adam_step_changes_the_weights_by_3_permille() -> None:
    """The notes' 1e-3 holds at lam eta = 1e-5; at 1e-4 it is 3.2e-3."""
    rms = memory.update_rms(OptimizerConfig())
    assert rms is not None
    assert memory.resting_update_ratio(1e-3, 0.1, 1.0, rms) == pytest.approx(3.2e-3, rel=0.02)
    assert memory.resting_update_ratio(1e-4, 0.1, 1.0, rms) == pytest.approx(1.03e-3, rel=0.02)


def test_a_mean_gradient_raises_the_rms() -> None:
    """V and the mean of Adam's update are taken from its definition: u = g / sqrt(E g^2)."""
    mean = 0.02
    size = math.sqrt(1 + mean**2)
    rms = wr.rms_after(wr.adamw, *SWIFT, shape=D, mean=mean)
    ours = memory.with_mean(0.989 * LAW, mean / size, LAM, variance=1 / size**2)
    assert rms == pytest.approx(ours, rel=0.02)
    assert rms > 1.05 * LAW


def test_without_decay_the_rms_grows_as_the_root_of_the_steps() -> None:
    rms = wr.rms_after(wr.adamw, np.full(900, ETA), np.zeros(900), shape=D)
    assert rms == pytest.approx(ETA * math.sqrt(900), rel=0.03)
    assert memory.predicted_rms([ETA] * 900, [0.0] * 900, 1.0, 0.0)[-1] == pytest.approx(
        ETA * math.sqrt(900)
    )


def test_equal_memory_at_x_20_has_its_closed_form_and_torchs_rms() -> None:
    """sqrt((R0^2 + eta_max^2 s) / (1 + x)^2)"""
    steps, start = 5000, 0.05
    eta, lam = wr.schedule("ema_constant_wd", steps + 1, ETA, LAM)
    x = ETA * LAM * steps
    closed = math.sqrt(start**2 + ETA**2 * steps) / (1 + x)
    ours = memory.predicted_rms(eta[1:], lam[1:], 1.0, start)[-1]
    assert x == pytest.approx(20)
    assert ours == pytest.approx(closed, rel=1e-9)
    rms = wr.rms_after(wr.adamw, eta[1:], lam[1:], shape=(10_000,), start=start)
    assert rms == pytest.approx(closed, rel=0.02)


def test_the_recursion_has_the_closed_forms() -> None:
    start, x = 0.5, ETA * LAM * 1000
    got = memory.predicted_rms([1e-4] * 10_000, [LAM] * 10_000, 1.0, start)[-1]
    rest = memory.law(1e-4, LAM) ** 2
    assert got == pytest.approx(math.sqrt(rest + (start**2 - rest) * math.exp(-2 * x)), rel=1e-3)
    eta, lam = wr.schedule("ema_coupled_wd", 100_000, 1e-4, LAM)
    y = 1e-4 * LAM * 100_000
    coupled = math.sqrt(rest) * math.sqrt(1 + (start**2 / rest - 1) / (1 + 2 * y))
    assert memory.predicted_rms(eta, lam, 1.0, start)[-1] == pytest.approx(coupled, rel=1e-3)


def test_under_equal_memory_the_rms_lags_by_up_to_root_two() -> None:
    """The quasi-static law falls with eta, the weights more slowly."""
    eta, lam = wr.schedule("ema_constant_wd", 100_000, ETA, LAM)
    path = memory.predicted_rms(eta, lam, 1.0, LAW)
    lag = [path[t] / memory.law(float(eta[t]), LAM) for t in (0, 1000, 99_999)]
    assert lag[0] == pytest.approx(1, rel=0.01)
    assert lag[0] < lag[1] < lag[2] < math.sqrt(2)
    assert lag[2] == pytest.approx(math.sqrt(2), rel=0.01)


def test_a_scale_invariant_layer_rests_at_a_fourth_root() -> None:
    """SGD with gradients orthogonal to the weights and inverse to their RMS."""
    draw = torch.Generator().manual_seed(0)
    w, eta, lam = torch.randn(D, generator=draw), 0.01, 0.4
    for _ in range(2000):
        g = torch.randn(D, generator=draw)
        g -= (g @ w) / (w @ w) * w
        w = (1 - eta * lam) * w - eta * g / w.square().mean().sqrt()
    assert float(w.square().mean().sqrt()) == pytest.approx(
        memory.scale_invariant(eta, lam, 1.0), rel=0.02
    )


def test_a_federated_round_shrinks_by_both_decays() -> None:
    """Weights without gradients through K local AdamW steps and the server's pull."""
    local, outer, steps = (1e-2, 0.3), (0.7, 0.01), 40
    theta = wr.left(wr.adamw, np.full(steps, local[0]), np.full(steps, local[1]))
    pulled = theta - outer[0] * outer[1] * 1.0  # the pull acts on what the round began with
    assert memory.federated_shrink(steps, local, outer) == pytest.approx(pulled, rel=1e-12)


def test_the_weight_of_the_data_adds_up_over_epochs() -> None:
    weights = np.arange(1.0, 41.0)
    once = memory.per_part(weights, 10)
    assert np.mean(once) == pytest.approx(1)
    assert once[0] == pytest.approx(np.mean(weights[:4]) / np.mean(weights))
    twice = memory.per_part(weights, 10, epoch=20)
    assert twice[0] == pytest.approx((1 + 2 + 21 + 22) / 4 / np.mean(weights))
    assert memory.per_part(weights[:10], 10, epoch=20)[5:] == [0.0] * 5  # never read
