"""A sink that keeps what it is told."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.telemetry.events import Event


class Kept:
    """Every event, in the order in which they came; follows `Sink`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: Sequence[Event]) -> None:
        self.events += events

    def close(self) -> None:
        """Nothing is open."""
