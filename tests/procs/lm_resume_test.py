"""Does a language-model run survive kill -9, a stop and another number of ranks?"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from fedcore.telemetry.jsonl import last_of_each, read_events
from tests.procs import runs

pytestmark = pytest.mark.procs

LM = {
    "steps": 400,
    "batch_size": 8,
    "log_every": 1,
    "data": {"limit": 40_000},
    "model": {"layers": 2, "width": 36, "heads": 2, "context": 24},
    "optimizer": {"lr": 0.003},
}
WORDS = ("evaluate.every=200", "checkpoint.every=25", "checkpoint.keep=3")


def words(folder: Path, *more: str) -> tuple[str, ...]:
    config = folder / "lm.yaml"
    config.write_text(json.dumps({"lm": LM, "data": {"store": str(folder / "store")}}))
    return ("--config", str(config), "--set", *WORDS, *more)


def losses(run_dir: Path) -> dict[int, float]:
    lines = last_of_each(read_events(run_dir / "metrics.jsonl"))
    return {e["step"]: e["loss"] for e in lines if e["event"] == "lm_step"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the run in one plain process."""
    folder = tmp_path_factory.mktemp("alone")
    found = runs.completed(0, folder / "run", *words(folder))
    assert found["kind"] == "lm"
    assert found["final_loss"] == losses(folder / "run")[400]
    return losses(folder / "run")


@pytest.mark.long
def test_a_killed_run_goes_on_under_another_engine_and_number_of_ranks(
    alone: dict[int, float], tmp_path: Path
) -> None:
    """ZeRO 2 on two ranks, killed; the newest checkpoint is damaged; then ZeRO 3 on one."""
    run_dir = tmp_path / "run"
    # ranks meet in the engine's own collectives alone, but for each fifth step
    sharded = ("lm.log_every=5", "lm.engine=deepspeed", "lm.zero_stage=2")
    process = runs.start(2, run_dir, *words(tmp_path, *sharded))
    runs.wait_for(lambda: len([*run_dir.glob("checkpoints/step_*")]) > 1, "two checkpoints")
    os.kill(runs.rank_pids(process.pid)[1], signal.SIGKILL)
    out = runs.finish(process, limit=60)
    assert runs.summary(run_dir)["exit_code"] == 5, out[-3000:]
    newest = sorted(run_dir.glob("checkpoints/step_*"))[-1]
    with (newest / "model-00000.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\1")
    out = runs.run(1, run_dir, *words(tmp_path, *sharded, "lm.zero_stage=3"))
    assert runs.summary(run_dir)["status"] == "completed", out[-3000:]
    assert f"passing over {newest.name}" in out
    assert "going on after step" in out
    means = {end: sum(alone[s] for s in range(end - 4, end + 1)) / 5 for end in range(5, 401, 5)}
    assert losses(run_dir) == pytest.approx(means, rel=1e-3)


def test_a_stopped_run_goes_on_exactly(alone: dict[int, float], tmp_path: Path) -> None:
    """In one process a stop at any step leaves no trace in the numbers."""
    run_dir = tmp_path / "run"
    process = runs.start(0, run_dir, *words(tmp_path))
    runs.wait_for(lambda: len(read_lines(run_dir)) > 30, "thirty lines")
    process.send_signal(signal.SIGTERM)
    out = runs.finish(process)
    assert process.returncode == 75, out[-3000:]
    assert runs.summary(run_dir)["status"] == "stopped"
    assert "stopped on request before step" in out
    runs.completed(0, run_dir, *words(tmp_path))
    assert losses(run_dir) == alone


def read_lines(run_dir: Path) -> list[str]:
    file = run_dir / "metrics.jsonl"
    return file.read_text().splitlines() if file.is_file() else []
