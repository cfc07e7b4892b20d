"""A list on two ranks: stopped, gone on with, one experiment diverging, and nothing done twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from launcher import main
from tests.procs import runs

pytestmark = pytest.mark.procs

TINY = {
    "lm": {
        "steps": 80,
        "batch_size": 4,
        "log_every": 2,
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 32},
        "data": {"limit": 30_000},
    },
    "experiments": [
        {"name": "first"},
        {
            "name": "explodes",
            "set": {"lm.optimizer.lr": 1e30, "lm.optimizer.weight_decay": 0, "lm.steps": 10},
        },
        {"name": "last", "set": {"lm.model.feed_forward": "silu", "lm.steps": 10}},
    ],
}


def statuses(out: Path) -> dict[str, tuple[str, int]]:
    found = json.loads((out / "suite.json").read_text())["runs"]
    return {row["experiment"]: (row["status"], row["exit_code"]) for row in found}


@pytest.mark.usefixtures("own_signals")
def test_a_divergence_or_a_stop_costs_no_other_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "list.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(TINY | {"data": {"store": str(tmp_path / "store")}}))
    words = ("--config", str(file))
    metrics = out / "first-s0" / "metrics.jsonl"

    process = runs.start(2, out, *words)
    runs.wait_for(lambda: metrics.is_file() and "lm_step" in metrics.read_text(), "a line")
    os.kill(runs.rank_pids(process.pid)[1], signal.SIGTERM)  # one rank; all must stop
    said = runs.finish(process)
    assert runs.summary(out / "first-s0")["exit_code"] == 75, said[-3000:]
    assert "(exitcode: 75)" in said
    assert not (out / "explodes-s0").exists()

    said = runs.run(2, out, *words)
    assert "(exitcode: 4)" in said, said[-3000:]
    ends = {"first": ("completed", 0), "explodes": ("diverged", 4), "last": ("completed", 0)}
    assert statuses(out) == ends
    assert '"event": "resume"' in metrics.read_text()
    page = (out / "table.md").read_text()
    assert all(f"| {name} | {status}" in page for name, (status, _) in ends.items())

    before = {f: f.stat().st_mtime_ns for f in out.glob("*/metrics.jsonl")}
    capsys.readouterr()
    assert main.main([*words, "--run-dir", str(out)]) == 4  # on one rank now: the same list
    said = capsys.readouterr().out
    assert said.count("holds this run, completed") == 2
    assert "explodes-s0 diverged (after step" in said
    assert {f: f.stat().st_mtime_ns for f in out.glob("*/metrics.jsonl")} == before
