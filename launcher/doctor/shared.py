"""Is the folder of runs one folder for all ranks, with whole renames and locks that hold?"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedcore.checkpoint import write_atomically
from fedcore.errors import ConfigError
from launcher.doctor.check import Check
from launcher.doctor.roll import Roll
from launcher.rundir import alone_in

LONG = 64 * 1024  # characters: more than one page, so that a torn file shows
RENAMING = 0.5  # seconds
LATE = 1.0  # seconds until a file of another node should be seen

TORN = "another file system: checkpoints and pointers need renames that are whole (not S3 by FUSE)"
UNLOCKED = "mounting with locks (NFS: without nolock; Lustre: flock): two jobs could share a run"


def shared(folder: Path, roll: Roll) -> Iterator[Check]:
    """Findings about a folder that all ranks should see. Every rank calls it."""
    mine: Path | None = None
    try:
        if roll.rank == 0:
            mine = Path(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
            write_atomically(mine / "token", "fedcore")
    finally:
        if roll.rank == 0:
            roll.say("folder", mine.name if mine else "")
    try:
        yield from _looks(folder, roll) if roll.size > 1 else _alone(mine or folder)
    finally:
        roll.say(f"left/{roll.rank}")
        if mine:
            roll.hear_all("left")
            shutil.rmtree(mine, ignore_errors=True)


def _looks(folder: Path, roll: Roll) -> Iterator[Check]:
    name = roll.hear("folder")
    if not name:
        return  # rank 0 has said why
    began = time.monotonic()
    sees = _visible(folder / name / "token", roll.patience / 3)
    waited = time.monotonic() - began
    roll.say(f"sees/{roll.rank}", sees)
    if not sees:
        found = f"{folder} is another folder here than on rank 0"
        yield Check("shared folder", False, found, "--folder on a file system that all nodes mount")
    elif roll.rank:
        way_out = "NFS: a shorter actimeo; a resumed run waits for its files"
        figures = {"seconds": waited}
        when = "at once" if waited < LATE else f"{waited:.1f} s later"
        found = f"files of rank 0 are seen {when}"
        yield Check("shared folder", waited < LATE, found, way_out, False, figures)
    there = [rank for rank, sees in roll.hear_all("sees").items() if sees]
    if roll.rank in there:
        yield from _renames(folder / name, roll, there[1:])
        yield from _locks(folder / name, roll, there[1:])


def _visible(file: Path, patience: float) -> bool:
    """Whether a file comes into sight."""
    until = time.monotonic() + patience
    while not file.is_file() and time.monotonic() < until:
        time.sleep(0.005)
    return file.is_file()


def _renames(folder: Path, roll: Roll, readers: list[int]) -> Iterator[Check]:
    """Rank 0 replaces a file again and again, the others read it all the time."""
    file = folder / "renamed"
    if roll.rank:
        roll.hear("renaming")
        faults, reads = read_whole(file, lambda: roll.said("renamed"))
        found = faults[0] if faults else "readers see the old file or the new one"
        yield Check("atomic rename", not faults, found, TORN, figures={"reads": reads})
        return
    try:
        replace_often(file, RENAMING / 10)
        roll.say("renaming")
        replace_often(file, RENAMING)
    finally:
        for key in ("renaming", "renamed"):
            roll.say(key)


def replace_often(file: Path, seconds: float) -> None:
    """Write the file anew until the time is over, each time all of one letter."""
    until, turn = time.monotonic() + seconds, 0
    while turn == 0 or time.monotonic() < until:
        write_atomically(file, "abcdefgh"[turn % 8] * LONG)
        turn += 1


def read_whole(file: Path, over: Callable[[], bool]) -> tuple[list[str], int]:
    """What was wrong with the file while it was being replaced, and how often it was read."""
    faults: list[str] = []
    reads = 0
    while not faults and not (reads and over()):
        reads += 1
        try:
            text = file.read_text()
        except OSError as error:
            faults.append(f"a reader met: {error.strerror}")
            continue
        if len(text) != LONG or len(set(text)) != 1:
            faults.append(f"a reader saw half a file ({len(text)} of {LONG} characters)")
    return faults, reads


def _locks(folder: Path, roll: Roll, others: list[int]) -> Iterator[Check]:
    """Rank 0 holds the lock of a run directory; the others must not get it, and then one must."""
    if roll.rank == 0:
        lock = alone_in(folder)
        roll.say("locked")
        for rank in others:
            roll.hear(f"tried/{rank}")
        lock.release()
        roll.say("released")
        return
    roll.hear("locked")
    got = _gets(folder)
    roll.say(f"tried/{roll.rank}")
    found = "held by rank 0, and given to this rank too" if got else "keeps others out"
    yield Check("lock", not got, found, UNLOCKED)
    roll.hear("released")
    if roll.rank == others[0] and not _gets(folder):
        yield Check("lock", False, "rank 0 released it, and it cannot be had", UNLOCKED)


def _gets(folder: Path) -> bool:
    try:
        alone_in(folder).release()
    except ConfigError:
        return False
    return True


def _alone(folder: Path) -> Iterator[Check]:
    """The same looks with a thread that reads, and another process that wants the lock."""
    file, over = folder / "renamed", threading.Event()
    replace_often(file, 0)

    def write() -> None:
        try:
            replace_often(file, RENAMING)
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    faults, _ = read_whole(file, over.is_set)
    writer.join()
    found = faults[0] if faults else "readers see the old file or the new one"
    yield Check("atomic rename", not faults, found, TORN)
    lock = alone_in(folder)
    words = "import filelock, sys; filelock.FileLock(sys.argv[1]).acquire(blocking=False)"
    other = [sys.executable, "-c", words, str(folder / ".lock")]
    got = subprocess.run(other, capture_output=True, timeout=30).returncode == 0
    lock.release()
    found = "given to two processes at once" if got else "keeps others out"
    yield Check("lock", not got, found, UNLOCKED)
