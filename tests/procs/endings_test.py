"""Does every rank end with the right code and words, whatever it was given or finds?"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import damage
from tests.procs import runs

pytestmark = pytest.mark.procs

LONG = ("--config", "smoke", "--set", "rounds=400")


def test_torchrun_forwards_sigterm_to_all_ranks(tmp_path: Path) -> None:
    process = runs.start(2, tmp_path, *LONG)
    runs.wait_for(lambda: runs.rounds_done(tmp_path) >= 1, "a first round")
    process.terminate()
    out = runs.finish(process, limit=60)
    assert runs.summary(tmp_path)["exit_code"] == 75, out[-3000:]


def test_a_nan_loss_stops_all_ranks_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    words = ("--config", "smoke", "--set", "rounds=3")
    runs.completed(2, tmp_path / "good", *words)
    out = runs.run(2, tmp_path / "bad", *words, "--set", "clients.lr=1e38", "clients.max_norm=1e38")
    found = runs.summary(tmp_path / "bad")
    assert (found["status"], found["exit_code"]) == ("diverged", 4), out[-3000:]
    assert "diverged in round 1:" in out
    assert "client" in found["message"]
    good = tmp_path / "good" / "checkpoints" / "round_00003"
    assert (good / "index.json").is_file()


def test_a_resume_with_a_changed_configuration_lists_the_changed_keys(tmp_path: Path) -> None:
    runs.completed(0, tmp_path, "--config", "smoke")
    before = (tmp_path / "summary.json").read_text()
    process = runs.start(0, tmp_path, "--config", "smoke", "--set", "clients.lr=0.1", "seed=3")
    out = runs.finish(process)
    assert process.returncode == 2
    assert "clients.lr: 0.05 -> 0.1" in out
    assert "seed: 0 -> 3" in out
    assert (tmp_path / "summary.json").read_text() == before


def test_a_completed_run_is_not_run_again_unless_asked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.completed(0, run, "--config", "smoke")
    out = runs.run(0, run, "--config", "smoke")
    assert "completed" in out
    runs.completed(0, run, "--config", "smoke", "--resume", "never")
    assert (tmp_path / "run.1" / "summary.json").is_file()


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    process = runs.start(2, tmp_path / "file" / "run", "--config", "smoke")
    out = runs.finish(process)
    assert process.returncode != 0
    assert "cannot write" in out
    assert "another --run-dir" in out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    with damage.small_disk(tmp_path / "disk", "size=1m") as disk:
        yield disk


@pytest.mark.root
def test_a_full_disk_is_told_and_loses_nothing(small_disk: Path) -> None:
    """Room for the first checkpoints, not for all: the run goes on, but its result must be kept."""
    words = ("--config", "smoke", "--set", "checkpoint.keep=10", "rounds=4")
    out = runs.run(0, small_disk / "run", *words)
    assert "no checkpoint round_0000" in out
    assert "Older ones stay" in out
    found = runs.summary(small_disk / "run")
    assert (found["status"], found["exit_code"], found["rounds"]) == ("failed", 2, 4)
    kept = (small_disk / "run" / "checkpoints" / "latest").read_text()
    assert (small_disk / "run" / "checkpoints" / kept / "index.json").is_file()
    damage.remount(small_disk, "size=64m")
    assert runs.completed(0, small_disk / "run", *words)["rounds"] == 4


def test_a_corrupted_shard_ends_all_ranks_naming_it(tmp_path: Path) -> None:
    words = ("--config", "smoke", "--set", f"data.store={tmp_path}/store")
    runs.completed(0, tmp_path / "first", *words)
    tar = next((tmp_path / "store").rglob("client_00002/*.tar"))
    damage.flip(tar, at=2000)
    out = runs.run(2, tmp_path / "second", *words)
    found = runs.summary(tmp_path / "second")
    assert found["exit_code"] == 3, out[-3000:]
    assert "client_00002/00000.tar" in found["message"]
    assert "sha256" in found["message"]


def test_wrong_words_end_with_code_2_and_one_message(tmp_path: Path) -> None:
    process = runs.start(2, tmp_path, "--config", "smoke", "--set", "clients.cuont=3")
    out = runs.finish(process)
    said = [line for line in out.splitlines() if "clients.cuont" in line]
    # rank 0 says it, unless torchrun ends it first: then the report of the other rank does
    assert said
    assert sum(line.startswith("fedcore:") for line in said) <= 1
    assert all("traceback :" in line for line in said if not line.startswith("fedcore:"))
    assert "Try clients.count" in out
    alone = runs.start(0, tmp_path, "--set", "data.alpha=0")
    runs.finish(alone)
    assert alone.returncode == 2


@pytest.mark.parametrize(
    "words",
    [("clients.width=4",), ("precision=bf16",), ("precision=fp64", "model.feature_dim=12")],
    ids=["lanes", "bf16", "fp64"],
)
def test_settings_that_change_how_a_run_computes(words: tuple[str, ...], tmp_path: Path) -> None:
    found = runs.completed(0, tmp_path, "--config", "smoke", "--set", *words)
    assert found["accuracy"]["output_ensemble"] > 0.75


def test_clients_without_samples_or_with_one_class_are_named_and_trained(tmp_path: Path) -> None:
    words = ("--config", "smoke", "--set", "clients.count=40", "data.alpha=0.005", "rounds=1")
    out = runs.run(3, tmp_path, *words)
    found = runs.summary(tmp_path)
    assert found["status"] == "completed", out[-3000:]
    assert "clients without samples, left out: " in out
    assert "clients with one class only: " in out
    clients = [
        json.loads(line)
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
        if '"event": "client"' in line
    ]
    assert 0 < len(clients) < 40
    assert all(c["base_loss"] is not None for c in clients)


def test_a_second_job_in_the_same_run_directory_is_refused(tmp_path: Path) -> None:
    first = runs.start(0, tmp_path, *LONG)
    runs.wait_for(lambda: runs.rounds_done(tmp_path) >= 1, "a first round")
    for words in ((), ("--resume", "never")):
        second = runs.start(0, tmp_path, *LONG, *words)
        out = runs.finish(second)
        assert second.returncode == 2
        assert "no running job" in out
    first.terminate()
    runs.finish(first, limit=30)
    assert runs.summary(tmp_path)["exit_code"] == 75


def test_a_signal_to_every_process_of_a_run_that_starts_is_a_stop(tmp_path: Path) -> None:
    """As Slurm sends it: also to the process that serves the metrics, while that still starts."""
    words = ("--config", "smoke", "--set", "clients.local_epochs=200", "metrics.linger=0")
    process = runs.start(0, tmp_path, *words)
    assert process.stdout is not None
    assert any("run directory" in line for line in process.stdout)
    os.killpg(process.pid, signal.SIGTERM)
    out = runs.finish(process)
    assert process.returncode == 75, out[-3000:]
    assert (tmp_path / "checkpoints" / "latest").is_file()
