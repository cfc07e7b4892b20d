"""A bench's processes: started side by side as torchrun would, watched by one that holds nothing.

Without torchrun's own process, which would share the libraries' memory with them: proportional
shares (PSS) are then of these processes alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

OUT = "BENCH_OUT"  # names the file that rank 0 leaves its JSON in


class Memory(NamedTuple):
    """Peaks in bytes."""

    pss: int  # of all processes together: pages that they share count once
    largest_pss: int  # of any one
    largest_rss: int
    largest_own: int  # resident and not of a file

    def over(self, other: Memory) -> Memory:
        """The greater of both."""
        return Memory(*map(max, self, other))


class Ran(NamedTuple):
    """What rank 0 left, and the peaks if they were asked for."""

    found: Any
    memory: Memory | None


def is_rank() -> bool:
    """Whether this process is one of them (or one of torchrun's)."""
    return "RANK" in os.environ


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for shards and checkpoints, where git does not look and there is room."""
    below = Path("runs/bench").resolve()
    below.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=below)


def leave(found: Any) -> bool:
    """Hand this rank 0's findings to the process that started it; False if there is none."""
    if OUT not in os.environ:
        return False
    Path(os.environ[OUT]).write_text(json.dumps(found, default=str))
    return True


def run(
    script: str, words: Sequence[str], ranks: int, *, watched: bool = False, limit: float = 900.0
) -> Ran:
    """Run `script words` on so many ranks, for at most `limit` seconds; raises SystemExit if any
    fails. watched: look at their memory all the time, which costs them some."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(ranks)]
        port = _free_port()
        workers = []
        for rank, log in enumerate(logs):
            with log.open("wb") as sink:
                env = os.environ | _place(rank, ranks, port) | {OUT: str(out)}
                env["XDG_CACHE_HOME"] = folder  # what was once measured is not remembered
                command = [sys.executable, script, *words]
                workers.append(psutil.Popen(command, env=env, stdout=sink, stderr=sink))
        try:
            memory = _wait(workers, watched, time.monotonic() + limit)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
        for worker, log in zip(workers, logs, strict=True):
            if worker.wait():
                raise SystemExit(f"{script} {' '.join(words)} failed:\n{log.read_text()[-3000:]}")
        return Ran(json.loads(out.read_text()), memory)


def _place(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(workers: Sequence[psutil.Popen], watched: bool, until: float) -> Memory | None:
    """Until all are over, one has failed, or the time is up."""
    memory, pause = (Memory(0, 0, 0, 0), 0.25) if watched else (None, 0.05)
    while any(worker.poll() is None for worker in workers):
        if any(worker.poll() for worker in workers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                workers[0].wait(10)  # it may say why
            break
        if time.monotonic() > until:
            raise SystemExit("a bench's processes have not ended in time")
        if memory is not None:
            memory = memory.over(_look(workers))
        time.sleep(pause)
    return memory


def _look(workers: Sequence[psutil.Popen]) -> Memory:
    """Of this moment."""
    found = []
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            whole = worker.memory_full_info()
            found.append((whole.pss, whole.rss, whole.rss - whole.shared))
    if not found:
        return Memory(0, 0, 0, 0)
    return Memory(sum(pss for pss, *_ in found), *(max(x) for x in zip(*found, strict=True)))
