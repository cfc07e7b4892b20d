"""metrics.jsonl: one JSON object a line, append-only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedcore.telemetry.events import Event


class JsonlSink:
    """Appends events. With a full disk lines wait in memory, and it is said once."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self.warn = path, warn
        self._pending = ""
        self._told = False
        if _ends_in_half_a_line(path):
            self._pending = "\n"  # of a writer that was killed: the next line must stand alone

    def write(self, events: Sequence[Event]) -> None:
        """Append one line an event, with the time."""
        now = round(time.time(), 3)
        for event in events:
            record = event.record()
            line = {"event": record.pop("event"), "time": now, **record}
            self._pending += json.dumps(line, allow_nan=False) + "\n"
        self._flush()

    def _flush(self) -> None:
        try:
            before = self.path.stat().st_size if self.path.exists() else 0
            with self.path.open("a", encoding="utf-8") as file:
                file.write(self._pending)
        except OSError as error:
            self._undo(before)
            if not self._told:
                self._told = True
                self.warn(f"{self.path}: {error.strerror or error}; lines wait in memory")
            return
        self._pending, self._told = "", False

    def _undo(self, size: int) -> None:
        """Take back the part of a write that still fitted on the disk: it comes again whole."""
        try:
            with self.path.open("r+b") as file:
                file.truncate(size)
        except OSError:
            self._pending = "\n" + self._pending.lstrip("\n")

    def close(self) -> None:
        """Write what still waits."""
        if self._pending.strip():
            self._flush()


def _ends_in_half_a_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except OSError:  # no file, or an empty one
        return False


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a file; a half line left by a killed writer is passed over."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def latest(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Events of one kind, in round order; of a round that ran again after a loss, the last."""
    found = {(e["round"], e.get("client", -1)): e for e in events if e["event"] == kind}
    return [found[key] for key in sorted(found)]
