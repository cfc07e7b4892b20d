"""Are the lines of metrics.jsonl shaped as promised, and is each metric declared once?"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedcore.telemetry.catalogue import CATALOGUE, Kind
from fedcore.telemetry.events import (
    Event,
    LMClientEvent,
    LMResumeEvent,
    LMStepEvent,
    LMWarningEvent,
    ResumeEvent,
    RoundEvent,
    WarningEvent,
    fits,
    from_record,
)
from tests.unit.telemetry.made_up import (
    client_event,
    eval_event,
    odd_records,
    round_event,
    step_event,
)

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


def test_a_client_without_validation_samples_has_no_such_key() -> None:
    """So that those who read lines see what they saw before there were any."""
    assert client_event(3, validation_accuracy=0.5).record()["validation_accuracy"] == 0.5
    assert "validation_accuracy" not in client_event(3, validation_accuracy=None).record()


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


@pytest.mark.parametrize(
    "event",
    [
        client_event(3, base_loss=0.25),
        client_event(3, validation_accuracy=0.5),
        round_event(2, accuracy={}),
        ResumeEvent(4, "round_00004"),
        LMResumeEvent(4, "step_00004"),
        WarningEvent(1, "words"),
        LMWarningEvent(1, "words"),
        step_event(),
        eval_event(),
        LMClientEvent(10, 3, 2.5, 0.1),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_line_is_read_back_as_the_event_it_was(event: Event) -> None:
    assert from_record(json.loads(json.dumps(event.record()))) == event


def test_null_is_read_back_as_nan_where_a_number_has_to_be() -> None:
    read = from_record(round_event(prototype_std=math.nan, model_variance=None).record())
    assert isinstance(read, RoundEvent)
    assert math.isnan(read.prototype_std)
    assert read.model_variance is None
    step = from_record(step_event(memory_steps={"T3": math.inf}).record())
    assert isinstance(step, LMStepEvent)
    assert math.isnan(step.memory_steps["T3"])


@pytest.mark.parametrize("record", odd_records())
def test_a_line_with_a_field_of_another_type_is_no_event(record: dict[str, Any]) -> None:
    assert from_record(record) is None
    assert not fits(record)


def test_a_line_of_an_earlier_version_has_its_shape_and_one_of_no_known_kind_none() -> None:
    whole = round_event(prototype_std=math.nan, model_variance=None).record()
    assert fits(whole)
    assert fits({k: v for k, v in whole.items() if k not in ("seconds", "time")})
    assert fits(LMWarningEvent(1, "words").record())
    assert not fits(whole | {"step": []})
    assert not fits(whole | {"event": "sneeze"})
    assert not fits({})


def test_what_is_no_whole_event_is_none() -> None:
    whole = round_event().record()
    assert from_record({}) is None
    assert from_record({"event": "sneeze", "time": 1.0}) is None
    assert from_record({k: v for k, v in whole.items() if k != "seconds"}) is None
    assert from_record(whole | {"of a later version": 1}) is not None
