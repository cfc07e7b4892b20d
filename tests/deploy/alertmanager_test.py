"""Does the shipped Alertmanager start without a network, and hold back what follows from more?"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.stack import DEPLOY
from tests.procs.runs import free_port, wait_for

pytestmark = [pytest.mark.procs, pytest.mark.prometheus]

CLIENT = {"run": "r", "rank": "0", "client": "q1"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    words = [f"--storage.path={tmp_path_factory.mktemp('am')}", f"--web.listen-address={address}"]
    server = subprocess.Popen(
        [
            *("prometheus-alertmanager", f"--config.file={DEPLOY}/prometheus/alertmanager.yml"),
            *("--cluster.listen-address=", *words),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: _is_ready(f"http://{address}"), "Alertmanager to be ready")
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ({"alertname": "RankDown", "rank": "1"}, {"alertname": "NoProgress"}),
        ({"alertname": "RunDiverged"}, {"alertname": "NaNLoss", **CLIENT}),
        ({"alertname": "LambdaExplosion", **CLIENT}, {"alertname": "LambdaGrowsTenfold", **CLIENT}),
    ],
)
def test_a_cause_holds_back_its_effect_in_its_own_run_alone(
    url: str, cause: dict[str, str], effect: dict[str, str], tmp_path: Path
) -> None:
    here, there = f"list/{tmp_path.name}", f"not-{tmp_path.name}"
    told = [{**cause, "run": here}, {**effect, "run": here}, {**effect, "run": there}]
    _tell(url, told)
    wanted = ["active", "suppressed", "active"]
    assert _settled(url, told, wanted) == wanted


def test_a_lost_rank_hides_neither_a_divergence_nor_a_failure(url: str, tmp_path: Path) -> None:
    """Each says something of its own. The fourth shows that inhibitions are at work by then."""
    names = ("RankDown", "RunDiverged", "RunFailed", "NoProgress")
    told = [{"alertname": name, "run": tmp_path.name} for name in names]
    _tell(url, told)
    wanted = ["active", "active", "active", "suppressed"]
    assert _settled(url, told, wanted) == wanted


def _tell(url: str, alerts: list[dict[str, str]]) -> None:
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    kind = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/api/v2/alerts", body, kind), timeout=10)


def _settled(url: str, told: list[dict[str, str]], wanted: list[str]) -> list[str | None]:
    """How the alerts stand once they do as wanted, or after 20 s."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: _states(url, told) == wanted, "alerts", limit=20)
    return _states(url, told)


def _states(url: str, alerts: list[dict[str, str]]) -> list[str | None]:
    """Active, suppressed, or None while one is not known."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=10) as answer:
        found = [(a["labels"], a["status"]["state"]) for a in json.load(answer)]
    return [next((s for labels, s in found if labels == one), None) for one in alerts]
