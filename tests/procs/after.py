"""What a run left to which faults happened, and the run of these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.procs import runs
from tests.procs.faults import Faults

HEARTBEAT = 3  # seconds
SLACK = 6  # seconds: two beats, and what a busy machine takes to end a process
OWN = ("rounds=4", "clients.local_epochs=1", "clients.batch_size=16", "evaluate.every=2")
OWN += (f"server.heartbeat={HEARTBEAT}", "checkpoint.keep=4")
WORDS = ("--config", "smoke", "--set", *OWN)
ENDLESS = (*WORDS, "clients.local_epochs=3000")
PROOF = ("prototypes_sha256", "parameters_sha256", "accuracy")


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
