"""TensorBoard, Weights & Biases, MLflow: the numbers of metrics.jsonl, by accelerate's trackers.

A thread of its own writes, so that a slow disk or network holds nobody up. Everything lies in one
folder, and nothing goes to a network unless the tracker's own environment variables ask for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigError
from fedcore.telemetry.events import (
    ClientEvent,
    Event,
    LMClientEvent,
    LMEvalEvent,
    LMStepEvent,
    RoundEvent,
)
from fedcore.telemetry.sinks import PATIENCE
from fedcore.telemetry.tracker_kinds import DEFAULTS, TRACKERS, Kept, Opened, turn

Readings = dict[str, float]
WAITING = 1000  # readings that wait for a slow tracker, at most; the oldest are given up
PLACES = ("time", "round", "rounds", "step", "steps", "progress")  # fields that are no reading
PLAIN = (bool, int, float, str)
OF_CLIENTS = ("base_loss", "align_loss", "lambda_raw", "lambda_effective", "lambda_equilibrium")


def check_trackers(names: Collection[str]) -> None:
    """`ConfigError` for a tracker that is not installed."""
    for name in names:
        if find_spec(name) is None:
            way_out = f"pip install 'fedcore[trackers]', or metrics.trackers without {name}"
            raise ConfigError("metrics.trackers", name, "a tracker that is installed", way_out)


class TrackerSink:
    """Hands the readings of a run to one tracker, each round or step once, also when resumed.

    folder: of all trackers of the run. config: flat, stored as hyper-parameters of a new run.
    per_client_limit: clients up to which each has a curve beside min, median and max.
    """

    def __init__(
        self, name: str, folder: Path, run: str, config: Mapping[str, Any], per_client_limit: int
    ) -> None:
        self.name, self.folder, self.run, self.limit = name, folder.resolve(), run, per_client_limit
        self._config = {k: v if isinstance(v, PLAIN) else json.dumps(v) for k, v in config.items()}
        self._queue = queue.Queue[tuple[str, int, Readings] | None](WAITING)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None  # to be raised by the next call
        self._deadline: float | None = None  # of the last readings, once no more will come

    def write(self, events: Sequence[Event]) -> None:
        """Hand the readings of these events over; raises what the thread met since then."""
        for item in readings(events, self.limit):
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self._put(item)
        self._raise()

    def ending(self, deadline: float) -> None:
        """No more events will come; `close` waits until then at most (`time.monotonic`)."""
        self._deadline = deadline
        if self._thread is not None:
            self._put(None)

    def close(self) -> None:
        """Wait for what is handed over, up to the deadline; `PATIENCE` seconds if none was told."""
        if self._deadline is None:
            self.ending(time.monotonic() + PATIENCE)
        assert self._deadline is not None
        if self._thread is not None:
            self._thread.join(max(0.0, self._deadline - time.monotonic()))
            if self._thread.is_alive():
                raise TimeoutError(f"{self.name} did not take its last readings in time")
        self._raise()

    def _put(self, item: tuple[str, int, Readings] | None) -> None:
        while True:
            try:
                return self._queue.put_nowait(item)
            except queue.Full:
                self._error = TimeoutError(f"{self.name} is too slow: its oldest readings are lost")
                with contextlib.suppress(queue.Empty):  # the thread was faster
                    self._queue.get_nowait()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(f"{self.name}: {error}") from error

    def _work(self) -> None:
        """The thread: open, log, close. What cannot be opened is not tried again."""
        opened: Opened | None = None
        try:
            kept = Kept(self.folder / f"{self.name}.json")
            with turn(self.name, DEFAULTS.get(self.name, {})):
                opened = self._open(kept)
        except Exception as error:
            self._error = error
        while (item := self._queue.get()) is not None:
            if opened is not None:
                self._attempt(opened, partial(self._log, opened.tracker, kept, *item))
        if opened is not None:
            self._attempt(opened, opened.tracker.finish)

    def _attempt(self, opened: Opened, act: Callable[[], None]) -> None:
        try:
            with turn(self.name):
                opened.before()
                act()
        except Exception as error:
            self._error = error

    def _open(self, kept: Kept) -> Opened:
        """The tracker, started; a new run of it gets the configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        opened = TRACKERS[self.name](self.folder, self.run, kept)
        opened.before()
        tracker = opened.tracker
        tracker.main_process_only = False  # else it asks accelerate which process this is
        tracker.start()
        if self.name == "mlflow":
            kept.id = tracker.tracker.info.run_id
        if kept.is_new:
            opened.configure(self._config)
            kept.save()
        return opened

    def _log(self, tracker: Any, kept: Kept, kind: str, step: int, values: Readings) -> None:
        if step > kept.last.get(kind, -1):
            tracker.log(values, step=step)
            kept.last[kind] = step
            kept.save()


def readings(events: Sequence[Event], per_client_limit: int) -> Iterator[tuple[str, int, Readings]]:
    """Kind, round or step, and its numbers, for what is a reading among these events.

    A round has its clients' as well. What is not known is left out.
    """
    clients = [e for e in events if isinstance(e, ClientEvent)]
    lm_clients = [e for e in events if isinstance(e, LMClientEvent)]
    for event in events:
        if isinstance(event, RoundEvent):
            of_clients = over_clients(clients, (*OF_CLIENTS, "gradient_norm"), per_client_limit)
            yield event.kind, event.round + 1, known(event) | of_clients
        elif isinstance(event, LMStepEvent):
            yield event.kind, event.step, known(event)
        elif isinstance(event, LMEvalEvent):
            yield event.kind, event.step, {f"held_out/{k}": v for k, v in known(event).items()}
    if lm_clients:
        values = over_clients(lm_clients, ("loss", "drift"), per_client_limit, "client_")
        yield lm_clients[0].kind, lm_clients[0].step, values


def known(event: Event) -> Readings:
    """The numbers of a line, those in an object as `name/key`."""
    found: Readings = {}
    for name, value in event.record().items():
        inner = value if isinstance(value, dict) else {"": value}
        for key, number in inner.items():
            if name not in PLACES and isinstance(number, int | float) and math.isfinite(number):
                found[f"{name}/{key}" if key else name] = float(number)
    return found


def over_clients(
    clients: Sequence[ClientEvent] | Sequence[LMClientEvent],
    names: Sequence[str],
    limit: int,
    prefix: str = "",
) -> Readings:
    """Min, median and max of each field; and each client's where there are few."""
    found: Readings = {}
    for name in names:
        values = {c.client: float(getattr(c, name)) for c in clients}
        values = {client: value for client, value in values.items() if math.isfinite(value)}
        if not values:
            continue
        spread = np.quantile([*values.values()], [0, 0.5, 1]).tolist()
        shown = dict(zip(("min", "median", "max"), spread, strict=True))
        if len(clients) <= limit:
            shown |= {f"client_{client}": value for client, value in values.items()}
        found |= {f"{prefix}{name}/{key}": value for key, value in shown.items()}
    return found
