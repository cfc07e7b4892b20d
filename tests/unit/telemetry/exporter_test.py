"""Is the process that serves the metrics there as long as its rank, and no trouble to it?"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError
from fedcore.telemetry import exporter
from fedcore.telemetry.exporter import Exporter
from tests.procs.runs import wait_for

pytestmark = pytest.mark.broad

NUMBERS = {"rows": [["round", [], 3]], "version": 0, "clients": []}


def made(told: list[str] | None = None) -> Exporter:
    warn = (told if told is not None else []).append
    return Exporter(MetricsConfig(port=0), [0], lambda known: NUMBERS, warn)


def ask(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read()


def is_refused(port: int) -> bool:
    try:
        ask(port)
    except (OSError, http.client.HTTPException):
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
        wait_for(lambda: served.is_read(within=60), "a reader", 10)
        assert not served.wait_for_reader(0.05), "the one before does not count"
        with subprocess.Popen([sys.executable, "-c", _READER.format(served.port)]) as reader:
            assert served.wait_for_reader(30)
            reader.kill()
    finally:
        served.close()
    assert is_refused(served.port)


_READER = """
import time, urllib.request
while True:
    urllib.request.urlopen("http://127.0.0.1:{}/metrics").read()
    time.sleep(0.05)
"""


def test_what_ends_a_job_does_not_end_it() -> None:
    served = made()
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            os.kill(served._process.process.pid, number)
        assert b"fedcore_round" in ask(served.port)
    finally:
        served.close()


def test_it_is_started_again_once_where_it_was_and_its_end_is_no_trouble() -> None:
    told = list[str]()
    served = made(told)
    assert ask(served.port)
    for number, words in enumerate(("was started again", "no longer served")):
        os.kill(served._process.process.pid, signal.SIGKILL)
        wait_for(lambda number=number: len(told) > number, "a warning", 10)
        assert words in told[number]
        assert is_refused(served.port) is bool(number)
    began = time.monotonic()
    assert not served.wait_for_reader(30), "there will be none"
    served.close()
    assert time.monotonic() - began < 5


def test_it_goes_when_its_rank_is_killed() -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", _RANK], stdout=subprocess.PIPE, text=True, cwd=exporter.ROOT
    )
    assert rank.stdout is not None
    port = int(rank.stdout.readline())
    assert b"fedcore_round" in ask(port)
    rank.kill()
    rank.wait()
    wait_for(lambda: is_refused(port), "the port to close", 10)


_RANK = """
import time
from tests.unit.telemetry.exporter_test import made
print(made().port, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("numbers", [lambda known: {}[known], lambda known: {"rows": [object()]}])
def test_numbers_that_cannot_be_had_are_an_empty_page_and_told(numbers: Callable) -> None:
    told = list[str]()
    served = Exporter(MetricsConfig(port=0), [0], numbers, told.append)
    try:
        assert ask(served.port) == b""
    finally:
        served.close()
    assert "cannot be read" in told[0]


def test_a_rank_that_hangs_is_a_503_and_its_late_answer_is_to_no_other_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter.endpoint, "FRESH", 0.0)
    hangs, rounds = threading.Event(), iter([1, 2, 3])

    def numbers(known: int) -> dict[str, Any]:
        hangs.wait(20)
        return NUMBERS | {"rows": [["round", [], next(rounds)]]}

    served = Exporter(MetricsConfig(port=0), [0], numbers, print)
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            ask(served.port)
        hangs.set()
        assert b"fedcore_round 2.0" in ask(served.port)
    finally:
        served.close()


def test_without_descriptors_it_neither_spins_nor_stays_shut() -> None:
    served = made()
    pid = served._process.process.pid
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, 40))
    place = ("127.0.0.1", served.port)
    try:
        with contextlib.ExitStack() as held:
            for _ in range(100):
                held.enter_context(socket.create_connection(place, timeout=5))
            before = cpu_seconds(pid)
            time.sleep(1)
            assert cpu_seconds(pid) - before < 0.5
            wait_for(lambda: not is_refused(served.port), "the port to open", 10)
    finally:
        served.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_files_of_the_working_directory_are_not_taken_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    made().close()


def test_one_that_hangs_as_it_starts_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PATIENCE", 0.2)
    monkeypatch.setattr(exporter, "_start", lambda end: subprocess.Popen(["sleep", "60"]))
    with pytest.raises(ConfigError, match=r"metrics\.enabled=false"):
        made()


def test_sinks_one_after_another_leave_nothing_behind() -> None:
    made().close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        served = made()
        ask(served.port)
        served.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_process_that_does_not_start_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MODULE", "fedcore.telemetry.no_such_module")
    with pytest.raises(ConfigError, match=r"metrics\.enabled=false"):
        made()


def test_what_it_refuses_comes_back_in_words(tmp_path: Path) -> None:
    config = MetricsConfig(port=0, credentials=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"metrics\.credentials"):
        Exporter(config, [0], lambda known: NUMBERS, print)
