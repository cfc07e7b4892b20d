"""Whole-run checkpoints, written: each rank its clients, and its part of what belongs to all.

The directory is written under a temporary name and renamed when every rank has finished. Training
waits for a copy on the device only: a thread writes it, and the ranks' threads meet in a group of
their own.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedcore.checkpoint import (
    DIGITS,
    FORMAT,
    Checkpoint,
    pointed_at,
    remove_halves,
    to_disk,
    write_atomically,
)
from fedcore.checkpoint_index import sealed
from fedcore.errors import FedError, StorageError
from fedcore.files import sha256_of
from fedcore.server.comm import Comm, together


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


UMASK = os.umask(0)
os.umask(UMASK)  # there is no other way to look at it

Tensors = Mapping[str, Tensor]
Unit = Literal["round", "step"]


@dataclass(frozen=True)
class Rows:
    """Tensors of some clients, each [K, ...] in their order."""

    clients: Sequence[int]
    tensors: Tensors


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What goes into a checkpoint, on this rank."""

    shared: Mapping[str, Tensors]  # by kind of file; this rank's part of what belongs to all
    facts: dict[str, Any]  # JSON values to find again; rank 0's count
    own: Mapping[str, Rows] = field(default_factory=dict)  # by kind of file; this rank's clients
    score: float | None = None  # the higher the better; of the best one, which is kept
    fresh: bool = False  # nobody else will change these tensors

    def copied(self) -> Contents:
        """The same with tensors of its own, where they are; on the CPU if there is no room."""
        facts = json.loads(json.dumps(self.facts))
        if self.fresh:
            return replace(self, facts=facts)
        shared = {k: _copies(v) for k, v in self.shared.items()}
        own = {k: Rows(list(v.clients), _copies(v.tensors)) for k, v in self.own.items()}
        return replace(self, facts=facts, shared=shared, own=own)


def _copies(tensors: Tensors) -> Tensors:
    try:
        return {k: v.detach().clone() for k, v in tensors.items()}
    except torch.OutOfMemoryError:
        return {k: v.detach().to("cpu", copy=True) for k, v in tensors.items()}


def _home(tensors: Tensors) -> dict[str, Tensor]:
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}


@dataclass(frozen=True)
class Written:
    """How writing a checkpoint ended; the same on every rank."""

    name: str
    time: float  # Unix
    error: FedError | None = None


class Checkpoints:
    """The checkpoints of one run directory, numbered by rounds or by steps."""

    def __init__(
        self,
        folder: Path,
        comm: Comm,
        keep: int,
        unit: Unit = "round",
        *,
        keep_best: bool = False,
        asynchronous: bool = False,
    ) -> None:
        self.folder, self.keep, self.unit, self.keep_best = folder, keep, unit, keep_best
        self.asynchronous, self.device = asynchronous, comm.device
        self.comm = comm.beside() if asynchronous else comm
        self._thread: threading.Thread | None = None
        self._ended: Written | None = None

    def name(self, number: int, part: int = 0) -> str:
        """The directory's name; names sort as numbers do. part: within the round, from 1."""
        return f"{self.unit}_{number:0{DIGITS[self.unit]}d}" + (f".{part:04d}" if part else "")

    def save(self, contents: Contents, number: int, part: int = 0) -> Path:
        """Write the state before round (or step) `number`; collective. The new directory.

        If asynchronous, this returns as soon as the tensors are copied: `settle` tells the end.
        """
        name = self.name(number, part)
        if not self.asynchronous:
            self._ended = self._write(name, contents)
            return self.folder / name
        assert self._thread is None, "settle comes first"
        mine, ready = contents.copied(), _marker(self.device)

        def work() -> None:
            with ready():
                self._ended = self._write(name, mine)

        self._thread = threading.Thread(target=work, name=f"checkpoint {name}", daemon=True)
        self._thread.start()
        return self.folder / name

    def settle(self, patience: float | None = None) -> Written | None:
        """How the last `save` ended, once; waits for it. None: there was none, or `patience`
        seconds were not enough."""
        if self._thread is not None:
            self._thread.join(patience)
            if self._thread.is_alive():
                return None
        self._thread, ended, self._ended = None, self._ended, None
        return ended

    def close(self) -> None:
        """No more will be written: let go of the threads' group. Collective."""
        if self.asynchronous:
            self.comm.close()

    def _write(self, name: str, contents: Contents) -> Written:
        try:
            self._write_all(self.folder / f".{name}.part", self.folder / name, contents)
        except FedError as error:
            return Written(name, time.time(), error)
        except Exception as error:  # in a thread: it must not get lost
            reason = f"{type(error).__name__}: {error}"
            return Written(name, time.time(), StorageError(name, reason, "another --run-dir"))
        return Written(name, time.time())

    def _write_all(self, part: Path, final: Path, contents: Contents) -> None:
        """Collective. Raises `StorageError` on every rank when any of them cannot write."""
        with together(self.comm):
            if self.comm.rank == 0:
                _guard(part, partial(_empty, part))
        try:
            mine: list[dict[str, Any]] = []
            with together(self.comm):
                for kind, tensors, clients in _files(contents):
                    file = part / f"{kind}-{self.comm.rank:05d}.safetensors"
                    _guard(file, partial(_store, file, tensors))
                    mine.append(_entry(file) | {"kind": kind} | clients)
            files = [entry for of_rank in self.comm.gather_json(mine) for entry in of_rank]
            with together(self.comm):
                if self.comm.rank == 0:
                    _guard(final, lambda: self._publish(part, final, files, contents))
        except StorageError:
            if self.comm.rank == 0:
                shutil.rmtree(part, ignore_errors=True)
            raise

    def _publish(
        self, part: Path, final: Path, files: list[dict[str, Any]], contents: Contents
    ) -> None:
        facts = contents.facts | {"score": contents.score, "saved": time.time()}
        index = {"format": FORMAT, "files": files, "facts": facts}
        write_atomically(part / "index.json", json.dumps(sealed(index), indent=1))
        to_disk(part)
        _remove(final)
        part.rename(final)
        write_atomically(self.folder / "latest", final.name)
        self._point_at_best(final.name, contents.score)
        self._forget(final.name)

    def _point_at_best(self, name: str, score: float | None) -> None:
        """Let `best` name this one if its score is higher than that of the one it names."""
        if score is None or not self.keep_best:
            return
        before = _score_of(self.folder / pointed_at(self.folder, "best"))
        if before is None or score > before:
            write_atomically(self.folder / "best", name)

    def _forget(self, newest: str) -> None:
        """Remove all but the newest `keep`, and the best; and what dead writers left.

        Later ones than the newest stay: the run went back behind them, and writes them anew.
        """
        found = sorted(p for p in self.folder.glob(f"{self.unit}_*") if p.is_dir())
        complete = [folder for folder in found if folder.name <= newest]
        best = pointed_at(self.folder, "best") if self.keep_best else ""
        for old in complete[: -self.keep]:
            if old.name != best:
                _remove(old)
        for left in self.folder.glob(f".{self.unit}_*.part"):
            shutil.rmtree(left, ignore_errors=True)
        remove_halves(self.folder)


def _remove(folder: Path) -> None:
    """Remove a checkpoint at once: a process that is killed meanwhile leaves no half of it."""
    gone = folder.with_name(f".{folder.name}.gone.part")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):  # it was not there
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _marker(device: torch.device) -> Callable[[], Any]:
    """A context for another thread, whose copies from the device wait for what is queued now."""
    if device.type != "cuda":
        return torch.no_grad
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def ready() -> Any:
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_event(done)
        return torch.cuda.stream(stream)

    return ready


def _files(contents: Contents) -> Iterator[tuple[str, Tensors, dict[str, list[int]]]]:
    """This rank's files: kind, tensors, and of which clients the rows are."""
    for kind, tensors in contents.shared.items():
        if tensors:
            yield kind, tensors, {}
    for kind, rows in contents.own.items():
        if rows.clients:
            yield kind, rows.tensors, {"clients": list(rows.clients)}


def _guard(path: Path, act: Callable[[], None]) -> None:
    try:
        act()
    except (OSError, SafetensorError) as error:
        way_out = "freeing space, or another --run-dir"
        raise StorageError(str(path), str(error), way_out) from error


def _store(file: Path, tensors: Tensors) -> None:
    save_file(_home(tensors), file)
    file.chmod(0o666 & ~UMASK)  # it comes as the owner's alone, whatever the run directory is
    to_disk(file)


def _entry(file: Path) -> dict[str, Any]:
    return {"file": file.name, "sha256": sha256_of(file)}


def _score_of(folder: Path) -> float | None:
    try:
        score = Checkpoint(folder).facts.get("score")
    except FedError:
        return None
    return float(score) if isinstance(score, int | float) else None
