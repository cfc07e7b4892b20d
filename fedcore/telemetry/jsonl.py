"""metrics.jsonl: one JSON object a line, append-only. Writing it, and reading it back."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedcore.files import parse_json
from fedcore.telemetry.events import Event
from fedcore.telemetry.sinks import Warn


class JsonlSink:
    """Appends events to a file with one write a batch.

    What a full disk does not take stays in memory and is tried again at the next write and at
    close, from the very byte at which it stopped, so that no line is lost, torn or doubled.
    """

    def __init__(self, path: Path, warn: Warn) -> None:
        self.path, self._warn = path, warn
        self._file = -1  # descriptor; opened by the first write
        self._pending = b""
        self._warned = False

    def write(self, events: Sequence[Event]) -> None:
        """Append these events and all that is pending."""
        self._pending += b"".join(map(_line, events))
        problem = self._flush()
        if problem and not self._warned:
            self._warned = True  # before the call: it may itself lead to a write
            self._warn(f"cannot write {self.path}: {problem}. Its lines wait in memory")

    def close(self) -> None:
        """Try once more; what cannot be written now is lost, and told."""
        problem = self._flush()
        if problem:
            lines = self._pending.count(b"\n")
            self._warn(f"{lines} lines of {self.path} were not written: {problem}")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _flush(self) -> str:
        """Write all that is pending; the reason why not, or nothing."""
        try:
            if self._file < 0 and self._pending:
                self._open()
            while self._pending:
                # os.write says how much was taken: a full disk may take half a line
                self._pending = self._pending[os.write(self._file, self._pending) :]
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            # a writer was killed within a line: the next one must not be glued to its half
            self._pending = b"\n" + self._pending


def _line(event: Event) -> bytes:
    return json.dumps(event.record(), allow_nan=False).encode() + b"\n"


def read_events(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines, in order. Half lines of killed writers are left out.

    Raises `OSError` if the file cannot be read.
    """
    return list(_records(path.read_bytes().splitlines()))


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects among these lines."""
    for line in lines:
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


class Tail:
    """Reads on in a file of JSON lines that grows, may not be there yet, or may be replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None  # device and inode
        self._at = 0  # bytes read: up to the end of the last whole line

    def is_replaced(self) -> bool:
        """Whether the file is another one, or shorter, than what was read; it then starts anew."""
        try:
            found = self.path.stat()
        except OSError:
            return False  # gone for a moment, or not there yet
        file = (found.st_dev, found.st_ino)
        replaced = self._file is not None and (file != self._file or found.st_size < self._at)
        if replaced or self._file is None:
            self._file, self._at = file, 0
        return replaced

    def read(self) -> Iterator[dict[str, Any]]:
        """The objects in whole lines since the last call, a piece of the file at a time.

        A line without its end waits for the next call.
        """
        rest = b""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(PIECE):
                *lines, rest = (rest + piece).split(b"\n")
                self._at = file.tell() - len(rest)
                yield from _records(lines)


PIECE = 1 << 22  # bytes; of a run of 10,000 clients a round is as much


def last_of_each(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record for each event, client and round (or step): the last, at the first's place.

    A resumed run repeats the rounds after its checkpoint. What happens at a moment (`resume`,
    `warning`) is no repetition and all stays.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, record in enumerate(records):
        moment = number if record.get("event") in ("resume", "warning") else None
        key = (moment, *(record.get(k) for k in ("event", "client", "round", "step")))
        found[key] = record
    return list(found.values())
