"""A table of faults for real processes: `Faults().kill(rank=1, round=2, step=3).freeze(...)`.

It travels to the processes as JSON in an environment variable; faulty_main.py strikes there.
Each fault strikes once, however often the run is started again: a mark on disk says that it did.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.procs import runs

ENV = "FEDCORE_TEST_FAULTS"
MAIN = str(Path(__file__).with_name("faulty_main.py"))

Kind = Literal[
    *("kill", "lose_node", "freeze", "signal", "raise", "out_of_memory"),
    *("full_disk", "slow_disk", "shift_clock", "truncate"),
]
Where = Literal["start", "step", "look", "evaluation", "write", "pointer"]
"""As the process starts; before a training step; as it looks for the step-th time whether to pause
(any kind of run, whatever the round); as it reads out the test set; as it writes a
checkpoint's first file; when that is complete and `latest` is about to name it."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong on one rank. At its place, or at the first one after it."""

    kind: Kind
    rank: int = 0
    where: Where = "step"
    round: int = 0  # from 0
    step: int = 0  # from 0: of this rank in that round, in one attempt
    checkpoint: int = 1  # from 1: of those that this rank writes in one attempt
    number: int = 0  # of a signal
    seconds: float = 0.0  # of a slow disk (for each file), or by which a clock is ahead

    def is_at(self, round: int, step: int, checkpoint: int) -> bool:
        """Whether its time has come."""
        if self.where in ("write", "pointer"):
            return checkpoint >= self.checkpoint
        return (round, step) >= (self.round, self.step)


@dataclass(frozen=True)
class Faults:
    """Several of them. Every method but `start` and those that read gives a longer table."""

    table: tuple[Fault, ...] = ()

    def kill(self, **place: Any) -> Faults:
        """SIGKILL at rank=, where= (a step), round=, step=, checkpoint=."""
        return self._add("kill", place)

    def lose_node(self, **place: Any) -> Faults:
        """SIGKILL of the agent that started the rank, and of the rank."""
        return self._add("lose_node", place)

    def freeze(self, **place: Any) -> Faults:
        """SIGSTOP."""
        return self._add("freeze", place)

    def signal(self, *, number: signal.Signals, **place: Any) -> Faults:
        """Any signal, to that rank alone."""
        return self._add("signal", place | {"number": int(number)})

    def fail(self, **place: Any) -> Faults:
        """An exception in the training step: a defect on one rank."""
        return self._add("raise", place)

    def out_of_memory(self, **place: Any) -> Faults:
        """During one step the process may take no more memory than it has (RLIMIT_DATA)."""
        return self._add("out_of_memory", place)

    def full_disk(self, **place: Any) -> Faults:
        """No file of one checkpoint can grow (RLIMIT_FSIZE): rank=, checkpoint=."""
        return self._add("full_disk", {"where": "write"} | place)

    def slow_disk(self, *, seconds: float, **place: Any) -> Faults:
        """Each file of each checkpoint takes so long; not once, but always."""
        return self._add("slow_disk", {"where": "start", "seconds": seconds} | place)

    def shift_clock(self, *, seconds: float, **place: Any) -> Faults:
        """That rank's `time.time` is ahead; not once, but always."""
        return self._add("shift_clock", {"where": "start", "seconds": seconds} | place)

    def truncate_newest(self) -> Faults:
        """The first attempt that finds two checkpoints finds the one to go on from cut short."""
        return self._add("truncate", {"where": "start"})

    def _add(self, kind: Kind, place: Mapping[str, Any]) -> Faults:
        return Faults((*self.table, Fault(kind=kind, **place)))

    def start(
        self,
        ranks: int,
        run_dir: Path,
        *words: str,
        torchrun: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """A run, as `runs.start` starts it, that meets these faults."""
        own = self.env(run_dir) | dict(env or {})
        return runs.start(ranks, run_dir, *words, torchrun=torchrun, main=MAIN, env=own)

    def by_hand(self, ranks: int, run_dir: Path, *words: str) -> list[subprocess.Popen[str]]:
        """The same without torchrun, as under srun: nobody ends the others when one dies."""
        place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        place["MASTER_PORT"] = str(runs.free_port())
        each = [place | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
        return [self.start(0, run_dir, *words, env=env) for env in each]

    def run(self, ranks: int, run_dir: Path, *words: str, torchrun: tuple[str, ...] = ()) -> str:
        """A whole run's output."""
        return runs.finish(self.start(ranks, run_dir, *words, torchrun=torchrun))

    def env(self, run_dir: Path) -> dict[str, str]:
        """What tells the processes of it."""
        marks = marks_of(run_dir)
        marks.mkdir(parents=True, exist_ok=True)
        table = [asdict(fault) for fault in self.table]
        told = json.dumps({"marks": str(marks), "run_dir": str(run_dir), "table": table})
        # what is taken in one piece of 64 KB or more comes from the kernel, so that a limit shows
        return {ENV: told, "PYTHONPATH": str(runs.ROOT), "MALLOC_MMAP_THRESHOLD_": "65536"}

    def run_frozen(self, ranks: int, run_dir: Path, *words: str) -> str:
        """The same, and the frozen rank is killed once the others have said that they ended.

        torchrun itself does so after 30 s, whatever its --shutdown-timeout.
        """
        process = self.start(ranks, run_dir, *words)
        runs.wait_for((run_dir / "summary.json").is_file, "the others' end")
        for at in self.struck(run_dir):
            if at:
                os.kill(at["pid"], signal.SIGKILL)
        return runs.finish(process)

    def struck(self, run_dir: Path) -> list[dict[str, Any] | None]:
        """When (Unix time), in which round and before which step each one struck, if it did."""
        files = [marks_of(run_dir) / f"{mark_of(fault)}.json" for fault in self.table]
        return [json.loads(file.read_text()) if file.is_file() else None for file in files]


def marks_of(run_dir: Path) -> Path:
    """The folder of the marks of a run: beside it, so that nothing foreign lies in it."""
    return run_dir.with_name(f"{run_dir.name}.faults")


def mark_of(fault: Fault) -> str:
    """A name of its own for each fault; two that are equal would strike once."""
    return "-".join(str(value) for value in asdict(fault).values())


def strike_once(marks: Path, fault: Fault, **facts: Any) -> bool:
    """Leave the mark; False if it is there already."""
    file = marks / f"{mark_of(fault)}.json"
    whole = marks / f".{os.getpid()}-{threading.get_ident()}"
    whole.write_text(json.dumps({"time": time.time(), "pid": os.getpid()} | facts))
    try:
        os.link(whole, file)  # not a rename, which would replace; a reader sees all of it
    except FileExistsError:
        return False
    return True


def given(env: Mapping[str, str], rank: int) -> tuple[Path, Path, list[Fault]]:
    """The folder of marks, the run directory, and the faults of that rank."""
    told = json.loads(env[ENV])
    table = [Fault(**fault) for fault in told["table"]]
    return Path(told["marks"]), Path(told["run_dir"]), [f for f in table if f.rank == rank]


def checkpoints(run_dir: Path) -> list[Path]:
    """The folders of checkpoints, oldest first."""
    return sorted((run_dir / "checkpoints").glob("[rs]*_*"))


def truncate(folder: Path) -> None:
    """Cut every tensor file of a checkpoint short, as a dying disk or a lost cache leaves it."""
    for file in folder.glob("*.safetensors"):
        os.truncate(file, file.stat().st_size // 2)
