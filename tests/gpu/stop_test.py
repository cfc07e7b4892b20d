"""Stops, checkpoints and a lack of memory on a CUDA device. Run with `make gpu`."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

from fedcore.checkpoint import Checkpoint, candidates
from fedcore.checkpoint_writer import Checkpoints, Contents
from fedcore.clients.room import is_out_of_memory
from fedcore.server.comm import LocalComm
from tests.procs import runs

pytestmark = pytest.mark.gpu

LONG = ("--config", "smoke", "--set", "device=cuda", "clients.local_epochs=40")


def test_a_stop_within_a_round_changes_nothing(tmp_path: Path) -> None:
    whole = runs.completed(1, tmp_path / "whole", *LONG)
    process = runs.start(1, tmp_path / "run", *LONG)
    runs.wait_for(lambda: runs.rounds_done(tmp_path / "run") >= 1, "a first round")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out = runs.finish(process)
    assert runs.summary(tmp_path / "run")["exit_code"] == 75, out[-3000:]
    found = runs.completed(1, tmp_path / "run", *LONG)
    for proof in ("prototypes_sha256", "parameters_sha256"):
        assert found[proof] == whole[proof]


def test_a_checkpoint_has_what_the_device_held_when_it_was_asked_for(tmp_path: Path) -> None:
    """Kernels that are queued before it count, those after it do not."""
    device = torch.device("cuda")
    values, step = torch.zeros(4096, 4096, device=device), torch.ones(4096, 4096, device=device)
    checkpoints = Checkpoints(tmp_path, LocalComm(device), 1, asynchronous=True)
    for _ in range(50):
        values += step
    checkpoints.save(Contents(shared={"server": {"values": values}}, facts={}), 1)
    for _ in range(50):
        values += step
    assert checkpoints.settle() is not None
    assert values.unique().tolist() == [100]
    found = Checkpoint(candidates(tmp_path)[0]).shared("server")["values"]
    assert found.unique().tolist() == [50]


def test_a_full_device_is_known_as_such() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50, device="cuda")
    assert is_out_of_memory(raised.value)
