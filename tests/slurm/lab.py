"""What a user of a cluster does: submit, wait, look at what a job left."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from launcher.commands import app
from tests.procs import runs
from tests.slurm.cluster import Cluster

# long enough to be interrupted, in rounds that are short
TRAINING = ("rounds=26", "clients.local_epochs=1", "evaluate.every=13")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
LIMIT = 120.0  # seconds a job may take, disturbances included


@dataclass(frozen=True)
class Job:
    """A submitted job and where its run is."""

    id: str
    report: str | None
    run: Path

    @property
    def log(self) -> str:
        """What its attempts printed so far."""
        file = self.run / "slurm" / f"log-{self.id}.txt"
        return file.read_text() if file.is_file() else ""


@dataclass(frozen=True)
class Lab:
    """A cluster and a working directory."""

    cluster: Cluster
    dir: Path
    store: Path

    def fedcore(self, *words: str) -> str:
        """What a command prints; it must work."""
        found = CliRunner().invoke(app, [*words])
        assert found.exit_code == 0, found.output
        return found.output

    def submit(self, *words: str, config: str = "smoke", training: Sequence[str] = TRAINING) -> Job:
        """A job of a small federation on the CPU."""
        keys = [*training, f"data.store={self.store}", "metrics.enabled=false"]
        sets = [word for key in keys for word in ("--set", key)]
        said = self.fedcore("submit", config, "--gpus-per-node", "0", *sets, *words)
        ids = re.findall(r"^job (\d+)", said, re.M)
        (run,) = re.findall(r"fedcore watch (\S+)", said)
        return Job(ids[0], ids[1] if len(ids) > 1 else None, Path(run))

    def train(self, *words: str) -> Job:
        """The training that others are compared with: two nodes, no report."""
        return self.submit("--nodes", "2", "--no-report", "--partition", "main", *words)

    def wait(self, job: str, *states: str) -> str:
        """The state of a job once it is one of these, or over."""
        wanted = states or OVER
        return str(runs.wait_for(lambda: self._seen(job, wanted), f"{job} {wanted}", LIMIT))

    def _seen(self, job: str, wanted: Sequence[str]) -> str:
        state = self.cluster.state(job)
        return state if state in wanted else ""

    def wait_for_rounds(self, job: Job, count: int = 2) -> None:
        """Wait until the run is at work and has done some."""
        runs.wait_for(lambda: runs.rounds_done(job.run) >= count, f"{count} rounds", LIMIT)

    def completed(self, job: Job) -> dict[str, Any]:
        """The summary of a job that must complete."""
        assert self.wait(job.id) == "COMPLETED", job.log[-3000:]
        found = runs.summary(job.run)
        assert found["status"] == "completed"
        return found


def checksums(summary: dict[str, Any]) -> dict[str, str]:
    """What is equal in two runs that did the same."""
    return {key: summary[key] for key in ("prototypes_sha256", "parameters_sha256")}


def meeting(job: Job, attempt: int) -> int:
    """The port at which the agents of an attempt want to meet."""
    return 20000 + (int(job.id) * 16 + attempt) % 12000


def occupied(port: int) -> socket.socket:
    """A listener on a port, as a process of a dead attempt would be that is still there."""
    stale = socket.socket()
    stale.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stale.bind(("127.0.0.1", port))
    stale.listen()
    return stale
