"""Does a run survive lost ranks and signals: at most one interval lost, and the same bits?"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fedcore.checkpoint import Checkpoint
from tests.procs import faults, runs
from tests.procs.after import (
    ENDLESS,
    HEARTBEAT,
    SLACK,
    WORDS,
    code_of,
    lines,
    proof,
    seconds_to_end,
)
from tests.procs.faults import Faults

pytestmark = pytest.mark.procs


def test_torchrun_restarts_a_run_until_it_is_through(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """A rank dies in a round, then one that has not yet named the checkpoint it has written."""
    table = Faults().kill(rank=1, round=1, step=3)
    table = table.kill(rank=0, where="pointer", checkpoint=2).truncate_newest()
    out = table.run(2, tmp_path / "run", *WORDS, torchrun=("--max-restarts=2",))
    assert all(table.struck(tmp_path / "run")), out[-3000:]
    assert code_of(tmp_path / "run", out) == 0
    assert "does not match its sha256" in out
    assert "passing over round_0000" in out
    assert proof(runs.summary(tmp_path / "run")) == undisturbed
    assert lines(tmp_path / "run", "resume")


def test_a_frozen_rank_is_found_and_another_number_of_ranks_goes_on(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    table = Faults().freeze(rank=0, round=2, step=3)
    out = table.run_frozen(2, tmp_path / "run", *WORDS)
    assert code_of(tmp_path / "run", out) == 5
    assert f"rank 0 gave no sign of life for {HEARTBEAT} s" in out
    assert seconds_to_end(table, tmp_path / "run") < HEARTBEAT + SLACK
    assert proof(runs.completed(0, tmp_path / "run", *WORDS)) == undisturbed
    assert lines(tmp_path / "run", "resume")[0]["round"] >= 1, "one interval is lost at most"


def test_a_run_that_is_suspended_as_a_whole_goes_on(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """As by `scontrol suspend`: nobody was lost, though nobody gave a sign of life for long."""
    process = runs.start(2, tmp_path, *WORDS)
    runs.wait_for(lambda: runs.rounds_done(tmp_path) >= 1, "a first round")
    pids = list(runs.rank_pids(process.pid).values())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * HEARTBEAT)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    out = runs.finish(process)
    assert code_of(tmp_path, out) == 0
    assert proof(runs.summary(tmp_path)) == undisturbed


def test_a_rank_killed_in_a_round_of_hours_costs_minutes(tmp_path: Path) -> None:
    """The other one is hours from the next collective, but for checkpoints within the round."""
    table, run_dir = Faults().kill(rank=1, round=0, step=1500), tmp_path / "run"
    minutes = 0.02
    ranks = table.by_hand(2, run_dir, *ENDLESS, f"checkpoint.minutes={minutes}")
    out = runs.finish(ranks[0], limit=60)
    runs.finish(ranks[1])
    assert ranks[0].returncode == 5, out[-3000:]
    assert "A rank was lost" in out
    assert seconds_to_end(table, run_dir) < HEARTBEAT + SLACK
    newest = Checkpoint(faults.checkpoints(run_dir)[-1])
    newest.verify()
    [struck] = table.struck(run_dir)
    assert struck is not None
    assert newest.facts["within"]
    assert struck["time"] - newest.facts["saved"] < 60 * minutes + SLACK


def test_a_defect_on_one_rank_ends_all_with_its_words(tmp_path: Path) -> None:
    table, run_dir = Faults().fail(rank=1, round=0, step=20), tmp_path / "run"
    ranks = table.by_hand(2, run_dir, *ENDLESS)
    out, _ = runs.finish(ranks[0], limit=60), runs.finish(ranks[1], limit=10)
    assert [rank.returncode for rank in ranks] == [1, 1], out[-3000:]
    assert "rank 1 failed: ArithmeticError: a fault in the loss" in out
    assert seconds_to_end(table, run_dir) < SLACK


@pytest.mark.long
def test_a_lost_node_ends_the_other_and_both_go_on(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """Two agents of one rank; that of rank 1 is killed with it, in the second attempt rank 0's,
    which has the rendezvous store."""
    run_dir = tmp_path / "run"
    table = Faults().lose_node(rank=1, round=1, step=3).lose_node(rank=0, round=2, step=3)
    for lost in (1, 0, None):
        port = runs.free_port()
        meeting = ("--nnodes=2", "--master_addr=127.0.0.1", f"--master_port={port}")
        agents = [
            table.start(1, run_dir, *WORDS, torchrun=(*meeting, f"--node_rank={node}"))
            for node in range(2)
        ]
        out = runs.finish(agents[1 if lost is None else 1 - lost], limit=60)
        for agent in agents:
            runs.finish(agent, limit=20)
        assert code_of(run_dir, out) == (0 if lost is None else 5)
        if lost is not None:
            assert seconds_to_end(table, run_dir) < HEARTBEAT + SLACK
    assert all(table.struck(run_dir))
    assert proof(runs.summary(run_dir)) == undisturbed


def test_signals_to_one_rank_stop_all_within_the_round(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """3 ranks, then 2, then 1; while they write the signal comes again; a stop during evaluation;
    a checkpoint of the middle of a round that is damaged."""
    run_dir = tmp_path / "run"
    table = Faults().signal(rank=2, round=1, step=3, number=signal.SIGTERM)
    again = {"where": "write", "number": signal.SIGTERM}
    table = table.signal(rank=0, checkpoint=2, **again).signal(rank=1, checkpoint=2, **again)
    out = table.run(3, run_dir, *WORDS)
    assert code_of(run_dir, out) == 75
    assert all(table.struck(run_dir))
    assert "stopped on request in round 2" in out
    assert seconds_to_end(table, run_dir) < SLACK
    newest = faults.checkpoints(run_dir)[-1]
    assert newest.name == "round_00001.0001"

    table = Faults().signal(rank=1, where="evaluation", round=1, number=signal.SIGUSR1)
    out = table.run(2, run_dir, *WORDS)
    assert code_of(run_dir, out) == 75
    assert lines(run_dir, "resume")[-1]["checkpoint"].endswith(newest.name)
    assert "stopped on request" in out

    table = Faults().signal(rank=0, round=2, step=3, number=signal.SIGUSR1).truncate_newest()
    assert code_of(run_dir, table.run(2, run_dir, *WORDS)) == 75
    faults.truncate(faults.checkpoints(run_dir)[-1])
    out = runs.run(0, run_dir, *WORDS)
    assert "passing over round_00002.0001" in out
    assert proof(runs.summary(run_dir)) == undisturbed
