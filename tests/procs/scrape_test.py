"""Does the operator see the run?"""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.procs import runs

pytestmark = pytest.mark.procs


def targets(run: Path) -> list[dict]:
    return json.loads((run / "prometheus_targets.json").read_text())


def test_a_port_in_use_falls_to_the_next_free_one_and_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("--config", "smoke", "--set", f"metrics.port={port}", "metrics.linger=0")
        process = runs.start(0, tmp_path, *words)
        file = tmp_path / "prometheus_targets.json"
        runs.wait_for(lambda: file.is_file() and targets(tmp_path), "target file")
        url = f"http://{targets(tmp_path)[0]['targets'][0]}/metrics"
        assert b"fedcore_clients 4.0" in urllib.request.urlopen(url, timeout=10).read()
        out = runs.finish(process)
    assert runs.summary(tmp_path)["status"] == "completed"
    assert f"metrics port {port} is not free; metrics are on port" in out
