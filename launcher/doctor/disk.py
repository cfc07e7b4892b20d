"""Looks at the folder of runs as one process sees it: room, rights, speed."""

from __future__ import annotations

import errno
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.doctor.check import Check, size

SPACE = 2**30  # bytes that the shards of the small datasets, a run and its checkpoints fit in
INODES = 10_000
SLOW_SYNC = 0.2  # seconds: a checkpoint syncs each of its files
SLOW_WRITE = 20e6  # bytes a second
SYNCS = 7
SHORT = 4096  # bytes written before each sync

Sync = Callable[[int], None]


def room(folder: Path) -> Iterator[Check]:
    """Whether files can be written there, and how many."""
    problem = _problem(folder)
    way_out = "a larger quota" if "uota" in problem else "--folder: one that you may write to"
    yield Check("folder of runs", not problem, f"{folder}{problem}", way_out)
    free = shutil.disk_usage(folder).free
    yield Check("free disk", free >= SPACE, size(free), f"at least {size(SPACE)}")
    stat = os.statvfs(folder)
    if stat.f_files:  # 0: a file system without a limit
        enough = stat.f_favail >= INODES
        yield Check("free inodes", enough, str(stat.f_favail), f"at least {INODES}: fewer files")
    yield from lasting(folder, Path("/proc/self/mounts").read_text())


def _problem(folder: Path) -> str:
    """What keeps us from writing; empty if nothing does."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"fedcore" * SHORT)
            file.flush()
            os.fsync(file.fileno())  # a full quota of NFS is told here
    except OSError as error:
        word = "Disk quota exceeded" if error.errno == errno.EDQUOT else error.strerror
        return f": {word}"
    return ""


def lasting(folder: Path, mounts: str) -> Iterator[Check]:
    """The file system, by the lines of /proc/mounts: one in memory forgets the runs."""
    place = folder.resolve()
    rows = [line.split()[:3] for line in mounts.splitlines()]
    named = [(at.replace("\\040", " "), kind) for _, at, kind in rows]  # a space is written so
    over = [(len(at), kind) for at, kind in named if place.is_relative_to(at)]
    kind = max(over)[1] if over else "unknown"
    way_out = "a volume or a shared file system: this one forgets when its machine ends"
    yield Check(
        "file system", kind not in ("tmpfs", "ramfs", "overlay"), kind, way_out, needed=False
    )


def speed(folder: Path, count: int, sync: Sync = os.fsync) -> Iterator[Check]:
    """Seconds until a short write is safe (median), and bytes a second of a long one."""
    with tempfile.TemporaryFile(dir=folder) as file:
        waits = [_written(file.fileno(), b"x" * SHORT, sync) for _ in range(SYNCS)]
        chunk = os.urandom(2**20)  # not zeros: some file systems keep none of those
        rate = count / _written(file.fileno(), chunk, sync, count // 2**20)
    wait = statistics.median(waits)
    found = f"{wait * 1e3:.2g} ms after {size(SHORT)} (median of {SYNCS})"
    yield Check("fsync", wait <= SLOW_SYNC, found, _FASTER, needed=False, figures={"seconds": wait})
    found = f"{rate / 1e6:.0f} MB/s ({size(count)}, with its fsync)"
    figures = {"bytes_per_second": rate, "bytes": float(count)}
    yield Check("writing", rate >= SLOW_WRITE, found, _FASTER, needed=False, figures=figures)


_FASTER = "a faster folder of runs, or checkpoint.every larger: each checkpoint waits for this"


def _written(file: int, chunk: bytes, sync: Sync, times: int = 1) -> float:
    """Seconds for so many writes and one sync."""
    began = time.monotonic()
    for _ in range(times):
        os.write(file, chunk)
    sync(file)
    return time.monotonic() - began
