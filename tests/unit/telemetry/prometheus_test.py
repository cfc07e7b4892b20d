"""Does a scrape give what the catalogue promises, on a port that is told?"""

from __future__ import annotations

import math
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError
from fedcore.telemetry import endpoint
from fedcore.telemetry.catalogue import CATALOGUE
from fedcore.telemetry.events import LMClientEvent, LMWarningEvent, WarningEvent
from fedcore.telemetry.prometheus import QUANTILES, STATUSES, PrometheusSink, RunFacts
from tests.unit.telemetry.made_up import client_event, eval_event, round_event, step_event


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is given out again for a moment: too long for tests."""
    monkeypatch.setattr(endpoint, "FRESH", 0.0)


@contextmanager
def serving(
    told: list[str] | None = None, clients: int = 4, rank: int = 0, ranks: int = 1, **keys: Any
) -> Iterator[PrometheusSink]:
    """A sink on any free port, or as the metrics keys say."""
    config = MetricsConfig(**{"port": 0, **keys})
    warn = (told if told is not None else []).append
    run = RunFacts({"algorithm": "v14", "seed": 7}, clients, ranks, lambda_limit=50)
    sink = PrometheusSink(config, rank, ranks, run, warn)
    try:
        yield sink
    finally:
        sink.close()


def scrape(sink: PrometheusSink) -> list[Sample]:
    with urllib.request.urlopen(f"http://{sink.address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [s for family in text_string_to_metric_families(text) for s in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    found = [s.value for s in samples if s.name == f"fedcore_{name}" and s.labels == labels]
    assert len(found) == 1, f"{name} {labels}: {len(found)} samples"
    return found[0]


def fill(sink: PrometheusSink, clients: int = 4) -> list[Sample]:
    """All that can be set, set; and scraped."""
    accuracy = {"feature_ensemble": 0.9, "validation_local": 0.7}
    sink.write([*(client_event(k) for k in range(clients)), round_event(2, accuracy=accuracy)])
    sink.write([step_event(), eval_event()])
    sink.samples(64)
    sink.tokens(2048)
    sink.traffic("gather", 1000, 0.02)
    sink.phase("train", 1.5)
    sink.checkpointed(time.time())
    sink.checkpoint_failed()
    sink.write([WarningEvent(2, "hot"), LMWarningEvent(50, "hotter")])
    sink.write([LMClientEvent(50, k, loss=2.0 + k, drift=0.1) for k in range(clients)])
    return scrape(sink)


def test_scrape_holds_the_whole_catalogue_and_nothing_else() -> None:
    with serving() as sink:
        names = {s.name for s in fill(sink)}
    assert names == {series for m in CATALOGUE.values() for series in m.series}


def test_values_arrive_under_their_labels() -> None:
    with serving() as sink:
        sink.samples(36)
        samples = fill(sink)
    assert value(samples, "lambda_effective", client="3") == 4.0
    assert value(samples, "sigma_sq", client="0", task="local") == 2.0
    assert value(samples, "sigma_sq", client="0", task="align") == 0.5
    assert value(samples, "loss", client="0", term="base") == 1.5
    assert value(samples, "loss", client="0", term="align") == 0.25
    assert value(samples, "loss", client="0", term="supcon") == 1.1
    assert value(samples, "lm_client_loss", client="3") == 5.0
    assert value(samples, "lm_client_drift", client="0") == 0.1
    assert value(samples, "test_accuracy", readout="feature_ensemble") == 0.9
    assert value(samples, "validation_accuracy", readout="local") == 0.7
    assert [s.labels for s in samples if s.name == "fedcore_test_accuracy"] == [
        {"readout": "feature_ensemble"}  # what takes the largest of them must not see the other
    ]
    assert value(samples, "samples_total") == 100
    assert value(samples, "collective_bytes_total", op="gather") == 1000
    assert value(samples, "phase_seconds_sum", phase="train") == 1.5
    assert value(samples, "round") == 2
    assert value(samples, "lambda_exploded") == 2
    assert value(samples, "model_variance") == 0.01
    assert value(samples, "clients") == 4
    assert value(samples, "run_info", algorithm="v14", seed="7") == 1
    assert value(samples, "warnings_total") == 2
    assert value(samples, "checkpoint_failures_total") == 1
    assert value(samples, "ranks") == 1
    assert value(samples, "lambda_limit") == 50
    assert value(samples, "lm_step") == 100
    assert value(samples, "device_memory_bytes") > 1e6
    assert value(samples, "device_memory_bytes") < value(samples, "device_memory_total_bytes")


def test_histograms_count_up_to_each_bound() -> None:
    with serving() as sink:
        for seconds in (0.01, 0.02, 5.0, 1e9):  # a bound belongs to its bucket
            sink.phase("train", seconds)
        samples = scrape(sink)
    counts = {
        le: value(samples, "phase_seconds_bucket", phase="train", le=le)
        for le in ("0.01", "0.03", "3.0", "10.0", "3000.0", "+Inf")
    }
    assert counts == {"0.01": 1, "0.03": 2, "3.0": 2, "10.0": 3, "3000.0": 3, "+Inf": 4}
    assert value(samples, "phase_seconds_count", phase="train") == 4


def test_a_run_has_one_status_at_a_time() -> None:
    def status(samples: list[Sample]) -> dict[str, float]:
        return {s.labels["status"]: s.value for s in samples if s.name == "fedcore_run_status"}

    with serving() as sink:
        before = status(scrape(sink))
        sink.ended("diverged", wait=False)
        after = status(scrape(sink))
    assert before == dict.fromkeys(STATUSES, 0) | {"running": 1}
    assert after == dict.fromkeys(STATUSES, 0) | {"diverged": 1}


def test_nobody_waits_for_a_reader_who_never_was() -> None:
    with serving(linger=60) as sink:
        began = time.monotonic()
        sink.ended("completed", wait=True)
    assert time.monotonic() - began < 5


def test_a_client_that_sits_a_round_out_keeps_its_numbers() -> None:
    with serving() as sink:
        sink.write([client_event(0), client_event(1), round_event(0)])
        sink.write([client_event(1, lambda_raw=9.0), round_event(1)])
        samples = scrape(sink)
    assert value(samples, "lambda_raw", client="0") == 1
    assert value(samples, "lambda_raw", client="1") == 9


def test_unknown_gauges_are_absent_and_counters_start_at_zero() -> None:
    with serving() as sink:
        samples = scrape(sink)
    assert value(samples, "samples_total") == 0
    assert "fedcore_checkpoint_timestamp_seconds" not in {s.name for s in samples}


def test_many_clients_become_quantiles() -> None:
    with serving(clients=1000, per_client_limit=100) as sink:
        samples = fill(sink, clients=5)
    assert {s.labels["client"] for s in samples if "client" in s.labels} == set(QUANTILES)
    found = [value(samples, "lambda_raw", client=q) for q in QUANTILES]
    assert found == [1, 2, 3, 4, 5]
    assert value(samples, "loss", client="q0.5", term="supcon") == 1.1


def test_quantiles_do_not_hide_a_nan() -> None:
    with serving(clients=9, per_client_limit=0) as sink:
        sink.write([client_event(0), client_event(1, base_loss=math.nan)])
        assert math.isnan(value(scrape(sink), "loss", client="q0.5", term="base"))


def test_quantiles_show_an_infinite_one() -> None:
    with serving(clients=9, per_client_limit=0) as sink:
        sink.write([client_event(k, lambda_raw=math.inf if k == 2 else 1.0) for k in range(9)])
        samples = scrape(sink)
    assert [value(samples, "lambda_raw", client=q) for q in QUANTILES] == [1, 1, 1, 1, math.inf]


def test_round_without_evaluation_keeps_the_last_accuracy() -> None:
    with serving() as sink:
        sink.write([round_event(0)])
        sink.write([round_event(1, accuracy={})])
        assert value(scrape(sink), "test_accuracy", readout="feature_ensemble") == 0.9


def free_run_of_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for first in range(21000, 32000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return first
    raise AssertionError("no free ports")


def test_each_local_rank_has_its_own_port() -> None:
    told, first = list[str](), free_run_of_ports(4)
    with (
        serving(told, port=first, ranks=2) as one,
        serving(told, port=first, rank=1, ranks=2) as other,
    ):
        assert one.address == f"127.0.0.1:{first}"
        assert other.address == f"127.0.0.1:{first + 1}"
    assert not told


def test_port_in_use_falls_to_the_next_of_this_rank_and_is_told() -> None:
    told, first = list[str](), free_run_of_ports(4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        with serving(told, port=first, ranks=2) as sink:
            # first + 1 belongs to local rank 1
            assert sink.address == f"127.0.0.1:{first + 2}"
            assert scrape(sink)
    assert told == [f"metrics port {first} is not free; metrics are on port {first + 2}"]


def test_ports_beyond_the_last_fall_to_any_free_one() -> None:
    told = list[str]()
    with serving(told, port=65535, rank=3, ranks=8) as sink:
        assert scrape(sink)
    assert len(told) == 1


def test_close_frees_the_port() -> None:
    with serving() as sink:
        port = int(sink.address.split(":")[1])
    with serving(port=port) as again:
        assert again.address == f"127.0.0.1:{port}"


@pytest.mark.parametrize("bind", ["203.0.113.7", "no.such.host.invalid"])
def test_address_of_another_machine_is_a_config_error(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.bind"), serving(bind=bind):
        pass


def test_a_language_model_arrives_under_its_labels() -> None:
    with serving() as sink:
        sink.tokens(2048)
        sink.write([step_event(step=100, steps=400), eval_event()])
        found = {(s.name, *s.labels.values()): s.value for s in scrape(sink)}
    assert found["fedcore_lm_tokens_total",] == 2048
    assert found["fedcore_progress_ratio",] == 0.25
    assert found["fedcore_lm_loss", "train"] == found["fedcore_lm_loss", "held_out"] == 2.5
    assert found["fedcore_lm_weight_rms", "no_decay"] == 1.0
    assert found["fedcore_lm_weight_rms_ratio", "decay"] == pytest.approx(1.25)
    assert ("fedcore_lm_weight_rms_ratio", "no_decay") not in found, "nothing is predicted of it"
    assert found["fedcore_lm_memory_steps", "T3"] == 10_000
