"""Does the operator see the run?"""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedcore.telemetry.catalogue import CATALOGUE
from tests.procs import runs

pytestmark = pytest.mark.procs


def targets(run: Path) -> list[dict]:
    return json.loads((run / "prometheus_targets.json").read_text())


def clients_at(address: str) -> set[str]:
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    families = list(text_string_to_metric_families(text))
    assert {f.name for f in families if f.name.startswith("fedcore")} <= {
        m.full_name.removesuffix("_total") for m in CATALOGUE.values()
    }
    lam = [f for f in families if f.name == "fedcore_lambda_effective"]
    return {s.labels["client"] for f in lam for s in f.samples}


def test_every_rank_shows_its_own_clients(tmp_path: Path) -> None:
    words = ("--config", "smoke", "--set", "rounds=400", "clients.count=6", "data.alpha=1")
    process = runs.start(3, tmp_path, *words)
    try:
        runs.wait_for(lambda: runs.rounds_done(tmp_path) >= 1, "a first round")
        listed = targets(tmp_path)
        addresses = [t["targets"][0] for t in listed]
        seen = [clients_at(address) for address in addresses]
    finally:
        process.terminate()
        runs.finish(process, limit=60)
    assert [t["labels"]["rank"] for t in listed] == ["0", "1", "2"]
    assert set().union(*seen) == {str(k) for k in range(6)}
    assert sum(map(len, seen)) == 6
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_a_port_in_use_falls_to_the_next_free_one_and_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("--config", "smoke", "--set", f"metrics.port={port}", "metrics.linger=0")
        process = runs.start(0, tmp_path, *words)
        file = tmp_path / "prometheus_targets.json"
        runs.wait_for(lambda: file.is_file() and targets(tmp_path), "target file")
        assert clients_at(targets(tmp_path)[0]["targets"][0]) is not None
        out = runs.finish(process)
    assert runs.summary(tmp_path)["status"] == "completed"
    assert f"metrics port {port} is not free; metrics are on port" in out


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
