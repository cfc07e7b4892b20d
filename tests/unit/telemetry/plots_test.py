"""Is a run's file read back as arrays, and drawn whatever is in it?"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.telemetry.history import History, median, span
from fedcore.telemetry.plots import plot_lambda
from tests.unit.telemetry.made_up import client_event, recorded, round_event, whole_run


def test_history_has_a_row_a_round_and_a_column_a_client(tmp_path: Path) -> None:
    events = [client_event(5, 0), client_event(2, 1), client_event(5, 1), round_event(0)]
    run = History.of(recorded(tmp_path / "run", events))
    rounds, values = run.per_client("lambda_raw")
    assert rounds.tolist() == [1, 2]
    np.testing.assert_array_equal(values, [[np.nan, 6], [3, 6]])
    assert run.accuracy("feature_ensemble")[1].tolist() == [0.9]


def test_folds_leave_out_what_is_not_known() -> None:
    values = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = span(values)
        np.testing.assert_array_equal(median(values), [2, np.nan])
    np.testing.assert_array_equal(low, [1, np.nan])
    np.testing.assert_array_equal(high, [3, np.nan])


@pytest.mark.parametrize("runs", [1, 2])
def test_runs_are_drawn(tmp_path: Path, runs: int) -> None:
    folders = [recorded(tmp_path / f"run{i}", whole_run(3, 5)) for i in range(runs)]
    out = plot_lambda(folders, tmp_path / "lambda.png")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_odd_values_are_drawn_without_a_warning(tmp_path: Path) -> None:
    events = [
        client_event(0, 0, lambda_raw=0.0, align_loss=math.nan, lambda_equilibrium=math.inf),
        round_event(0, 1, accuracy={}),
    ]
    folder = recorded(tmp_path / "run", events)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_lambda(folder, tmp_path / "lambda.svg")


def test_no_run_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        plot_lambda(tmp_path, tmp_path / "lambda.png")
    with pytest.raises(ConfigError, match="finished round"):
        plot_lambda(recorded(tmp_path / "run", [round_event()]), tmp_path / "lambda.png")
