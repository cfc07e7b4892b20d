"""Does a run bear what its nodes do: full and slow disks, wrong clocks, no memory, a taken port?"""

from __future__ import annotations

import signal
import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedcore.checkpoint import Checkpoint
from tests.procs import faults, runs
from tests.procs.after import (
    WORDS,
    code_of,
    lines,
    proof,
)
from tests.procs.faults import Faults

pytestmark = pytest.mark.procs


def test_a_disk_full_at_a_stop_is_code_2_and_older_checkpoints_stay(tmp_path: Path) -> None:
    table = Faults().signal(rank=0, round=1, step=3, number=signal.SIGTERM)
    table, run_dir = table.full_disk(rank=1, checkpoint=2), tmp_path / "run"
    out = table.run(2, run_dir, *WORDS)
    assert code_of(run_dir, out) == 2
    assert "File too large" in runs.summary(run_dir)["message"]
    assert "freeing space" in out
    assert [folder.name for folder in faults.checkpoints(run_dir)] == ["round_00001"]
    assert not list(run_dir.glob("checkpoints/.*"))


def test_a_full_disk_of_one_rank_and_a_wrong_clock(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    table, run_dir = Faults().full_disk(rank=1, checkpoint=2), tmp_path / "run"
    table = table.shift_clock(rank=0, seconds=-3600).shift_clock(rank=1, seconds=3600)
    out = table.run(2, run_dir, *WORDS)
    assert code_of(run_dir, out) == 0
    assert proof(runs.summary(run_dir)) == undisturbed
    told = [line["message"] for line in lines(run_dir, "warning")]
    assert len(told) == 1
    assert "no checkpoint round_00002" in told[0]
    assert "the run goes on" in told[0]
    kept = [folder.name for folder in faults.checkpoints(run_dir)]
    assert kept == ["round_00001", "round_00003", "round_00004"]
    spent = [s for line in lines(run_dir, "round") for s in line["seconds"].values()]
    assert all(0 <= seconds < 60 for seconds in spent)


def test_training_goes_on_while_slow_storage_takes_a_checkpoint(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """1 s for each file, and a round takes less: the next save waits, and so does the end."""
    table, run_dir = Faults().slow_disk(rank=0, seconds=1).slow_disk(rank=1, seconds=1), tmp_path
    out = table.run(2, run_dir / "run", *WORDS)
    assert code_of(run_dir / "run", out) == 0
    assert proof(runs.summary(run_dir / "run")) == undisturbed
    saved = [Checkpoint(folder).facts["saved"] for folder in faults.checkpoints(run_dir / "run")]
    ended = [line["time"] for line in lines(run_dir / "run", "round")]
    assert len(saved) == len(ended) == 4
    assert all(round < save for round, save in zip(ended[1:], saved[:-1], strict=True))
    assert all(b - a > 1.5 for a, b in pairwise(saved)), "one at a time"


@pytest.mark.parametrize(("answer", "width"), [("shrink", 2), ("skip", 1), ("fail", 2)])
def test_a_client_that_does_not_fit_into_memory(answer: str, width: int, tmp_path: Path) -> None:
    ranks, run_dir = (2 if answer == "shrink" else 0), tmp_path / "run"
    # no thread of the checkpoints', which would meet the same limit
    words = (*WORDS, f"clients.width={width}", f"clients.out_of_memory={answer}")
    words += ("checkpoint.asynchronous=false",)
    table = Faults().out_of_memory(rank=max(0, ranks - 1), round=1, step=2)
    out = table.run(ranks, run_dir, *words)
    if answer == "fail":
        assert code_of(run_dir, out) == 2
        assert "clients.out_of_memory: got 'fail'" in out
        return
    assert code_of(run_dir, out) == 0
    [told] = [line["message"] for line in lines(run_dir, "warning")]
    want = "2 clients do not fit into memory at once" if width == 2 else "is left out"
    assert want in told
    assert told in " ".join(out.split())
    trained = [line["round"] for line in lines(run_dir, "client")]
    assert [trained.count(round) for round in range(4)] == [4, 3 if answer == "skip" else 4, 4, 4]
    assert runs.summary(run_dir)["test_accuracy"] > 0.5


def test_a_rendezvous_port_that_another_program_has(tmp_path: Path) -> None:
    """Ranks started by hand: rank 0 says it; rank 1 does not wait for ever for that program."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        began = time.monotonic()
        words = (*WORDS, "server.timeout=8")
        ranks = [
            Faults().start(0, tmp_path / "run", *words, env=place | {"RANK": str(rank)})
            for rank in range(2)
        ]
        told = [runs.finish(rank, limit=60) for rank in ranks]
    assert time.monotonic() - began < 45
    assert [rank.returncode for rank in ranks] == [2, 5]
    assert f"MASTER_PORT: got {port}, want a port that no other program has" in told[0]
    assert f"what has port {port} of 127.0.0.1 is no store" in told[1]
