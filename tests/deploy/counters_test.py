"""Does what Prometheus counts of a run that was stopped and went on equal what was trained?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.deploy import stack
from tests.procs import runs
from tests.procs.runs import free_port

pytestmark = [pytest.mark.procs, pytest.mark.prometheus]


def test_a_counter_starts_anew_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    with stack.running(tmp_path / "stack") as watching:
        words = ("--config", "smoke", "--set", "rounds=90", f"metrics.port={port}")
        words = (*words, f"metrics.targets={watching.targets}")
        first = runs.start(0, run, *words)
        runs.wait_for(lambda: watching.query("fedcore_round > 50"), "over half of it in Prometheus")
        first.terminate()
        runs.finish(first)
        assert runs.summary(run)["status"] == "stopped"
        assert runs.completed(0, run, *words)["rounds"] == 90
        [series] = watching.query("fedcore_samples_total[10m]")
        [resets] = watching.query("resets(fedcore_samples_total[10m])")
        [last] = watching.query("last_over_time(fedcore_progress_ratio[10m])")
    values = [float(value) for _, value in series["values"]]
    counted = values[0] + sum(b - a if b >= a else b for a, b in pairwise(values))
    trained = runs.summary(run)["samples"]
    assert float(resets["value"][1]) == 1
    assert float(last["value"][1]) == 1, "the last numbers were waited for"
    assert 0.6 * trained < counted <= trained
