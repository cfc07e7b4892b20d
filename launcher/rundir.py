"""The run directory: what it holds, and whether a run in it goes on, is over, or starts anew."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedcore.checkpoint import Checkpoint, newest, write_atomically
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, StorageError
from fedcore.server.comm import together
from launcher.cli import Request
from launcher.world import World

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

    @property
    def targets(self) -> Path:
        """Prometheus file_sd."""
        return self.path / "prometheus_targets.json"

    def read_summary(self) -> dict[str, Any] | None:
        """What the last run in this directory said at its end, if it ended."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return None
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json as a whole; `StorageError` if it cannot be written."""
        with storage(self.path):
            write_atomically(self.path / "summary.json", json.dumps(summary, indent=1) + "\n")

    def prepare(self, config: RunConfig, world: World) -> None:
        """Make the directory and store the configuration and the environment with the run."""
        with storage(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            _HELD.append(alone_in(self.path))  # for as long as this process lives
            (self.path / "summary.json").unlink(missing_ok=True)
            write_atomically(self.path / "config.yaml", config.dump())
            facts = json.dumps(environment(world), indent=1) + "\n"
            write_atomically(self.path / "environment.json", facts)


_HELD: list[FileLock] = []  # a lock is released when its object is gone


def alone_in(path: Path) -> FileLock:
    """The lock that keeps other jobs out of a run directory; `ConfigError` if one is in there."""
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        busy = "a directory that no running job writes to"
        raise ConfigError("--run-dir", str(path), busy, "another --run-dir") from None
    return lock


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """OSError inside becomes a `StorageError` that names the directory and the way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(str(path), reason, "another --run-dir, or freeing space") from error


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


@dataclass(frozen=True)
class Entry:
    """How to enter a run directory; the same on every rank."""

    finished: dict[str, Any] | None = None  # summary of a completed run: nothing to do
    checkpoint: Checkpoint | None = None  # go on from here


def enter(request: Request, run: RunDir, world: World) -> Entry:
    """Decide on rank 0, tell all, and make the directory ready.

    Raises `ConfigError` on every rank if the directory holds a run of another configuration,
    listing the changed keys.
    """
    comm = world.comm
    found: dict[str, Any] = {}
    with together(comm):
        if comm.rank == 0:
            found = _look(request, run, world)
    found = comm.gather_json(found)[0]
    if found["finished"]:
        return Entry(finished=found["finished"])
    folder = found["checkpoint"]
    if not folder:
        return Entry()
    with together(comm):
        checkpoint = Checkpoint(Path(folder))
        _same_config(checkpoint.facts["config"], request.config, folder)
    return Entry(checkpoint=checkpoint)


def _look(request: Request, run: RunDir, world: World) -> dict[str, Any]:
    """What rank 0 finds: a finished run, a checkpoint folder, or neither."""
    if request.resume == "never":
        # a restart of this very run by torchrun must not set its own work aside
        if world.place.attempt == 0:
            _set_aside(run.path)
    elif request.resume != "auto":
        return {"finished": None, "checkpoint": str(_checkpoint_in(Path(request.resume)))}
    summary = run.read_summary()
    done = summary if summary and summary["status"] == "completed" else None
    if run.path.exists() and (run.path / "config.yaml").is_file():
        stored = RunConfig.load(run.path / "config.yaml")
        _same_config(stored.decisive(), request.config, str(run.path))
    found = newest(run.checkpoints)
    return {"finished": done, "checkpoint": str(found) if found else None}


def _checkpoint_in(folder: Path) -> Path:
    """The checkpoint that DIR of `--resume DIR` is or, as a run directory, holds as its latest."""
    if (folder / "index.json").is_file():
        return folder
    found = newest(folder / "checkpoints")
    if found is None:
        want = "a checkpoint or run directory"
        raise ConfigError("--resume", str(folder), want, "--resume never")
    return found


def _set_aside(path: Path) -> None:
    """Rename an existing run directory to the first free `<name>.1`, `.2`, ...: nothing is lost."""
    if not path.exists() or not any(path.iterdir()):
        return
    with storage(path):
        alone_in(path).release()  # not the directory of a job that runs
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    shutil.move(path, aside)


def _same_config(stored: dict[str, Any], config: RunConfig, where: str) -> None:
    """`ConfigError` listing the keys in which a stored configuration differs from this one."""
    now = config.decisive()
    keys = sorted(k for k in stored.keys() | now.keys() if stored.get(k) != now.get(k))
    if keys:
        changed = ", ".join(f"{k}: {stored.get(k)!r} -> {now.get(k)!r}" for k in keys)
        raise ConfigError(
            "--resume",
            changed,
            f"the configuration of the run in {where}",
            "another --run-dir, or --resume never",
        )
