"""Many runs as one: each cell a training process of its own, several at once, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedcore.errors import ConfigError
from fedcore.telemetry.screen import console_for
from launcher.frozen import cell_of_copies
from launcher.grid import Cell, check_directories
from launcher.rundir import RunDir, alone_in, make_private, storage

POLL = 0.1  # seconds between two looks at the running processes
PATIENCE = 30.0  # seconds a run may take to stop; the round it is in is lost after that
STOPPED = 75  # exit code of a sweep that was asked to stop


@dataclass(frozen=True)
class Result:
    """How one run of a sweep ended."""

    cell: Cell
    status: str  # completed, diverged, failed
    code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)

    def words(self) -> str:
        """The end in a few words; rounds count from 1."""
        if self.status == "diverged":
            return f"diverged (round {self.summary.get('rounds', 0) + 1})"
        return self.status if self.status == "completed" else f"failed (exit code {self.code})"

    def told(self) -> str:
        """A line for the log: which cell, how it ended, and how well or why."""
        if self.status == "completed":
            facts = f"{self.summary['test_accuracy']:.4f} in {self.summary['wall_seconds']:.0f} s"
            return f"{self.cell.title()}: accuracy {facts}"
        return f"{self.cell.title()}: {self.words()}; see {log_of(self.cell)}"


def finished(cell: Cell) -> Result | None:
    """How the cell ended in an earlier sweep; None if there is something left to run.

    A run that diverged would do so again: the same seed gives the same bits.
    """
    summary = RunDir(cell.run_dir).read_summary() or {}
    if summary.get("status") == "diverged" or _is_whole(summary):
        return Result(cell, summary["status"], int(summary.get("exit_code", 4)), summary)
    return None


def _is_whole(summary: dict[str, Any]) -> bool:
    """Whether a completed run says what a table needs; one that does not is run again."""
    numbers = [summary.get(key) for key in ("test_accuracy", "wall_seconds")]
    read_outs = summary.get("accuracy")
    if isinstance(read_outs, dict):
        numbers += read_outs.values()
    plain = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    return summary.get("status") == "completed" and isinstance(read_outs, dict) and plain


Running = dict[subprocess.Popen[bytes], Cell]


def run(
    cells: Sequence[Cell], jobs: int, begun: Callable[[Cell], None] = lambda cell: None
) -> Generator[Result, None, None]:
    """Results as they come, up to `jobs` cells running at once; finished ones come first.

    begun: told of each cell whose process was started. Closing the iterator stops what is running;
    the next sweep goes on with it.
    """
    over = {cell.run_dir: finished(cell) for cell in cells}
    yield from (result for result in over.values() if result)
    waiting = [cell for cell in cells if not over[cell.run_dir]]
    running: Running = {}
    try:
        while waiting or running:
            for cell in _start_what_fits(waiting, running, jobs):
                begun(cell)
            yield from _ended(running)
            time.sleep(POLL)
    finally:
        _stop(running)


def _start_what_fits(waiting: list[Cell], running: Running, jobs: int) -> Iterator[Cell]:
    for cell in list(waiting):
        # a run may have outlived a sweep that was killed: its directory is free once it is over
        if len(running) < jobs and not _is_busy(cell.run_dir):
            waiting.remove(cell)
            running[_start(cell)] = cell
            yield cell


def _is_busy(run_dir: Path) -> bool:
    if not (run_dir / ".lock").exists():
        return False
    try:
        alone_in(run_dir).release()
    except ConfigError:
        return True
    return False


def _start(cell: Cell) -> subprocess.Popen[bytes]:
    """The process of a cell, in a session of its own: Ctrl-C reaches it through `_stop`."""
    make_private(cell.run_dir)
    with log_of(cell).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *cell.command()],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def log_of(cell: Cell) -> Path:
    """The file that keeps what the run printed."""
    return cell.run_dir / "log.txt"


def _ended(running: Running) -> Iterator[Result]:
    for process in [p for p in running if p.poll() is not None]:
        yield _result(running.pop(process), process.returncode)


def _result(cell: Cell, code: int) -> Result:
    """From the exit code and, since torchrun replaces its workers' code, the summary."""
    summary = RunDir(cell.run_dir).read_summary() or {}
    if code == 0:
        return Result(cell, "completed", code, summary)
    status = "diverged" if summary.get("status") == "diverged" else "failed"
    return Result(cell, status, code, summary)


def _stop(running: Running) -> None:
    """Ask all for a checkpoint and the end; kill those that do not come to it in time."""
    for process in running:
        process.terminate()
    until = time.monotonic() + PATIENCE
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM inside means the same as Ctrl-C: `KeyboardInterrupt`."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Screen:
    """Shows how a sweep gets on: with a bar on a terminal, in lines in a log."""

    def __init__(self, total: int, stream: TextIO) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.total, self.console = total, console_for(stream)
        on = self.console.is_terminal
        self.bar = Progress(*columns, TimeElapsedColumn(), console=self.console, disable=not on)
        self.task = self.bar.add_task("runs", total=total)

    def say(self, words: str) -> None:
        """A line of its own, at once."""
        self.console.print(words, highlight=False, markup=False, soft_wrap=True)

    def begun(self, cell: Cell) -> None:
        """A run has started: a log that says nothing for minutes looks like one that hangs."""
        if not self.console.is_terminal:
            self.say(f"{cell.title()}: begins")

    def ended(self, result: Result) -> Result:
        """The result, once it is shown."""
        self.bar.advance(self.task)
        self.say(f"[{int(self.bar.tasks[0].completed)}/{self.total}] {result.told()}")
        return result


def sweep(cells: Sequence[Cell], out: Path, jobs: int, stream: TextIO) -> list[Result]:
    """Run what is left of the cells below `out`, told on `stream`: results in their order.

    The runs are those of copies of their extensions below `out`, which an edit does not reach.
    Raises `ConfigError` before anything starts if a cell's directory holds something else or
    another sweep works in `out`; `KeyboardInterrupt` when stopped by Ctrl-C or SIGTERM.
    """
    check_directories(cells)
    screen = _Screen(len(cells), stream)
    with _alone(out), _stoppable():
        own = [cell_of_copies(cell, out) for cell in cells]
        screen.say(_plan(own, out, jobs))
        for cell in own:
            if _is_busy(cell.run_dir):
                screen.say(f"{cell.run_dir}: a run is still in there; waiting for it")
        with screen.bar, closing(run(own, jobs, screen.begun)) as results:
            ends = {result.cell.run_dir: screen.ended(result) for result in results}
    return [ends[cell.run_dir] for cell in cells]


def _plan(cells: Sequence[Cell], out: Path, jobs: int) -> str:
    """What is about to happen, in a line."""
    done = sum(finished(cell) is not None for cell in cells)
    return f"{len(cells)} runs in {out}: {done} done already, {jobs} at once"


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps other sweeps out of `out`."""
    with storage(out):
        make_private(out)
    lock = alone_in(out)
    try:
        yield
    finally:
        lock.release()
