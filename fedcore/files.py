"""Files that somebody else may have written: names that stay in their folder, JSON that is JSON.

All readers of names and of JSON on disk call these; what is wrong is told and never followed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcore.errors import ShardError

LARGEST = 256 * 2**20  # bytes of a file of words; an index of 100,000 clients has a tenth
LONGEST = 255  # bytes of a name, and 16 times that of a path: what file systems take


def inside(folder: Path, name: Any) -> Path:
    """`folder`/`name`, a place below the folder, links followed; else `ShardError` with the name.

    The folder itself may be a link: data may lie on another disk as a whole.
    """
    problem = _problem(folder, name)
    if problem:
        shown = repr(name)[:80]
        raise ShardError(str(folder), f"names {shown}, {problem}", "the folder as it was written")
    return folder / str(name)


def _problem(folder: Path, name: Any) -> str:
    """Why a name leads nowhere in the folder; empty if it does."""
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        return "which is no name of a file"
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts or not parts:
        return "which lies outside of it"
    try:
        if max(len(part.encode()) for part in parts) > LONGEST or len(name) > 16 * LONGEST:
            return "which is too long"
        place = (folder / name).resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle; half a surrogate pair
        return "which leads nowhere"
    return "" if place.is_relative_to(folder.resolve()) else "a link out of it"


def other_format(number: Any, ours: Sequence[int]) -> tuple[str, str]:
    """What is wrong with a file of a format that is none of ours, and who can read it."""
    newer = type(number) is int and number > max(ours)
    read = " and ".join(map(str, ours))
    return (
        f"is of format {number}, and this fedcore reads {read}",
        "a newer fedcore" if newer else "the fedcore that wrote it",
    )


def plain_name(text: str, most: int = 80) -> str:
    """Words as a part of a folder's name: no separators, no dots at its ends, not too long."""
    return re.sub(r"[^\w.+=-]+", "_", text)[:most].strip(".") or "run"


def parse_json(text: str | bytes) -> Any:
    """The value; `ValueError` for all that is none, also for one that is nested without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """The value in a file; `OSError` if it cannot be read, `ValueError` if it is no JSON."""
    return parse_json(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """A file of words; `OSError` if it cannot be read, or is too large to be one."""
    with path.open("rb") as file:
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise OSError(errno.EFBIG, f"more than {LARGEST:,} bytes")
    return found


def sha256_of(path: Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal; `OSError` if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
