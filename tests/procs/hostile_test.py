"""Does a run go on, and end, whatever is done to its metrics endpoints?"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.procs import runs
from tests.procs.scrape_test import targets

pytestmark = pytest.mark.procs


def annoy(address: tuple[str, int], until: threading.Event) -> None:
    """Half-open connections, endless headers and two hundred readers at once, again and again."""
    while not until.is_set():
        with contextlib.ExitStack() as held:
            for number in range(200):
                with contextlib.suppress(OSError):
                    end = held.enter_context(socket.create_connection(address, 2))
                    if number % 4 == 1:
                        end.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
                    elif number % 4:
                        end.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            until.wait(0.2)


def test_a_run_under_attack_goes_on_and_ends(tmp_path: Path) -> None:
    words = ("--config", "smoke", "--set", "rounds=3", "metrics.linger=1")
    process, over = runs.start(2, tmp_path / "run", *words), threading.Event()
    file = tmp_path / "run" / "prometheus_targets.json"
    runs.wait_for(lambda: file.is_file() and targets(tmp_path / "run"), "target file")
    addresses = [t["targets"][0] for t in targets(tmp_path / "run")]
    places = [(a.split(":")[0], int(a.split(":")[1])) for a in addresses]
    crowd = [threading.Thread(target=annoy, args=(place, over)) for place in places]
    for one in crowd:
        one.start()
    try:
        answers = [
            urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read()
            for address in addresses
        ]
        out = runs.finish(process)
    finally:
        over.set()
        for one in crowd:
            one.join()
    assert all(b"fedcore_samples_total" in answer for answer in answers)
    assert runs.summary(tmp_path / "run")["status"] == "completed", out[-3000:]
    assert "Traceback" not in out
    assert "Connection" not in out, "a reader's mistakes are not shown"


def test_the_last_numbers_wait_for_a_reader_who_was_there_before(tmp_path: Path) -> None:
    words = ("--config", "smoke", "--set", "rounds=3", "metrics.linger=60")
    process, seen = runs.start(0, tmp_path, *words), list[str]()
    file = tmp_path / "prometheus_targets.json"
    runs.wait_for(lambda: file.is_file() and targets(tmp_path), "target file")
    address = targets(tmp_path)[0]["targets"][0]
    while process.poll() is None and time.time() < file.stat().st_mtime + 60:
        with contextlib.suppress(OSError):
            page = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
            seen.append(
                next(
                    x
                    for x in page.splitlines()
                    if x.startswith("fedcore_run_status") and x.endswith(" 1.0")
                )
            )
        time.sleep(0.3)
    out = runs.finish(process, limit=20)
    assert runs.summary(tmp_path)["status"] == "completed", out[-3000:]
    assert seen[0] == 'fedcore_run_status{status="running"} 1.0'
    assert seen[-1] == 'fedcore_run_status{status="completed"} 1.0'
    assert targets(tmp_path) == [], "nobody is to be missed after an orderly end"


def test_a_killed_rank_stays_among_the_targets(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    words = ("--config", "smoke", "--set", "rounds=400", f"metrics.targets={folder}")
    process = runs.start(2, tmp_path / "run", *words)
    runs.wait_for(lambda: runs.rounds_done(tmp_path / "run") >= 1, "a first round")
    [one, _] = targets(tmp_path / "run")
    page, place = f"http://{one['targets'][0]}/metrics?run=", one["labels"]["__param_run"]
    assert urllib.request.urlopen(page + place, timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):  # a dead run had the port
        urllib.request.urlopen(page + "dead", timeout=10)
    os.kill(runs.rank_pids(process.pid)[1], signal.SIGKILL)
    runs.finish(process, limit=60)
    assert len(targets(tmp_path / "run")) == 2
    assert len(list(folder.iterdir())) == 1
