"""Did training change? Then `make golden-update` shows how, and the commit says why."""

from __future__ import annotations

import pytest

from fedcore.algorithms import ALGORITHMS
from tests.golden import lm_curves
from tests.golden.curves import FOLDER, curves, largest_change, stored


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_training_is_as_it_was(name: str) -> None:
    old = stored(name)
    assert old is not None, "run `make golden-update` once for a new algorithm"
    assert all(len(values) == 30 for values in old.values())
    change = largest_change(old, curves(name))
    assert max(change.values()) < 1e-7, change


def test_no_curve_is_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == set(ALGORITHMS.names())


@pytest.mark.parametrize("name", lm_curves.OPTIMIZERS)
def test_a_language_model_trains_as_it_did(name: str) -> None:
    old, new = lm_curves.stored(name), lm_curves.curves(name)
    assert all(len(values) == lm_curves.STEPS for values in old.values())
    change = lm_curves.largest_change(old, new)
    assert max(change.values()) < (1e-3 if name == "muon" else 1e-7), (
        change
    )  # its matrices are bf16
