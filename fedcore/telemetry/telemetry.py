"""Telemetry: fans events and plain numbers out to the sinks of this rank."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from fedcore.telemetry.console import ConsoleSink
from fedcore.telemetry.events import ClientEvent, Event, WarningEvent
from fedcore.telemetry.jsonl import JsonlSink
from fedcore.telemetry.prometheus import PrometheusSink


class Writer(Protocol):
    """What the round loop needs of telemetry; `Telemetry` is one, tests have others."""

    def write(self, events: list[Event], own: Set[int] = frozenset()) -> None:
        """Something happened. `own`: the clients of this rank."""

    def trained(self, samples: int) -> None:
        """This rank has trained on so many samples."""

    def phase(self, name: str, seconds: float) -> None:
        """A phase of a round is over."""

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective is over."""

    def checkpointed(self) -> None:
        """A checkpoint was written."""


class Telemetry:
    """Rank 0 has all three sinks; other ranks only their Prometheus endpoint."""

    def __init__(
        self,
        console: ConsoleSink | None = None,
        jsonl: JsonlSink | None = None,
        prometheus: PrometheusSink | None = None,
    ) -> None:
        self.console, self.jsonl, self.prometheus = console, jsonl, prometheus

    def write(self, events: list[Event], own: Set[int] = frozenset()) -> None:
        """Rank 0's console and file get all events, an endpoint its own clients only."""
        for sink in (self.console, self.jsonl):
            if sink:
                sink.write(events)
        if self.prometheus:
            self.prometheus.write(
                [e for e in events if not isinstance(e, ClientEvent) or e.client in own]
            )

    def warn(self, words: str, round: int = 0) -> None:
        """A warning, to the console and the file of rank 0."""
        self.write([WarningEvent(round=round, message=words)])

    def trained(self, samples: int) -> None:
        """Count samples of this rank."""
        for sink in (self.console, self.prometheus):
            if sink:
                sink.trained(samples)

    def phase(self, name: str, seconds: float) -> None:
        """A phase of a round is over."""
        if self.prometheus:
            self.prometheus.phase(name, seconds)

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective is over."""
        if self.prometheus:
            self.prometheus.traffic(op, size, seconds)

    def checkpointed(self) -> None:
        """A checkpoint was written."""
        if self.prometheus:
            self.prometheus.checkpointed()

    def close(self) -> None:
        """Close all sinks."""
        for sink in (self.console, self.jsonl, self.prometheus):
            if sink:
                sink.close()
