"""What befalls files and disks: a turned bit, a disk that is full or may only be read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip(path: Path, at: int | None = None) -> None:
    """Turn one bit of the byte at that offset; of the middle one unless it is given."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory at `folder`, with these mount options. Only root may do so."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Other options for it."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
