"""How each tracker is opened for one run of a process that may do several, and leaves no trace.

mlflow and wandb keep addresses and switches in the process's environment: a later run would
take them for the user's own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

DEFAULTS: dict[str, dict[str, str]] = {
    "wandb": {"WANDB_ERROR_REPORTING": "false"},
    # mlflow-skinny has no database
    "mlflow": {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"},
}
"""Of the environment while a tracker is opened, unless the user says otherwise."""

_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@contextlib.contextmanager
def turn(name: str, defaults: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Alone with this tracker in this process; its environment variables are as before afterwards.

    An earlier run's thread may still be at work with it. Other trackers are not waited for.
    """
    with _TURNS[name]:
        before = _environment(name)
        try:
            for key, value in defaults.items():
                os.environ.setdefault(key, value)
            yield
        finally:
            now = _environment(name)
            for key in now.keys() - before.keys():
                del os.environ[key]
            os.environ.update({k: v for k, v in before.items() if now.get(k) != v})


def _environment(name: str) -> dict[str, str]:
    """The variables of a tracker; no other ones are looked up, which other threads may change."""
    prefixes = (f"{name.upper()}_", f"_{name.upper()}_")
    return {key: os.environ[key] for key in os.environ if key.startswith(prefixes)}


class Kept:
    """What is kept for a resumption: the tracker's name for the run, the last step of each kind."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_new = path, not path.is_file()
        kept = {} if self.is_new else json.loads(path.read_text(encoding="utf-8"))
        self.id: str | None = kept.get("id")
        self.last: dict[str, int] = kept.get("last", {})

    def save(self) -> None:
        """Write it to its file, which is replaced as a whole."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"id": self.id, "last": self.last}), encoding="utf-8")
        part.replace(self.path)


@dataclass(frozen=True)
class Opened:
    """A tracker of accelerate's. before: to be called before each thing that it does."""

    tracker: Any
    before: Callable[[], object] = lambda: None

    def configure(self, values: Mapping[str, Any]) -> None:
        """Store the hyper-parameters of a new run."""
        self.tracker.store_init_configuration(values)


class OpenedWandb(Opened):
    """accelerate stores the configuration in the process's foremost run, which may be another."""

    def configure(self, values: Mapping[str, Any]) -> None:
        """Store the hyper-parameters of a new run."""
        self.tracker.run.config.update(values, allow_val_change=True)


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


def _tensorboard(folder: Path, run: str, kept: Kept) -> Opened:
    return Opened(_tracking().TensorBoardTracker("tensorboard", logging_dir=folder))


def _wandb(folder: Path, run: str, kept: Kept) -> Opened:
    """Offline unless WANDB_MODE says otherwise; `wandb sync` sends the parts of a resumed run."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    kept.id = os.environ.get("WANDB_RUN_ID", kept.id or uuid.uuid4().hex[:8])
    tracker = _tracking().WandBTracker(
        os.environ.get("WANDB_PROJECT", "fedcore"),
        id=kept.id,
        name=os.environ.get("WANDB_NAME", run),
        dir=os.environ.get("WANDB_DIR", str(folder)),
        mode=mode,
        resume=None if mode == "offline" else "allow",
        reinit="create_new",  # not the run of this process that is not over yet
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
    )
    return OpenedWandb(tracker)


def _mlflow(folder: Path, run: str, kept: Kept) -> Opened:
    """A folder of files unless MLFLOW_TRACKING_URI says otherwise.

    The address is the process's: it is set before each act, since runs may follow one another.
    """
    import mlflow

    address = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlflow").as_uri()
    tracker = _tracking().MLflowTracker("fedcore", run_id=kept.id, run_name=run)
    return Opened(tracker, partial(mlflow.set_tracking_uri, address))


TRACKERS: dict[str, Callable[[Path, str, Kept], Opened]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
