"""Talking to Slurm: submitting a script, and what of this user's is in the queue."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.errors import ConfigError

PATIENCE = 60.0  # seconds for the controller to take a job
GLANCE = 15.0  # seconds to say what is in the queue
MARK = "fedcore:"  # before the run directory, in a job's comment
FIELDS = ("JobArrayID", "State", "RestartCnt", "Reason", "TimeUsed", "NodeList", "Comment")


@dataclass(frozen=True)
class Queued:
    """A job, or a task of an array, in the queue."""

    job: str  # 12, or 12_3 of an array
    state: str  # PENDING, RUNNING, COMPLETING, ...
    restarts: int  # times it was put back into the queue
    reason: str  # why it waits; None if it does not
    time: str  # running so far: 1-02:03:04
    nodes: str  # n[1-2]; empty while it waits
    run: Path | None  # run directory, of the whole array's if it is one; None: not ours

    @property
    def task(self) -> int | None:
        """The number of an array's task."""
        number = self.job.partition("_")[2]
        return int(number) if number.isdigit() else None


def sbatch(script: Path, *options: str) -> str:
    """The id of the job that Slurm made of the script; `ConfigError` with Slurm's words if none."""
    answer = call(PATIENCE, "sbatch", "--parsable", *options, str(script))
    if answer is None:
        want = "Slurm's sbatch on this machine"
        raise ConfigError("sbatch", "no such command", want, "--dry-run, which prints the script")
    if answer.returncode:
        words = " ".join(answer.stderr.split())
        raise ConfigError("sbatch", words, "a job that Slurm takes", "other options")
    return answer.stdout.strip().partition(";")[0]  # the name of a cluster may follow


def queue() -> list[Queued] | None:
    """This user's jobs that are not over; None where Slurm is not, or does not answer."""
    form = ",".join(f"{field}:|" for field in FIELDS)
    answer = call(GLANCE, "squeue", "--me", "--array", "--noheader", f"--Format={form}")
    if answer is None or answer.returncode:
        return None
    return parsed(answer.stdout.splitlines())


def parsed(lines: Sequence[str]) -> list[Queued]:
    """The jobs in squeue's lines; a path in the last field may hold the separator as well."""
    found = []
    for line in lines:
        parts = line.rstrip("\n").removesuffix("|").split("|", len(FIELDS) - 1)
        if len(parts) == len(FIELDS):
            job, state, restarts, reason, time, nodes, comment = (part.strip() for part in parts)
            run = Path(comment.removeprefix(MARK)) if comment.startswith(MARK) else None
            count = int(restarts) if restarts.isdigit() else 0
            found.append(Queued(job, state, count, reason, time, nodes, run))
    return found


def call(patience: float, *words: str) -> subprocess.CompletedProcess[str] | None:
    """What a command of Slurm answered; None if it is not there or does not answer in time."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=patience, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
