"""Run by torchrun in place of launcher/main.py: the same, and faults strike where a table says."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedcore import checkpoint, checkpoint_writer, evaluate
from fedcore.checkpoint import candidates
from fedcore.clients import group, launch
from fedcore.server import pause
from launcher import main
from tests.procs import faults
from tests.procs.faults import Fault, Where


class Striker:
    """Knows where this process is in the run, and has the faults that are still to come."""

    def __init__(self, marks: Path, run_dir: Path, table: list[Fault]) -> None:
        self.marks, self.run_dir, self.table = marks, run_dir, table
        self.round, self.step, self.looks = -1, -1, -1
        self.folders = list[Path]()
        self.full: Path | None = None  # the checkpoint for which the disk is full

    def at(self, where: Where) -> list[Fault]:
        """The faults that strike here and now; those that end or change the process have."""
        round, step = (0, self.looks) if where == "look" else (self.round, self.step)
        here = (round, step, len(self.folders))
        due = [f for f in self.table if f.where == where and f.is_at(*here)]
        facts = {"round": self.round, "step": self.step}
        due = [f for f in due if faults.strike_once(self.marks, f, **facts)]
        for fault in due:
            if fault.kind == "lose_node":
                os.kill(os.getppid(), signal.SIGKILL)
            if fault.kind in ("kill", "lose_node", "freeze", "signal"):
                numbers = {"freeze": signal.SIGSTOP, "signal": fault.number}
                os.kill(os.getpid(), numbers.get(fault.kind, signal.SIGKILL))
            elif fault.kind == "raise":
                raise ArithmeticError("a fault in the loss")
        return due

    def at_start(self) -> None:
        """What is so from the beginning."""
        ahead = sum(f.seconds for f in self.table if f.kind == "shift_clock")
        clock = time.time
        if ahead:
            time.time = lambda: clock() + ahead
        found = candidates(self.run_dir / "checkpoints")
        for fault in self.table:
            if (
                len(found) > 1
                and fault.kind == "truncate"
                and faults.strike_once(self.marks, fault)
            ):
                faults.truncate(found[0])

    def wrap(self) -> None:
        """Let the places of training and writing tell this of themselves."""
        group.ClientGroup.advance = self._around_round(group.ClientGroup.advance)
        launch.local_step = self._around_step(launch.local_step)
        pause.Pauses.wish = self._around_look(pause.Pauses.wish)
        evaluate.Evaluator.__call__ = self._before("evaluation", evaluate.Evaluator.__call__)
        checkpoint_writer.save_file = self._around_file(checkpoint_writer.save_file)
        checkpoint.to_disk = self._around_pointer(checkpoint.to_disk)

    def _before(self, where: Where, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            self.at(where)
            return call(*args, **more)

        return wrapped

    def _around_round(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(own: Any, order: Any, *args: Any) -> Any:
            if order.round != self.round:
                self.round, self.step = order.round, -1
            return call(own, order, *args)

        return wrapped

    def _around_step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self.step += 1
            if any(fault.kind == "out_of_memory" for fault in self.at("step")):
                with no_more_memory():
                    return call(*args)
            return call(*args)

        return wrapped

    def _around_look(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(own: Any) -> Any:
            self.looks += 1
            self.at("look")
            return call(own)

        return wrapped

    def _around_file(self, call: Callable[..., Any]) -> Callable[..., Any]:
        slow = sum(f.seconds for f in self.table if f.kind == "slow_disk")

        def wrapped(tensors: Any, file: Path) -> Any:
            if file.parent not in self.folders[-1:]:
                self.folders.append(file.parent)
                if any(fault.kind == "full_disk" for fault in self.at("write")):
                    self.full = file.parent
            time.sleep(slow)
            if self.full != file.parent:
                return call(tensors, file)
            with full_disk():
                return call(tensors, file)

        return wrapped

    def _around_pointer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Path) -> Any:
            if path.name.startswith(".latest"):  # written, and not yet renamed
                self.at("pointer")
            return call(path)

        return wrapped


@contextmanager
def limited(kind: int, to: int) -> Iterator[None]:
    """A limit of this process, for a while."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (to, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@contextmanager
def no_more_memory() -> Iterator[None]:
    """No block of 64 KB is left: none that was given back, and none above."""
    status = dict(x.split(":", 1) for x in Path("/proc/self/status").read_text().splitlines())
    with limited(resource.RLIMIT_DATA, int(status["VmData"].split()[0]) * 1024):
        held, size = [], 1 << 24
        while size >= 1 << 16:
            try:
                held.append(bytearray(size))
            except MemoryError:
                size //= 2
        yield


def full_disk() -> Any:
    """A file may not grow beyond 1 KB."""
    return limited(resource.RLIMIT_FSIZE, 1024)


if __name__ == "__main__":
    striker = Striker(*faults.given(os.environ, int(os.environ.get("RANK", 0))))
    striker.at_start()
    striker.wrap()
    code = main.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
