"""Is the process that serves the metrics there as long as its rank, and no trouble to it?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError
from fedcore.telemetry import exporter
from fedcore.telemetry.exporter import Exporter

NUMBERS = {"rows": [["round", [], 3]], "version": 0, "clients": []}


def made(told: list[str] | None = None) -> Exporter:
    warn = (told if told is not None else []).append
    return Exporter(MetricsConfig(port=0), [0], lambda known: NUMBERS, warn)


def ask(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read()


def until(condition: Callable[[], object], limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_refused(port: int) -> bool:
    try:
        ask(port)
    except OSError:
        return True
    return False


def test_who_waits_for_a_reader_waits_for_one_of_the_numbers_as_they_are_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter.endpoint, "FRESH", 0.0)
    served = made()
    try:
        assert not served.is_read(within=60)
        assert b"fedcore_round 3.0" in ask(served.port)
        until(lambda: served.is_read(within=60))
        assert not served.wait_for_reader(0.05), "the one before does not count"
        reader = subprocess.Popen(
            [sys.executable, "-c", _READ_LATER.format(served.port)], stdout=subprocess.DEVNULL
        )
        assert served.wait_for_reader(30)
        reader.wait(timeout=30)
    finally:
        served.close()
    assert is_refused(served.port)


_READ_LATER = """
import time, urllib.request
time.sleep(0.1)
urllib.request.urlopen("http://127.0.0.1:{}/metrics").read()
"""


def test_what_ends_a_job_does_not_end_it() -> None:
    served = made()
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            os.kill(served._process.pid, number)
        assert b"fedcore_round" in ask(served.port)
    finally:
        served.close()


def test_its_end_is_told_and_is_no_trouble() -> None:
    told = list[str]()
    served = made(told)
    os.kill(served._process.pid, signal.SIGKILL)
    until(lambda: told)
    served.close()
    assert told == ["its metrics are no longer served: the process that did has ended"]


def test_it_goes_when_its_rank_is_killed() -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", _RANK], stdout=subprocess.PIPE, text=True, cwd=exporter.ROOT
    )
    assert rank.stdout is not None
    port = int(rank.stdout.readline())
    assert b"fedcore_round" in ask(port)
    rank.kill()
    rank.wait()
    until(lambda: is_refused(port))


_RANK = """
import time
from tests.unit.telemetry.exporter_test import made
print(made().port, flush=True)
time.sleep(60)
"""


def test_numbers_that_cannot_be_had_are_an_empty_page_and_told() -> None:
    told = list[str]()
    served = Exporter(MetricsConfig(port=0), [0], lambda known: {}[known], told.append)
    try:
        assert ask(served.port) == b""
    finally:
        served.close()
    assert "KeyError" in told[0]


def test_a_process_that_does_not_start_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MODULE", "fedcore.telemetry.no_such_module")
    with pytest.raises(ConfigError, match=r"metrics\.enabled=false"):
        made()


def test_what_it_refuses_comes_back_in_words(tmp_path: Path) -> None:
    config = MetricsConfig(port=0, credentials=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"metrics\.credentials"):
        Exporter(config, [0], lambda known: NUMBERS, print)
