"""What a sink is. Each kind has a file: jsonl.py, prometheus.py, console.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from fedcore.telemetry.events import Event

Warn = Callable[[str], None]
"""Told, in one sentence, of something that an operator should know."""


class Sink(Protocol):
    """Takes the events of a moment together, in order; a round's are its clients' and its own."""

    def write(self, events: Sequence[Event]) -> None:
        """Take these events; called whenever there are new ones."""

    def close(self) -> None:
        """No more events will come."""


PATIENCE = 20.0  # seconds for all slow sinks of a run together to take its last events
HURRY = 3.0  # the same of a run that was stopped or lost: there may be seconds until SIGKILL


@runtime_checkable
class SlowSink(Sink, Protocol):
    """A sink with a thread of its own, that may need a while for the last events."""

    def ending(self, deadline: float) -> None:
        """No more events will come; `close` waits until then at most (`time.monotonic`)."""


class Meter(Sink, Protocol):
    """A sink that also takes this rank's plain numbers, many a round."""

    def samples(self, n: int) -> None:
        """n more samples were trained on."""

    def tokens(self, n: int) -> None:
        """n more tokens were trained on."""

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective took `seconds`; this rank handed in `size` bytes."""

    def phase(self, name: str, seconds: float) -> None:
        """A phase of the round took `seconds`."""

    def checkpointed(self, at: float) -> None:
        """A checkpoint was complete at that (Unix) time."""

    def checkpoint_failed(self) -> None:
        """A checkpoint could not be written."""

    def ended(self, status: str, wait: bool) -> None:
        """The run is over. wait: there is time for a reader to take the last numbers."""
