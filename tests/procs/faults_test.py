"""Does a run survive what happens on a cluster: at most one interval lost, and the same bits?"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedcore.checkpoint import Checkpoint
from tests.procs import faults, runs
from tests.procs.faults import Faults

pytestmark = pytest.mark.procs

HEARTBEAT = 3  # seconds
SLACK = 6  # seconds: two beats, and what a busy machine takes to end a process
OWN = ("rounds=4", "clients.local_epochs=1", "clients.batch_size=16", "evaluate.every=2")
OWN += (f"server.heartbeat={HEARTBEAT}", "checkpoint.keep=4")
WORDS = ("--config", "smoke", "--set", *OWN)
ENDLESS = (*WORDS, "clients.local_epochs=3000")
PROOF = ("prototypes_sha256", "parameters_sha256", "accuracy")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves to which nothing happens."""
    return proof(runs.completed(0, tmp_path_factory.mktemp("undisturbed") / "run", *WORDS))


def proof(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in PROOF}


def lines(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of that kind in metrics.jsonl."""
    read = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in read if line["event"] == kind]


def code_of(run_dir: Path, out: str) -> int:
    """What summary.json says; if there is none, what was printed."""
    assert (run_dir / "summary.json").is_file(), out[-3000:]
    return runs.summary(run_dir)["exit_code"]


def seconds_to_end(table: Faults, run_dir: Path) -> float:
    """From the last fault to the summary."""
    struck = [at["time"] for at in table.struck(run_dir) if at]
    return runs.summary(run_dir)["finished"] - max(struck)


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
    assert len(lines(tmp_path / "run", "resume")) == 2


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
    table, run_dir = Faults().kill(rank=1, round=0, step=400), tmp_path / "run"
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
    words = (*WORDS, f"clients.width={width}", f"clients.out_of_memory={answer}")
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
