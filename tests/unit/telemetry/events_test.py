"""Are the lines of metrics.jsonl shaped as promised, and is each metric declared once?"""

from __future__ import annotations

import json
import math

import pytest

from fedcore.telemetry.catalogue import CATALOGUE, Kind
from fedcore.telemetry.events import ResumeEvent, WarningEvent
from tests.unit.telemetry.made_up import client_event, round_event

PROMISED = {
    *("lambda_raw", "lambda_effective", "lambda_equilibrium", "sigma_sq", "loss", "gradient_norm"),
    *("annealing_factor", "progress_ratio", "round", "test_accuracy", "prototype_std"),
    *("samples_total", "phase_seconds", "collective_bytes_total", "collective_seconds"),
    *("clients", "device_memory_bytes", "checkpoint_timestamp_seconds", "run_info"),
}


def test_catalogue_holds_what_is_promised() -> None:
    assert set(CATALOGUE) >= PROMISED
    assert CATALOGUE["sigma_sq"].labels == ("client", "task")
    assert CATALOGUE["loss"].labels == ("client", "term")


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_metric_is_whole(name: str) -> None:
    metric = CATALOGUE[name]
    assert metric.help
    assert metric.full_name == f"fedcore_{name}"
    assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)


def test_client_line_has_the_promised_keys() -> None:
    promised = """event time round client samples base_loss align_loss lambda_raw lambda_effective
        lambda_equilibrium sigma_sq_local sigma_sq_align annealing_factor gradient_norm terms"""
    assert set(client_event(3).record()) == set(promised.split())


def test_round_line_has_the_promised_keys() -> None:
    promised = """event time round rounds progress annealing_factor accuracy prototype_std
        unit_prototype_std global_prototype_std model_variance lambda_exploded seconds
        samples_per_second bytes_communicated"""
    record = round_event().record()
    assert set(record) == set(promised.split())
    assert record["event"] == "round"


def test_what_is_not_finite_becomes_null() -> None:
    event = client_event(0, base_loss=math.nan, lambda_equilibrium=math.inf)
    record = json.loads(json.dumps(event.record(), allow_nan=False))
    assert record["base_loss"] is None
    assert record["lambda_equilibrium"] is None
    accuracy = round_event(accuracy={"averaged": math.nan}).record()["accuracy"]
    assert accuracy == {"averaged": None}


def test_other_events_name_themselves() -> None:
    assert ResumeEvent(3, "round_00003").record()["event"] == "resume"
    assert WarningEvent(3, "hot").record()["message"] == "hot"
