"""The run directory: what it holds, and whether a run in it goes on, is over, or starts anew."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from data_shards.names import trouble_with
from fedcore import extensions
from fedcore.checkpoint import remove_halves, write_atomically
from fedcore.checkpoint_writer import Checkpoints, Unit
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, StorageError
from fedcore.files import read_json
from launcher.summary_shape import is_summary
from launcher.world import World

LIST = "suite.json"  # in the folder of a list of experiments, beside its runs
PACKAGES = ("torch", "torchvision", "numpy", "pydantic", "webdataset", "safetensors")


@dataclass(frozen=True)
class RunDir:
    """`runs/<name>/`; every file in it that fedcore writes is named here."""

    path: Path

    @property
    def metrics(self) -> Path:
        """One JSON object a line, append-only."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """`round_00007/` and so on, and the pointer `latest`."""
        return self.path / "checkpoints"

    def checkpoints_of(self, config: RunConfig, world: World, unit: Unit) -> Checkpoints:
        """What writes them, as a configuration says. Collective."""
        settings = config.checkpoint
        world.pauses.begin(settings.minutes)
        return Checkpoints(
            self.checkpoints,
            world.comm,
            settings.keep,
            unit,
            keep_best=settings.keep_best,
            asynchronous=settings.asynchronous,
        )

    @property
    def targets(self) -> Path:
        """The addresses that Prometheus is to scrape (file_sd)."""
        return self.path / "prometheus_targets.json"

    @property
    def trackers(self) -> Path:
        """What TensorBoard, wandb and MLflow keep, if they are asked for."""
        return self.path / "trackers"

    def extensions(self, config: RunConfig) -> list[Path]:
        """The run's copies of the user's files, in their order."""
        return [self.path / "extensions" / file.name for file in config.extensions]

    def write_clients(
        self,
        classes: int,
        label_counts: Sequence[Sequence[int]],
        class_names: Sequence[str] | None = None,
    ) -> None:
        """Store how many samples of each class each client holds, once a run begins. [N][C]."""
        counts = [list(row) for row in label_counts]
        facts = {"classes": classes, "class_names": class_names, "label_counts": counts}
        with storage(self.path):
            write_atomically(self.path / "clients.json", json.dumps(facts) + "\n")

    def read_clients(self) -> list[list[int]] | None:
        """The label counts of every client [N][C]; None in older runs and other kinds of run."""
        try:
            rows = read_json(self.path / "clients.json")["label_counts"]
            return rows if all(_are_counts(row) for row in rows) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read_class_names(self, classes: int) -> list[str] | None:
        """Names of so many classes; None if the run does not say any."""
        try:
            names = read_json(self.path / "clients.json")["class_names"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        are_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return names if are_texts and trouble_with(names, classes) is None else None

    @property
    def label(self) -> str:
        """What the run is called in Prometheus: its place below `runs/`, else its name.

        A run of a list has the list's name before its own.
        """
        path = self.path.resolve()
        names = [parent.name for parent in path.parents]
        depth = names.index("runs") if "runs" in names else 0
        if not depth and (path.parent / LIST).is_file():
            depth = 1
        return "/".join(path.parts[-1 - depth :])

    def read_summary(self) -> dict[str, Any] | None:
        """What the last run in this directory said at its end, if it ended."""
        try:
            summary = read_json(self.path / "summary.json")
        except (OSError, ValueError):
            return None
        return summary if is_summary(summary) else None

    @property
    def is_ours(self) -> bool:
        """Whether a run has been here: only then may it be set aside."""
        marks = ("config.yaml", "summary.json", "checkpoints", "metrics.jsonl")
        return any((self.path / mark).exists() for mark in marks)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing is here that a summary could be mistaken to belong to."""
        return not self.path.exists() or (self.path.is_dir() and not self.is_ours)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json as a whole; `StorageError` if it cannot be written."""
        with storage(self.path):
            make_private(self.path)
            write_atomically(self.path / "summary.json", json.dumps(summary, indent=1) + "\n")

    def prepare(self, config: RunConfig, world: World) -> None:
        """Make the directory and store the configuration and the environment with the run."""
        with storage(self.path):
            make_private(self.path)
            _HELD[self.path] = alone_in(self.path)  # until `release`, or this process ends
            (self.path / "summary.json").unlink(missing_ok=True)
            remove_halves(self.path)
            write_atomically(self.path / "config.yaml", config.dump())
            self._keep_extensions(config)
            facts = json.dumps(environment(world), indent=1) + "\n"
            write_atomically(self.path / "environment.json", facts)

    def _keep_extensions(self, config: RunConfig) -> None:
        """A copy of each text that the run's numbers came from; it may change where it lies."""
        kept = zip(config.extensions, self.extensions(config), strict=True)
        for file, copy in kept:
            make_private(copy.parent)
            copy.write_bytes(extensions.text(file))

    def release(self) -> None:
        """Let other jobs into the directory: the run is over, and this process goes on."""
        lock = _HELD.pop(self.path, None)
        if lock is not None:
            lock.release()


def _are_counts(row: Any) -> bool:
    """Whether this is a list of counts, as one client has them."""
    return isinstance(row, list) and all(type(n) is int and 0 <= n < 2**53 for n in row)


_HELD: dict[Path, FileLock] = {}  # a lock is released when its object is gone


def alone_in(path: Path) -> FileLock:
    """The lock that keeps other jobs out of a run directory; `ConfigError` if one is in there."""
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        busy = "a directory that no running job writes to"
        raise ConfigError("--run-dir", str(path), busy, "another --run-dir") from None
    return lock


def make_private(folder: Path) -> None:
    """Make a folder that only its owner enters; one that is there keeps its mode."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def storage(path: Path, way_out: str = "another --run-dir") -> Iterator[None]:
    """OSError inside becomes a `StorageError` that names the directory and the way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(str(path), reason, f"{way_out}, or freeing space") from error


def environment(world: World) -> dict[str, Any]:
    """Versions, commit, world size and devices of this run."""
    cuda = torch.cuda.is_available()
    return {
        "fedcore": metadata.version("fedcore"),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "commit": _commit(),
        "command": sys.argv,
        "world_size": world.place.size,
        "ranks_per_node": world.place.local_size,
        "node": world.node,
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "devices": torch.cuda.device_count() if cuda else os.cpu_count(),
    }


def _commit() -> str | None:
    """The commit of the code, with a `+` if the tree had changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        run = [
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return run[0].stdout.strip() + ("+" if run[1].stdout.strip() else "")
