"""Does a comparison of real runs go on after a kill, and keep what diverges or fails?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.procs import runs

pytestmark = pytest.mark.procs

SMALL = ("clients.local_epochs=1", "clients.count=2")


def words(out: Path, *extra: str, sets: tuple[str, ...] = SMALL) -> list[str]:
    own = ["--out", str(out), "--seeds", "1", *(w for s in sets for w in ("--set", s))]
    return [sys.executable, "-m", "launcher.commands", "compare", "smoke", *own, *extra]


def start(command: list[str]) -> subprocess.Popen[str]:
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=runs.ROOT, text=True, **both)


def compare(*given: str, out: Path, sets: tuple[str, ...] = SMALL) -> tuple[int, str]:
    process = start(words(out, *given, sets=sets))
    text = runs.finish(process)
    return process.returncode, text


def table(out: Path) -> dict[str, dict]:
    rows = json.loads((out / "table.json").read_text())["groups"][0]["rows"]
    return {row["label"]: row for row in rows}


TWO = ("--algorithm", "v4", "--algorithm", "v14")
LONG = (*SMALL, "rounds=20")


@pytest.mark.parametrize(
    "by", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path, by: signal.Signals) -> None:
    process = start(words(tmp_path, *TWO, sets=LONG))
    (first,) = runs.wait_for(lambda: list(tmp_path.glob("smoke-v4-*")), "the first run")
    runs.wait_for(lambda: runs.rounds_done(first) >= 2, "two rounds")
    os.kill(process.pid, by)
    process.wait(60)
    assert not (tmp_path / "table.json").exists()
    if by == signal.SIGTERM:
        assert process.returncode == 75
        assert runs.summary(first)["status"] == "stopped"
    code, text = compare(*TWO, out=tmp_path, sets=LONG)
    assert code == 0, text
    assert {row["runs"][0]["status"] for row in table(tmp_path).values()} == {"completed"}
    assert len((first / "metrics.jsonl").read_text().splitlines()) < 2 * 20 * 3  # not anew
    done = (first / "log.txt").stat().st_mtime
    assert compare(*TWO, out=tmp_path, sets=LONG)[0] == 0
    assert (first / "log.txt").stat().st_mtime == done  # what is finished is not started again


def test_a_diverging_run_is_a_row_and_no_failure(tmp_path: Path) -> None:
    code, text = compare(out=tmp_path, sets=(*SMALL, "rounds=1", "clients.lr=1e30"))
    assert code == 0, text
    assert "diverged (round 1)" in text
    assert table(tmp_path)["v14"]["runs"][0]["exit_code"] == 4


def test_a_failing_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    # 8 features are too few for ETF anchors of ten classes, and enough without an align term
    sets = (*SMALL, "rounds=1", "model.feature_dim=8")
    code, text = compare("--algorithm", "v14", "--algorithm", "v4", out=tmp_path, sets=sets)
    assert code == 1, text
    rows = table(tmp_path)
    assert rows["v14"]["runs"][0]["status"] == "failed (exit code 2)"
    assert rows["v4"]["runs"][0]["status"] == "completed"


def test_a_bad_name_starts_nothing(tmp_path: Path) -> None:
    code, text = compare("--algorithm", "v4", "--algorithm", "v144", out=tmp_path / "out")
    assert code == 2
    assert "v14" in text
    assert not (tmp_path / "out").exists()
