"""Do the shipped alerts reach an operator from real runs, and only from those in trouble?"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deploy.stack import DEPLOY, Stack, running
from tests.procs import runs

pytestmark = [pytest.mark.procs, pytest.mark.prometheus]

RULES = [DEPLOY / "prometheus" / name for name in ("recording.yml", "alerts.yml")]

# v12 and v14 of one setting: sigma learns so fast that v12's lambda explodes in seconds
QUICK = (
    *("rounds=9", "data.source=digits", "data.alpha=0.5", "evaluate.every=9"),
    *("clients.count=4", "clients.local_epochs=2", "clients.lr_log_var=0.5", "clients.max_norm=5"),
)
# weights beyond float32 after the first of its long rounds, by when it is known to Prometheus
WILD = ("clients.lr=1e17", "clients.local_epochs=14", "rounds=2", "evaluate.every=2")
QUANTILES = "metrics.per_client_limit=2"
ENDLESS = ("rounds=100000", "evaluate.every=100000")


@dataclass
class Seen:
    """What reached the webhook, and all that Prometheus ever held to be an alert."""

    received: list[dict[str, Any]]
    held: set[tuple[str, str, str]]  # run, alert, pending or firing
    last: dict[str, str]  # the last status of a run

    def alerts(self, run: str) -> set[str]:
        """Names of the alerts of a run that reached the webhook."""
        labels = [alert["labels"] for alert in self.received]
        return {found["alertname"] for found in labels if found["run"] == run}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Five runs side by side, from before their starts to after their ends."""
    folder, began = tmp_path_factory.mktemp("alerts"), time.time()
    with running(folder, RULES) as stack:
        started = {
            "lost": _start(stack, 2, "lost", *ENDLESS),
            "v12": _start(stack, 0, "v12", "algorithm.name=v12", QUANTILES, *QUICK),
            "v14": _start(stack, 0, "v14", "algorithm.name=v14", *QUICK),
        }
        try:
            _kill_rank_1(stack, started["lost"])
            started["wild"] = _start(stack, 0, "wild", *WILD)
            started["lm"] = _start(stack, 0, "lm", "lm.steps=300", config="lm_smoke")
            _wait_for_the_end(stack, started)
            yield Seen(list(stack.received), _held(stack, began), _last(stack))
        finally:
            for process in started.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(
    stack: Stack, ranks: int, name: str, *words: str, config: str = "smoke"
) -> subprocess.Popen[str]:
    shared = f"metrics.targets={stack.targets}"
    return runs.start(ranks, stack.folder / name, "--config", config, "--set", shared, *words)


def _kill_rank_1(stack: Stack, process: subprocess.Popen[str]) -> None:
    runs.wait_for(lambda: len(stack.query('up{run="lost"} == 1')) == 2, "both ranks to be scraped")
    os.kill(runs.rank_pids(process.pid)[1], signal.SIGKILL)


def _wait_for_the_end(stack: Stack, started: dict[str, subprocess.Popen[str]]) -> None:
    """Until all runs are over, and nothing but the lost rank is down."""
    for process in started.values():
        runs.finish(process)
    runs.wait_for(lambda: not stack.query('up{run!="lost"}'), "the others to be out of the targets")
    told = lambda name: any(a["labels"]["alertname"] == name for a in stack.received)  # noqa: E731
    runs.wait_for(lambda: told("RankDown") and told("RunDiverged"), "the last alerts")


def _held(stack: Stack, began: float) -> set[tuple[str, str, str]]:
    series = [s["metric"] for s in stack.query_range("ALERTS", began, time.time(), 1)]
    return {(s["run"], s["alertname"], s["alertstate"]) for s in series}


def _last(stack: Stack) -> dict[str, str]:
    series = stack.query("last_over_time(fedcore_run_status[10m]) == 1")
    return {s["metric"]["run"]: s["metric"]["status"] for s in series}


def test_v12s_explosion_reaches_the_operator(seen: Seen) -> None:
    """Also where its clients are shown as quantiles."""
    found = [a["labels"] for a in seen.received if a["labels"]["alertname"] == "LambdaExplosion"]
    assert {labels["run"] for labels in found} == {"v12"}
    assert "q1" in {labels["client"] for labels in found}


def test_a_killed_rank_reaches_the_operator(seen: Seen) -> None:
    down = [a["labels"] for a in seen.received if a["labels"]["alertname"] == "RankDown"]
    assert {labels["run"] for labels in down} == {"lost"}
    assert "1" in {labels["rank"] for labels in down}


def test_a_divergence_reaches_the_operator_though_its_target_is_gone(seen: Seen) -> None:
    assert "RunDiverged" in seen.alerts("wild")


@pytest.mark.parametrize(("run", "told"), [("v14", set()), ("lm", {"WarningsTold"})])
def test_a_healthy_run_is_silent_from_its_start_to_past_its_end(
    seen: Seen, run: str, told: set[str]
) -> None:
    """The small language model says of itself that its initialisation is never forgotten."""
    assert seen.last[run] == "completed"
    assert seen.alerts(run) == told
    pending = {alert for at, alert, state in seen.held if at == run and state == "pending"}
    # its target stands there for a moment after its end, which is what RankDown waits out
    assert pending <= {"RankDown"}


def test_what_an_alert_says_is_complete(seen: Seen) -> None:
    assert seen.received
    for alert in seen.received:
        words = alert["annotations"]
        assert alert["labels"]["run"] in words["summary"]
        for text in words.values():
            assert "error" not in text.lower() or "ended in an error" in text
            assert "no value" not in text
