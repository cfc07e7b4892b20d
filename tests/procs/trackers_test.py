"""Do trackers follow a real run on two ranks, over a stop and on?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.telemetry.jsonl import last_of_each, read_events
from tests.procs import runs
from tests.unit.telemetry.trackers_test import of_mlflow, of_tensorboard

pytestmark = pytest.mark.procs


def test_a_stopped_run_is_one_run_to_its_trackers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    run, trackers = tmp_path / "mine", "metrics.trackers=[tensorboard,mlflow]"
    words = ["--config", "smoke", "--set", "rounds=12", trackers]
    process = runs.start(2, run, *words)
    runs.wait_for(lambda: runs.rounds_done(run) >= 2, "two rounds")
    process.terminate()
    runs.finish(process)
    assert runs.summary(run)["status"] == "stopped"
    runs.completed(0, run, *words)  # on one rank
    lines = [e for e in last_of_each(read_events(run / "metrics.jsonl")) if e["event"] == "round"]
    for read in (of_tensorboard, of_mlflow):
        curves, config = read(run / "trackers")
        assert [step for step, _ in curves["prototype_std"]] == [*range(1, 13)]
        due = [line["prototype_std"] for line in lines]
        assert [value for _, value in curves["prototype_std"]] == pytest.approx(due, rel=1e-6)
        assert config["rounds"] == "12"
