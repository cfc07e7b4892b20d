"""One long tiny training and random faults in it: does it end as if nothing had happened?

    python -m tests.procs.chaos --faults 50 --seed 1

The same command is started again after each fault, on 2 or 3 ranks. What each one cost is printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from fedcore.checkpoint import Checkpoint, candidates
from fedcore.errors import FedError
from fedcore.telemetry.jsonl import read_events
from launcher.rundir import alone_in
from tests.procs import faults, runs
from tests.procs.chaos_draw import Attempt, drawn
from tests.procs.chaos_table import Cost, show

HEARTBEAT = 3  # seconds
SLACK = 10  # seconds after that until all ranks have ended, on a busy machine
START = 90  # seconds from the command until its fault strikes, at most
WORDS = ("--config", "smoke", "--set", "clients.local_epochs=1", "clients.batch_size=32")
WORDS += ("evaluate.every=5", f"server.heartbeat={HEARTBEAT}", "checkpoint.keep=3")
PROOF = ("prototypes_sha256", "parameters_sha256", "accuracy")
GARBAGE = (b"", b"round_99999", b"\0\xff" * 40, b"../" * 9)  # in a pointer


class Chaos:
    """The run, the faults drawn for it, and what they cost."""

    def __init__(self, folder: Path, seed: int, count: int, words: Sequence[str] = ()) -> None:
        self.run_dir, self.targets = folder / "run", folder / "targets"
        self.draw, self.count = Random(seed), count
        self.words = (*WORDS, f"rounds={20 + count}", f"metrics.targets={self.targets}", *words)
        self.costs: list[Cost] = []
        self._damaged: set[str] = set()  # checkpoints, on purpose
        self._full: list[int] = []  # of each attempt: checkpoints that met a full disk

    def undisturbed(self) -> dict[str, Any]:
        """The summary of the run to which nothing happens."""
        return runs.completed(0, self.run_dir.with_name("undisturbed"), *self.words)

    def __call__(self) -> dict[str, Any]:
        """The summary of the run, once it has met all faults."""
        while len(self.costs) < self.count:
            self._meet(drawn(self.draw, self._place()[0]))
            if len(self.costs) < self.count:
                self._damage()
        seen = len(self._lines())
        found = runs.completed(2, self.run_dir, *self.words, "metrics.enabled=true")
        self._went_on(seen)
        self._check_checkpoints()
        return found

    def _meet(self, attempt: Attempt) -> None:
        """Start it, wait until its fault has ended it, and look at what is left."""
        for mark in faults.marks_of(self.run_dir).glob("*.json"):
            mark.unlink()  # the same fault may be drawn again
        seen, from_here = len(self._lines()), self._newest()
        process = attempt.table.start(attempt.ranks, self.run_dir, *self.words, *attempt.words)
        out = self._ended(process, attempt)
        [struck] = attempt.ending.struck(self.run_dir)
        full = sum(at is not None for at in attempt.full_disk.struck(self.run_dir))
        said = f"{attempt}\n{out[-3000:]}"
        assert struck is not None, said
        seconds, code = time.time() - struck["time"], runs.summary(self.run_dir)["exit_code"]
        codes, most = attempt.fine(full)
        lines = self._lines()[seen:]
        done = max((x["round"] + 1 for x in lines if x["event"] == "round"), default=0)
        lost = max(0, done - self._place()[0])
        assert code in codes, f"code {code}: {said}"
        assert seconds < HEARTBEAT + SLACK, f"{seconds:.1f} s: {said}"
        assert lost <= most, f"{lost} rounds lost: {said}"
        resumed = [Path(x["checkpoint"]).name for x in lines if x["event"] == "resume"]
        assert resumed == ([from_here.name] if from_here else []), said
        self._went_on(seen)
        self._check_checkpoints()
        self._full.append(full)
        self._book(attempt, lost, seconds)

    def _book(self, attempt: Attempt, lost: int, seconds: float) -> None:
        """What a full disk and what ended the attempt cost."""
        parts = (
            (attempt.full_disk, "full disk", max(0, lost - 1)),
            (attempt.ending, attempt.name, min(1, lost)),
        )
        for faults_of, name, rounds in parts:
            for at in filter(None, faults_of.struck(self.run_dir)):
                ended = seconds if faults_of is attempt.ending else None
                place = f"{at['round'] + 1}.{at['step'] + 1}"
                self.costs.append(Cost(name, at["time"], attempt.ranks, place, ended, lost=rounds))

    def _ended(self, process: subprocess.Popen[str], attempt: Attempt) -> str:
        """Its output, once no process of it is left.

        A frozen rank is killed when the others have ended, as torchrun does after 30 s.
        """
        until, hit = time.monotonic() + START, False
        while process.poll() is None and time.monotonic() < until:
            [struck] = attempt.ending.struck(self.run_dir)
            if struck and not hit:
                hit, until = True, time.monotonic() + HEARTBEAT + SLACK
            if struck and attempt.name == "freeze" and (self.run_dir / "summary.json").is_file():
                with suppress(ProcessLookupError):
                    os.kill(struck["pid"], signal.SIGKILL)
            time.sleep(0.05)
        runs.wait_for(lambda: not alive(self.run_dir), "all ranks to end", HEARTBEAT + SLACK)
        return runs.finish(process, limit=5)

    def _damage(self) -> None:
        """Now and then, while nothing runs, damage the pointer or the checkpoint to go on from."""
        draw, place, pointer = self.draw, self._place(), self.run_dir / "checkpoints" / "latest"
        broken, cut, garbage = draw.random() < 0.2, draw.random() < 0.3, draw.choice(GARBAGE)
        if broken and pointer.is_file():
            pointer.write_bytes(garbage)
            assert self._place() >= place
            self.costs.append(Cost("damaged pointer", time.time(), lost=0))
            place = self._place()  # a newer one may be complete that it did not name yet
        if cut and len(self._good()) > 1:
            newest = self._good()[0]
            faults.truncate(newest)
            self._damaged.add(newest.name)
            lost = place[0] - self._place()[0]  # below 0: another one was newer, and not yet named
            assert lost <= 1 + sum(self._full[-3:]), f"{lost} rounds from one to the one before"
            self.costs.append(Cost("truncated newest", time.time(), lost=max(0, lost)))

    def _good(self) -> list[Path]:
        """The checkpoints that are whole, that to go on from first."""
        return [folder for folder in candidates(self.run_dir / "checkpoints") if is_good(folder)]

    def _newest(self) -> Path | None:
        return next(iter(self._good()), None)

    def _place(self) -> tuple[int, int]:
        """Where the next attempt goes on: rounds done, and pauses taken in the one under way."""
        newest = self._newest()
        facts = Checkpoint(newest).facts if newest else {"round": 0, "within": None}
        return facts["round"], facts["within"]["pauses"] if facts["within"] else 0

    def _lines(self) -> list[dict[str, Any]]:
        file = self.run_dir / "metrics.jsonl"
        return read_events(file) if file.is_file() else []

    def _went_on(self, seen: int) -> None:
        """An attempt has begun with the line of that number: what the faults before it cost."""
        for line in self._lines()[seen : seen + 1]:  # none if it was lost in its first round
            for cost in self.costs:
                cost.went_on = line["time"] - cost.time if cost.went_on is None else cost.went_on

    def _check_checkpoints(self) -> None:
        """None is half there, but for those that were damaged on purpose and not written again."""
        for folder in faults.checkpoints(self.run_dir):
            if is_good(folder):
                self._damaged.discard(folder.name)
            assert is_good(folder) or folder.name in self._damaged, folder

    def left_behind(self) -> list[str]:
        """What should not be there after the end of the run."""
        alone_in(self.run_dir).release()  # raises if a lock is held
        hidden = [*self.run_dir.glob(".*"), *self.run_dir.glob("checkpoints/.*")]
        files = [str(file) for file in hidden if file.name != ".lock"]
        return files + [str(file) for file in self.targets.glob("*")] + alive(self.run_dir)


def is_good(folder: Path) -> bool:
    """Whether a checkpoint is whole."""
    try:
        Checkpoint(folder).verify()
    except FedError:
        return False
    return True


def alive(run_dir: Path) -> list[str]:
    """The processes that work in a run directory, defunct ones aside."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if str(run_dir).encode() in words:
                found.append(f"process {file.parent.name}")
    return found


def main(words: list[str] | None = None) -> None:
    """Raises `AssertionError` for what must not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("words", nargs="*", help="other settings of the run, as a.b=value")
    given, began = parser.parse_args(words), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = Chaos(Path(folder), given.seed, given.faults, given.words)
        wanted = chaos.undisturbed()
        try:
            found = chaos()
        finally:
            print(show(chaos.costs), flush=True)
            for left in alive(chaos.run_dir):  # of an attempt that was not as it should be
                os.kill(int(left.split()[1]), signal.SIGKILL)
        lines = [x["round"] for x in chaos._lines() if x["event"] == "round"]
        assert {k: found[k] for k in PROOF} == {k: wanted[k] for k in PROOF}
        assert not chaos.left_behind(), chaos.left_behind()
    again, rounds = len(lines) - len(set(lines)), len(set(lines))
    print(
        f"\nseed {given.seed}: {len(chaos.costs)} faults in {time.monotonic() - began:.0f} s; ",
        end="",
    )
    print(f"{rounds} rounds, {again} of them done again; the same checksums; nothing left behind")


if __name__ == "__main__":
    main()
