"""Are the schedules of eta and lam what their formulas say, at every step and every setting?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.config_lm import LMConfig, OptimizerConfig, ScaleForBatchConfig, ScheduleConfig
from fedcore.errors import ConfigError
from fedcore.lm.scale import scaled
from fedcore.lm.schedules import LM_SCHEDULES, Run, main_lr, rates, share


def config(steps: int = 10, peak: float = 1e-2, decay: float = 0.1, **settings: Any) -> LMConfig:
    return LMConfig(
        steps=steps,
        optimizer=OptimizerConfig(lr=peak, weight_decay=decay),
        schedule=ScheduleConfig(**settings),
    )


CS336 = [  # get_lr_cosine_schedule(it, 1, 0.1, 7, 21), it = 0 ... 24
    *(it / 7 for it in range(7)),
    *(1.0, 0.9887175604818206, 0.9554359905560885, 0.9018241671106134, 0.8305704108364301),
    *(0.7452476826029011, 0.6501344202803414, 0.55, 0.44986557971965857, 0.3547523173970989),
    *(0.26942958916356996, 0.19817583288938662, 0.14456400944391146, 0.11128243951817937),
    *(0.1,) * 4,
]


def test_the_cosine_has_cs336s_values() -> None:
    got = rates(config(25, warmup=7, cosine_steps=21, from_zero=True, floor=0.1)).eta_share
    np.testing.assert_allclose(got, CS336, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"name": "constant"}, [1, 1, 1, 1, 1]),
        ({"name": "constant", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1]),
        ({"name": "constant", "warmup": 4, "from_zero": True}, [0, 0.25, 0.5, 0.75, 1]),
        ({"name": "linear", "floor": 0.0}, [1, 0.75, 0.5, 0.25, 0]),
        ({"name": "linear", "floor": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
        ({"name": "linear", "floor": 0.0, "warmup": 3}, [1 / 3, 2 / 3, 1, 0.5, 0]),
        ({"name": "cosine", "floor": 0.0}, [1, 0.5 + 8**-0.5, 0.5, 0.5 - 8**-0.5, 0]),
        ({"name": "wsd", "floor": 0.0, "decay_share": 0.4}, [1, 1, 1, 0.5, 0]),
        ({"name": "inverse_sqrt", "warmup": 2}, [0.5, 1, (2 / 3) ** 0.5, 0.5**0.5, 0.4**0.5]),
        ({"name": "inverse_sqrt"}, [1, 2**-0.5, 3**-0.5, 0.5, 5**-0.5]),
        ({"name": "ema_constant_wd"}, [1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3]),
        ({"name": "ema_coupled_wd"}, [1, 2**-0.5, 3**-0.5, 0.5, 5**-0.5]),
        ({"name": "ema_constant_wd", "warmup": 2}, [0.5, 1, 1 / 1.5, 1 / 2, 1 / 2.5]),
    ],
)
def test_five_steps_on_paper(settings: dict[str, Any], values: list[float]) -> None:
    got = rates(config(5, peak=1.0, decay=0.5, **settings)).eta_share
    np.testing.assert_allclose(got, values, rtol=0, atol=1e-15)


def test_the_exact_recursion_satisfies_equal_memory() -> None:
    """e_j = e_{j-1} (1 - a e_j^2), and near its closed form where a is small."""
    e = rates(config(1000, peak=1.0, decay=0.01, name="ema_sqrt_exact")).eta_share
    np.testing.assert_allclose(e[1:], e[:-1] * (1 - 0.01 * e[1:] ** 2), rtol=1e-14)
    closed = rates(config(1000, peak=1.0, decay=0.01, name="ema_coupled_wd")).eta_share
    assert 1e-6 < np.abs(e - closed).max() < 0.01


def test_lambert_w_differs_by_a_fifth_of_the_pull() -> None:
    """e^(lam eta_j) eta_j = eta_{j-1} was the notes' recursion for equal memory at constant lam."""
    pull = 0.01
    e, worst = 1.0, 0.0
    for s in range(1, 2000):
        e = newton_lambert(pull, e)
        worst = max(worst, abs(e * (1 + pull * s) - 1))
    assert 0.15 * pull < worst < 0.25 * pull


def newton_lambert(pull: float, previous: float) -> float:
    e = previous
    for _ in range(8):
        grown = math.exp(pull * e)
        e -= (grown * e - previous) / (grown * (1 + pull * e))
    return e


@given(
    name=st.sampled_from(LM_SCHEDULES.names()),
    steps=st.integers(1, 60),
    warmup=st.integers(0, 80),
    from_zero=st.booleans(),
    floor=st.floats(0, 1),
    cosine_steps=st.none() | st.integers(1, 80),
    decay_share=st.floats(0, 1),
    pull=st.floats(0, 10),
)
def test_every_share_is_between_zero_and_one(
    name: str, steps: int, pull: float, **settings: Any
) -> None:
    """Beyond the last step too, and with a warm-up longer than the run."""
    run = Run(steps, ScheduleConfig(name=name, **settings), pull)
    got = share(LM_SCHEDULES.get(name), np.arange(3 * steps + 100), run)
    assert np.isfinite(got).all()
    assert got.min() >= 0
    assert got.max() <= 1 + 1e-15
    assert got[run.peak] == 1  # the peak is reached


@pytest.mark.parametrize(
    ("name", "said", "like"),
    [
        ("cosine", "constant", "constant"),
        ("cosine", "tied", "cosine"),
        ("cosine", "linear", "linear"),
        ("ema_constant_wd", "constant", "constant"),
        ("ema_coupled_wd", "constant", "ema_coupled_wd"),
        ("ema_sqrt_exact", "tied", "ema_sqrt_exact"),
    ],
)
def test_the_decay_follows_its_setting(name: str, said: str, like: str) -> None:
    lam = rates(config(20, name=name, weight_decay=said)).lam_share
    np.testing.assert_array_equal(lam, rates(config(20, name=like)).eta_share)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"name": "cosin"}, r"lm\.schedule\.name.*Try cosine"),
        ({"weight_decay": "tide"}, r"lm\.schedule\.weight_decay.*tide"),
        ({"name": "ema_coupled_wd", "weight_decay": "cosine"}, "which ema_coupled_wd brings"),
    ],
)
def test_a_name_that_cannot_be_meant_is_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        rates(config(**settings))


@pytest.mark.parametrize(
    ("rule", "lr", "decay"),
    [("raise_decay", 1, 4), ("raise_lr", 4, 1), ("both", 2, 2)],
)
def test_the_memory_in_samples_outlives_another_batch_size(rule, lr: float, decay: float) -> None:
    given = config().model_copy(
        update={
            "batch_size": 32,
            "scale_for_batch": ScaleForBatchConfig(reference=8, rule=rule),
        }
    )
    got, own = scaled(given), given.optimizer
    assert (got.lr / own.lr, got.weight_decay / own.weight_decay) == pytest.approx((lr, decay))
    assert got.muon_lr / own.muon_lr == pytest.approx(lr)
    assert 32 / (got.lr * got.weight_decay) == pytest.approx(8 / (own.lr * own.weight_decay))


def test_muons_matrices_are_the_main_group() -> None:
    assert main_lr(OptimizerConfig(name="muon", lr=1e-3, muon_lr=0.05)) == 0.05
    given = config(5, peak=1e-3).model_copy(
        update={
            "optimizer": OptimizerConfig(name="muon", muon_lr=0.5, weight_decay=1.0),
            "schedule": ScheduleConfig(name="ema_constant_wd"),
        }
    )
    np.testing.assert_allclose(rates(given).eta_share, 1 / (1 + 0.5 * np.arange(5)))
