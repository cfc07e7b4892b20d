"""Following a run, or the one that is on of a list, from its directory alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fedcore.config import RunConfig
from fedcore.errors import ConfigError, FedError, ShardError
from fedcore.files import inside, read_json
from fedcore.registry import nearest
from fedcore.telemetry.events import (
    ClientEvent,
    Event,
    LMClientEvent,
    LMEvalEvent,
    LMResumeEvent,
    LMStepEvent,
    LMWarningEvent,
    RoundEvent,
    from_record,
)
from fedcore.telemetry.jsonl import Tail
from launcher import suite_state
from launcher.rundir import RunDir

FEDERATED = (ClientEvent, RoundEvent)
LM = (LMStepEvent, LMEvalEvent, LMClientEvent, LMResumeEvent, LMWarningEvent)
RUNNING, LISTED = "running", 10.0  # seconds between looks at all runs of a list
NEIGHBOURS = 20  # run directories named when one is not found


class Taker(Protocol):
    """Takes the events of one run."""

    def take(self, event: Event) -> None:
        """Take the next event of the file."""


Make = Callable[[RunConfig | None, bool, str], Taker]
"""A taker for a run: its configuration (None: unreadable), whether it is an LM's, its name."""


class RunFollower:
    """Hands a run's events to a taker as they are written; a replaced file gets a new taker."""

    def __init__(self, path: Path, make: Make) -> None:
        self.run, self._make = RunDir(path), make
        self.config: RunConfig | None = None
        self.taker: Taker | None = None
        self.summary: dict[str, Any] | None = None
        self._tail = Tail(self.run.metrics)

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return self.run.path.resolve().name

    @property
    def status(self) -> str:
        """What the summary says; running or waiting without one."""
        if self.summary is not None:
            return str(self.summary["status"])
        return RUNNING if self.taker else suite_state.WAITING

    def is_over(self) -> bool:
        """Whether the run has ended and left its summary."""
        return self.summary is not None

    def update(self) -> None:
        """Read what has been written since the last look."""
        # before the lines: once there is a summary, they are all written
        self.summary = self.run.read_summary()
        if self._tail.is_replaced():
            self.taker = None
        for record in self._tail.read():
            event = from_record(record)
            if event is not None and self._is_placed(event):
                assert self.taker is not None
                self.taker.take(event)

    def _is_placed(self, event: Event) -> bool:
        """Whether there is a taker for it; the first event of a known kind makes one."""
        if self.taker is None:
            self.config = read_config(self.run)
            known = self.config is not None or isinstance(event, FEDERATED + LM)
            if known:
                lm = self.config.lm is not None if self.config else isinstance(event, LM)
                self.taker = self._make(self.config, lm, self.name)
        return self.taker is not None


class ListFollower:
    """Follows whichever run of a list is on: the unfinished one with the newest line."""

    def __init__(self, path: Path, make: Make) -> None:
        self.path, self._make = path, make
        self.states: dict[str, str] = {}  # by name, in the order of the list
        self.current: RunFollower | None = None
        self._looked = 0.0

    @property
    def name(self) -> str:
        """The name of the list's directory."""
        return self.path.resolve().name

    def is_over(self) -> bool:
        """Whether no run will begin without another command."""
        states = set(self.states.values())
        stopped = suite_state.STOPPED in states and suite_state.UNFINISHED not in states
        return bool(states) and (stopped or states <= {*suite_state.OVER})

    def update(self) -> None:
        """Read what is new of the run that is on; look for the next one when it is over."""
        now = time.monotonic()
        at_work = self.current is not None and not self.current.is_over()
        if not at_work or now - self._looked > LISTED:
            self._look()
            self._looked = now
        if self.current is not None:
            self.current.update()
            if self.current.is_over():
                self.states[self.current.run.path.name] = self.current.status

    def _look(self) -> None:
        runs = runs_of(self.path)
        self.states = {run.name: suite_state.state(run).status for run in runs}
        on = [run for run in runs if self.states[run.name] == suite_state.UNFINISHED]
        newest = max(on or [], key=_newest_line, default=None)
        newest = newest or (self._last(runs) if self.current is None else None)
        if newest and (self.current is None or newest != self.current.run.path):
            self.current = RunFollower(newest, self._make)

    def _last(self, runs: list[Path]) -> Path | None:
        """The run that ended last, to show when none is on."""
        over = [run for run in runs if self.states[run.name] != suite_state.WAITING]
        return max(over, key=_newest_line, default=None)


def _newest_line(run: Path) -> float:
    try:
        return RunDir(run).metrics.stat().st_mtime
    except OSError:
        return 0.0


def read_config(run: RunDir) -> RunConfig | None:
    """The stored configuration; None if it is not there or of another version."""
    file = run.path / "config.yaml"
    try:
        return RunConfig.load(file) if file.is_file() else None
    except FedError:
        return None


def runs_of(path: Path) -> list[Path]:
    """The run directories of a list in its order, or those in any other folder by name."""
    try:
        rows = read_json(path / suite_state.NAME)["runs"]
        return [inside(path, row["name"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, ShardError):
        return sorted(sub for sub in path.iterdir() if sub.is_dir() and RunDir(sub).is_ours)


def follower(path: Path, make: Make) -> RunFollower | ListFollower:
    """For a run directory, or a folder of them; `ConfigError` if there is none."""
    if not path.is_dir():
        want = "a run directory, or the folder of a list"
        raise ConfigError("RUN", str(path), want, nearest(path.name, _neighbours(path)))
    if not RunDir(path).is_ours and runs_of(path):
        return ListFollower(path, make)
    return RunFollower(path, make)


def _neighbours(path: Path) -> list[str]:
    """The newest run directories where this one was looked for, else below runs/."""
    for folder in (path.parent, Path("runs")):
        if folder.is_dir():
            found = [sub for sub in folder.iterdir() if RunDir(sub).is_ours or runs_in(sub)]
            if found:
                newest = sorted(found, key=_newest_line, reverse=True)
                return [run.name for run in newest[:NEIGHBOURS]]
    return []


def runs_in(path: Path) -> bool:
    """Whether a folder is that of a list."""
    return (path / suite_state.NAME).is_file()
