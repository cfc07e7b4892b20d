"""`fedcore jobs`: this user's runs, from their directories and from Slurm's queue."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.config import RunConfig
from launcher import suite_state
from launcher.rundir import RunDir
from launcher.slurm import Queued
from launcher.submit import FILES, RECORD, submitted
from launcher.watch import readout_of
from launcher.watch_run import RUNNING, read_config, runs_in, runs_of
from launcher.words import duration, number

RECENT = 86_400.0  # seconds since the last sign of a run that is over, to be listed without --all
WINDOWS = (1 << 16, 1 << 20, 1 << 24)  # bytes from the end of metrics.jsonl to look for a reading
PROGRESS = ("round", "lm_step")  # events that say how far a run is
NOT_AT_WORK = ("PENDING", "SUSPENDED")


@dataclass(frozen=True)
class Row:
    """A run as the table shows it."""

    run: Path
    job: str = ""  # last one of Slurm, if there was any
    queue: str = ""  # its state there, and how often it was put back
    status: str = ""  # as summary.json has it; running, unfinished or waiting without one
    progress: str = ""
    result: str = ""  # accuracy or loss so far
    resumed: int = 0  # times it went on from a checkpoint
    time: str = ""
    where: str = ""
    seen: float = 0.0  # unix seconds of its last sign

    @property
    def is_current(self) -> bool:
        """Whether it is in the queue, at work, or gave a sign within a day."""
        return bool(self.queue) or self.status == RUNNING or time.time() - self.seen < RECENT


def rows(folder: Path, queue: Sequence[Queued]) -> list[Row]:
    """A row for each run in `folder` or in the queue, the newest first."""
    found = {row.run: row for out in _homes(folder, queue) for row in _rows_of(out, queue)}
    return sorted(found.values(), key=lambda row: (not row.queue, -row.seen, row.run))


def _homes(folder: Path, queue: Sequence[Queued]) -> list[Path]:
    """Run directories, and folders of lists, of either origin."""
    below = [p.absolute() for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []
    ours = [p for p in below if RunDir(p).is_ours or runs_in(p) or (p / FILES / RECORD).is_file()]
    return list(dict.fromkeys([*ours, *(job.run for job in queue if job.run)]))


def _rows_of(out: Path, queue: Sequence[Queued]) -> Iterator[Row]:
    """The run in that directory, or all of its list; what can no longer be read is left out."""
    jobs = submitted(out / FILES)
    last = jobs[-1] if jobs else {}
    mine = [job for job in queue if job.run == out]
    names = last.get("runs")
    if not isinstance(names, list) and not runs_in(out):
        yield _row(out, mine[0] if mine else None, str(last.get("job", "")))
        return
    runs = [out / str(name) for name in names] if isinstance(names, list) else runs_of(out)
    for index, run in enumerate(runs):
        queued = next((job for job in mine if job.task == index), None)
        yield _row(run, queued, f"{last['job']}_{index}" if last else "")


def _row(path: Path, queued: Queued | None, job: str) -> Row:
    run = RunDir(path)
    config, summary = read_config(run), run.read_summary() or {}
    last = _last_reading(run.metrics)
    return Row(
        path,
        queued.job if queued else job,
        _in_queue(queued),
        _status(run, queued),
        _progress(config, summary, last),
        _result(config, summary, last),
        _resumed(run.metrics),
        queued.time if queued else duration(summary.get("wall_seconds")).removeprefix("-"),
        (queued.nodes if queued else "") or _node(run),
        _seen(run),
    )


def _in_queue(queued: Queued | None) -> str:
    if queued is None:
        return ""
    why = f" ({queued.reason})" if queued.reason not in ("None", "") else ""
    times = f", requeued {queued.restarts}x" if queued.restarts else ""
    return queued.state + why + times


def _status(run: RunDir, queued: Queued | None) -> str:
    """As a list has it, but a run without a summary that someone is at is running."""
    status = suite_state.state(run.path).status
    at_work = queued is not None and queued.state not in NOT_AT_WORK
    if status == suite_state.UNFINISHED:
        return RUNNING if at_work or _is_locked(run.path / ".lock") else status
    return "starting" if at_work and status == suite_state.WAITING else status


def _is_locked(file: Path) -> bool:
    """Whether a process of this machine holds the lock; to try it would keep a real job out."""
    with suppress(OSError):
        inode = str(file.stat().st_ino)
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # number: kind, mode, access, process, device and inode as a:b:inode, range
        return any("FLOCK" in lock and inode in lock[-3].split(":") for lock in locks)
    return False


def _last_reading(file: Path) -> dict[str, Any]:
    """The newest line of metrics.jsonl that says how far the run is; empty without one."""
    with suppress(OSError), file.open("rb") as lines:
        size = file.stat().st_size
        for window in WINDOWS:
            lines.seek(max(0, size - window))
            for line in reversed(lines.read(window).split(b"\n")):
                if (found := _record(line)).get("event") in PROGRESS:
                    return found
            if window >= size:
                break
    return {}


def _record(line: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}


def _progress(config: RunConfig | None, summary: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Rounds or steps done, of how many: 7/10 rounds."""
    if config is None:
        return ""
    if config.lm is not None:
        done = last.get("step", summary.get("steps", 0))
        return f"{done:,}/{config.lm.steps:,} steps"
    done = last["round"] + 1 if "round" in last else summary.get("rounds", 0)
    return f"{done:,}/{config.rounds:,} rounds"


def _result(config: RunConfig | None, summary: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The accuracy that the run reports, or the loss of a language model."""
    if config is not None and config.lm is not None:
        loss = summary.get("final_eval_loss") or last.get("loss")
        return f"loss {number(loss)}" if loss is not None else ""
    accuracy = summary.get("test_accuracy") or (last.get("accuracy") or {}).get(readout_of(config))
    known = isinstance(accuracy, int | float) and math.isfinite(accuracy)
    return f"accuracy {accuracy:.4f}" if known else ""


def _resumed(file: Path) -> int:
    with suppress(OSError), file.open("rb") as lines:
        return sum(line.startswith(b'{"event": "resume"') for line in lines)
    return 0


def _node(run: RunDir) -> str:
    """Where rank 0 was, the last time."""
    with suppress(OSError, ValueError, AttributeError):
        facts = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
        return str(facts.get("node", ""))
    return ""


def _seen(run: RunDir) -> float:
    """When the run last wrote anything that tells of it."""
    files = (run.metrics, run.path / "summary.json", run.path / "config.yaml", run.path)
    times = []
    for file in files:
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times, default=0.0)


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
