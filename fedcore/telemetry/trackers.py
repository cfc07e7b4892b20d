"""TensorBoard, Weights & Biases, MLflow: the numbers of metrics.jsonl, by accelerate's trackers.

A thread of its own writes, so that a slow disk or network holds nobody up. Everything lies in one
folder, and nothing goes to a network unless the tracker's own environment variables ask for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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

Readings = dict[str, float]
WAITING = 1000  # readings that wait for a slow tracker, at most; the oldest are given up
PATIENCE = 20.0  # seconds for a tracker to take its last readings at the end of the run
PLACES = ("time", "round", "rounds", "step", "steps", "progress")  # fields that are no reading
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

    def write(self, events: Sequence[Event]) -> None:
        """Hand the readings of these events over; raises what the thread met since then."""
        for item in readings(events, self.limit):
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self._put(item)
        self._raise()

    def close(self) -> None:
        """Wait for what is handed over, up to `PATIENCE` seconds."""
        if self._thread is not None:
            self._put(None)
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                raise TimeoutError(f"{self.name} took no more readings for {PATIENCE:g} s")
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
        tracker: Any = None
        try:
            kept = Kept(self.folder / f"{self.name}.json")
            tracker = self._open(kept)
        except Exception as error:
            self._error = error
        while (item := self._queue.get()) is not None:
            if tracker is not None:
                self._attempt(lambda item=item: self._log(tracker, kept, *item))  # type: ignore[misc]
        if tracker is not None:
            self._attempt(tracker.finish)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._error = error

    def _open(self, kept: Kept) -> Any:
        """The tracker, started; a new run of it gets the configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tracker = TRACKERS[self.name](self, kept)
        tracker.main_process_only = False  # else it asks accelerate which process this is
        tracker.start()
        if self.name == "mlflow":
            kept.id = tracker.tracker.info.run_id
        if kept.is_new:
            tracker.store_init_configuration(self._config)
            kept.save()
        return tracker

    def _log(self, tracker: Any, kept: Kept, kind: str, step: int, values: Readings) -> None:
        if step > kept.last.get(kind, -1):
            tracker.log(values, step=step)
            kept.last[kind] = step
            kept.save()


PLAIN = (bool, int, float, str)


class Kept:
    """What is kept for a resumption: the tracker's name for the run, the last step of each kind."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_new = path, not path.is_file()
        kept = {} if self.is_new else json.loads(path.read_text(encoding="utf-8"))
        self.id: str | None = kept.get("id")
        self.last: dict[str, int] = kept.get("last", {})

    def save(self) -> None:
        """Replace the file."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"id": self.id, "last": self.last}), encoding="utf-8")
        part.replace(self.path)


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


def _tracking() -> Any:
    """accelerate.tracking, which must not ask accelerate's state.

    That state would join the ranks and choose a device by itself; its logger raises without it.
    """
    from accelerate import tracking

    tracking.logger = _Log(logging.getLogger("accelerate.tracking"), {})
    return tracking


class _Log(logging.LoggerAdapter[logging.Logger]):
    """The standard library's logger, with the one more method that trackers call."""

    def warning_once(self, words: str) -> None:
        """A warning; trackers of numbers have no cause for many."""
        self.warning(words)


def _tensorboard(sink: TrackerSink, kept: Kept) -> Any:
    return _tracking().TensorBoardTracker("tensorboard", logging_dir=sink.folder)


def _wandb(sink: TrackerSink, kept: Kept) -> Any:
    """Offline unless WANDB_MODE says otherwise; `wandb sync` sends the parts of a resumed run."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    kept.id = os.environ.get("WANDB_RUN_ID", kept.id or uuid.uuid4().hex[:8])
    return _tracking().WandBTracker(
        os.environ.get("WANDB_PROJECT", "fedcore"),
        id=kept.id,
        name=os.environ.get("WANDB_NAME", sink.run),
        dir=os.environ.get("WANDB_DIR", str(sink.folder)),
        mode=mode,
        resume=None if mode == "offline" else "allow",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
    )


def _mlflow(sink: TrackerSink, kept: Kept) -> Any:
    """A folder of files unless MLFLOW_TRACKING_URI says otherwise."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
    import mlflow

    here = (sink.folder / "mlflow").as_uri()
    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or here)
    return _tracking().MLflowTracker("fedcore", run_id=kept.id, run_name=sink.run)


TRACKERS: dict[str, Callable[[TrackerSink, Kept], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
