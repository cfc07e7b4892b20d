"""Whole-run checkpoints, read: a directory that is complete or absent, in safetensors and JSON.

Client ids in the index make a checkpoint readable on any number of ranks. checkpoint_writer.py
writes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fedcore.checkpoint_index import check_index
from fedcore.clients.state import ClientState
from fedcore.errors import ConfigError, FedError, ShardError
from fedcore.files import inside, other_format, read_json, sha256_of

FORMAT = 5
DIGITS = {"round": 5, "step": 8}


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        to_disk(part)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def remove_halves(folder: Path) -> None:
    """Remove what `write_atomically` left in there when its process was killed."""
    for file in folder.glob(".*.*"):
        if file.suffix[1:].isdigit() and file.is_file():
            file.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Have the operating system write a file, or the names in a directory, out."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def pointed_at(folder: Path, pointer: str) -> str:
    """The checkpoint that the file `latest` or `best` names; empty if there is no such file."""
    try:
        named = (folder / pointer).read_text(encoding="utf-8", errors="replace").strip()
        return inside(folder, named).name
    except (OSError, FedError):
        return ""


def candidates(folder: Path) -> list[Path]:
    """Complete checkpoints, best first: what `latest` points at, then the others, newest first."""
    named = pointed_at(folder, "latest")
    others = sorted((p for unit in DIGITS for p in folder.glob(f"{unit}_*")), reverse=True)
    ordered = sorted(others, key=lambda path: path.name != named)  # stable: newest first
    return [path for path in ordered if (path / "index.json").is_file()]


class Checkpoint:
    """One complete checkpoint folder; raises `ShardError` if its index is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = read_json(folder / "index.json")
            version = index["format"]
            if version == FORMAT:
                check_index(folder, index)
                self.facts: dict[str, Any] = index["facts"]
                # each with `file`, `sha256`, `kind` and, if its rows are of clients, `clients`
                self.files: list[dict[str, Any]] = index["files"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"damaged index.json ({error!r})"
            raise ShardError(str(folder), problem, "an older checkpoint") from None
        if version != FORMAT:
            problem, reader = other_format(version, [FORMAT])
            want = f"a checkpoint that can be read: {folder / 'index.json'} {problem}"
            raise ConfigError("--resume", str(folder), want, f"{reader}, or --resume never")

    @property
    def clients(self) -> list[int]:
        """Ids of all clients it holds, in order."""
        return sorted(self.clients_in("clients"))

    def clients_in(self, kind: str) -> list[int]:
        """Ids of the clients in files of that kind, in the order of the files."""
        return [c for entry in self._of(kind) for c in entry.get("clients", [])]

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.files if entry["kind"] == kind]

    def verify(self) -> None:
        """Hash every file; `ShardError` naming the first that is missing or damaged."""
        for entry in self.files:
            self._checked(entry)

    def _checked(self, entry: dict[str, Any]) -> Path:
        path = inside(self.folder, entry["file"])
        if not path.is_file() or sha256_of(path) != entry["sha256"]:
            problem = "missing" if not path.is_file() else "does not match its sha256"
            older = "an older checkpoint: --resume DIR"
            raise ShardError(str(path), problem, older)
        return path

    def shared(self, kind: str, *, optional: bool = False) -> dict[str, Tensor]:
        """The tensors of a kind that belong to no client, on the CPU.

        optional: empty if there are none, instead of a `ShardError`.
        """
        if not optional and not self._of(kind):
            problem = f"has no {kind}-*.safetensors"
            raise ShardError(str(self.folder), problem, "a checkpoint of the same kind of run")
        found: dict[str, Tensor] = {}
        for entry in self._of(kind):
            path = self._checked(entry)
            try:
                found |= load_file(path)
            except (OSError, SafetensorError) as error:  # removed by the run it belongs to
                raise ShardError(str(path), str(error), "a newer checkpoint") from None
        return found

    def own(self, clients: Sequence[int], kind: str = "clients") -> dict[str, Tensor]:
        """These clients' tensors, each [K, ...] in their order, whichever rank wrote them."""
        found: dict[str, Tensor] = {}
        with self._fitting():
            for rows, name, values in self._rows(clients, kind):
                if name not in found:
                    found[name] = values.new_zeros(len(clients), *values.shape[1:])
                found[name][rows] = values
        return found

    def load_into(self, state: ClientState, clients: Sequence[int]) -> None:
        """Fill `state` with these clients, whichever rank wrote them."""
        with self._fitting():
            for rows, name, values in self._rows(clients, "clients"):
                state.fill(name, rows, values)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Tensors of other names or shapes, or no tensors, are a `ShardError`."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (
            SafetensorError,
            OSError,
            AttributeError,
            LookupError,
            TypeError,
            RuntimeError,
        ) as error:
            problem = f"does not fit: {' '.join(str(error).split())}"
            way_out = "a checkpoint of the same kind of run"
            raise ShardError(str(self.folder), problem, way_out) from None

    def _rows(self, clients: Sequence[int], kind: str) -> Iterator[tuple[Tensor, str, Tensor]]:
        """Rows of `clients`, name and values of these rows, of each tensor of each file."""
        rows = {client: row for row, client in enumerate(clients)}
        for entry in self._of(kind):
            wanted = [(at, c) for at, c in enumerate(entry.get("clients", [])) if c in rows]
            if not wanted:
                continue
            at = torch.tensor([at for at, _ in wanted])
            here = torch.tensor([rows.pop(c) for _, c in wanted])
            with safe_open(self._checked(entry), framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    yield here, name, file.get_tensor(name)[at]
        if rows:
            missing = f"has no client {sorted(rows)}"
            raise ShardError(str(self.folder), missing, "the configuration it was written with")
