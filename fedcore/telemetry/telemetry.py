"""Telemetry: fans out to the sinks. It is only ever written to, and never ends a run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import TracebackType

from fedcore.errors import CollectiveError, FedError, Stopped, Unexpected
from fedcore.telemetry.events import ClientEvent, Event, LMClientEvent, WarningEvent
from fedcore.telemetry.sinks import HURRY, PATIENCE, Meter, Sink, SlowSink, Warn


def to_stderr(words: str) -> None:
    """The way out for warnings that no sink can take."""
    print(f"fedcore: {words}", file=sys.stderr, flush=True)


class Telemetry:
    """This rank's sinks.

    sinks: take every event (of rank 0: file and console). meter: takes this rank's clients only,
    and its plain numbers. tick: told of samples as they are trained on. A sink that raises is
    told of once and tried again at the next write. As a context it is told how the run ends;
    at_end: called then, unless a rank is lost or broke down, which operators should see.
    """

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        meter: Meter | None = None,
        report: Warn = to_stderr,
        tick: Callable[[int], None] = lambda samples: None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self.sinks, self.meter, self._report, self._tick = tuple(sinks), meter, report, tick
        self._at_end = at_end
        self._round = 0
        self._failed: set[int] = set()

    def write(self, events: Sequence[Event], own: Collection[int] | None = None) -> None:
        """Hand events out together. own: this rank's clients; None = all are."""
        self._round = max([self._round, *(getattr(e, "round", 0) for e in events)])
        for sink in self.sinks:
            self._attempt(sink, partial(sink.write, events))
        self._measure(lambda meter: meter.write([e for e in events if _is_of(e, own)]))

    def trained(self, samples: int) -> None:
        """This rank trained on so many more samples."""
        self._tick(samples)
        self._measure(lambda meter: meter.samples(samples))

    def tokens(self, n: int) -> None:
        """This rank trained on so many more tokens."""
        self._measure(lambda meter: meter.tokens(n))

    def phase(self, name: str, seconds: float) -> None:
        """A phase of the round is over."""
        self._measure(lambda meter: meter.phase(name, seconds))

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective is over; this rank handed in `size` bytes."""
        self._measure(lambda meter: meter.traffic(op, size, seconds))

    def checkpointed(self, at: float) -> None:
        """A checkpoint was complete at that (Unix) time."""
        self._measure(lambda meter: meter.checkpointed(at))

    def checkpoint_failed(self) -> None:
        """A checkpoint could not be written; the run goes on."""
        self._measure(lambda meter: meter.checkpoint_failed())

    def warn(self, words: str) -> None:
        """A warning of the present round, to all sinks."""
        self.write([WarningEvent(self._round, words)])

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = "completed" if error is None else getattr(error, "status", "failed")
        orderly = error is None or isinstance(error, FedError)
        orderly = orderly and not isinstance(error, CollectiveError | Unexpected)
        wait = orderly and not isinstance(error, Stopped)  # there may be seconds until SIGKILL
        self._ending(PATIENCE if wait else HURRY)  # they end while the meter is read
        self._measure(lambda meter: meter.ended(status, wait))
        self._close()
        if orderly and self._at_end:
            self._at_end()

    def close(self, patience: float = PATIENCE) -> None:
        """Close all sinks, even when one of them fails to; the slow ones have so many seconds."""
        self._ending(patience)
        self._close()

    def _ending(self, patience: float) -> None:
        """Tell all slow sinks, before any is waited for."""
        deadline = time.monotonic() + patience
        for sink in self.sinks:
            if isinstance(sink, SlowSink):
                self._attempt(sink, partial(sink.ending, deadline))

    def _close(self) -> None:
        for sink in self.sinks:
            self._attempt(sink, sink.close)
        self._measure(lambda meter: meter.close())

    def _measure(self, act: Callable[[Meter], None]) -> None:
        meter = self.meter
        if meter is not None:
            self._attempt(meter, lambda: act(meter))

    def _attempt(self, sink: Sink, act: Callable[[], None]) -> None:
        """Do it; the first failure of each sink is reported, none is raised."""
        try:
            act()
        except Exception as error:
            if id(sink) not in self._failed:
                self._failed.add(id(sink))
                with contextlib.suppress(Exception):  # stderr may be gone as well
                    self._report(f"{type(sink).__name__} failed, the run goes on: {error!r}")


def _is_of(event: Event, own: Collection[int] | None) -> bool:
    if own is None or not isinstance(event, ClientEvent | LMClientEvent):
        return True
    return event.client in own
