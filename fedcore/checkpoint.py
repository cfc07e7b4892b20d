"""Whole-run checkpoints: a directory that is complete or absent, in safetensors and JSON.

Rank 0 writes what all ranks share, and each rank its own clients; client ids in the index make a
checkpoint readable on any number of ranks. The directory is written under a temporary name and
renamed when every rank has finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedcore.checkpoint_index import check_index, sealed
from fedcore.clients.state import ClientState
from fedcore.errors import ConfigError, ShardError, StorageError
from fedcore.files import inside, read_json
from fedcore.server.comm import Comm, together

FORMAT = 2
DIGITS = {"round": 5, "step": 8}
GROUPS = ("params", "buffers", "memory", "kept")


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    with part.open() as handle:
        os.fsync(handle.fileno())
    part.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _entry(file: Path) -> dict[str, Any]:
    return {"file": file.name, "sha256": _sha256(file)}


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def flatten_state(state: ClientState) -> dict[str, Tensor]:
    """A state's tensors by name, each [K, ...], on the CPU."""
    flat = {"log_var": state.log_var, "steps": state.steps}
    for group in GROUPS:
        flat |= {f"{group}/{k}": v for k, v in getattr(state, group).items()}
    return {k: v.detach().cpu().contiguous() for k, v in flat.items()}


Tensors = Mapping[str, Tensor]
Unit = Literal["round", "step"]


class Checkpoints:
    """The checkpoints of one run directory, numbered by rounds or by steps."""

    def __init__(self, folder: Path, comm: Comm, keep: int, unit: Unit = "round") -> None:
        self.folder, self.comm, self.keep, self.unit = folder, comm, keep, unit

    def name(self, number: int) -> str:
        """The directory's name; names sort as numbers do."""
        return f"{self.unit}_{number:0{DIGITS[self.unit]}d}"

    def save(
        self,
        number: int,
        shared: Mapping[str, Tensors],
        facts: dict[str, Any],
        clients: Sequence[int] = (),
        own: Tensors | None = None,
    ) -> Path:
        """Write the state before round (or step) `number`; collective. Returns the new directory.

        shared: tensors by name for each file of rank 0's. facts: JSON values to find again.
        own: this rank's clients' tensors, each [K, ...], in the order of `clients`.
        Raises `StorageError` on every rank when any of them cannot write; older checkpoints stay.
        """
        part, final = self.folder / f".{self.name(number)}.part", self.folder / self.name(number)
        with together(self.comm):
            if self.comm.rank == 0:
                self._guard(part, lambda: _empty(part))
        file = part / f"clients-{self.comm.rank:05d}.safetensors"
        mine: list[dict[str, Any]] = []
        try:
            with together(self.comm):
                if own is not None:
                    self._guard(file, lambda: save_file(dict(own), file))
                    mine.append(_entry(file) | {"clients": list(clients)})
            entries = [e for part_of in self.comm.gather_json(mine) for e in part_of]
            facts = facts | {self.unit: number}
            with together(self.comm):
                if self.comm.rank == 0:
                    self._guard(final, lambda: self._publish(part, final, entries, shared, facts))
        except StorageError:
            if self.comm.rank == 0:
                shutil.rmtree(part, ignore_errors=True)
            raise
        return final

    def _guard(self, path: Path, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, SafetensorError) as error:
            raise StorageError(
                str(path), str(error), "freeing space, or another --run-dir"
            ) from error

    def _publish(
        self,
        part: Path,
        final: Path,
        clients: list[dict[str, Any]],
        shared: Mapping[str, Tensors],
        facts: dict[str, Any],
    ) -> None:
        entries = {}
        for stem, tensors in shared.items():
            file = part / f"{stem}.safetensors"
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, file)
            entries[stem] = _entry(file)
        index = {"format": FORMAT, "shared": entries, "clients": clients, "facts": facts}
        write_atomically(part / "index.json", json.dumps(sealed(index), indent=1))
        for item in part.iterdir():  # on disk before the name is
            with item.open("rb") as handle:
                os.fsync(handle.fileno())
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        write_atomically(self.folder / "latest", final.name)
        complete = sorted(p for p in self.folder.glob(f"{self.unit}_*") if p.is_dir())
        for old in complete[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)


def candidates(folder: Path) -> list[Path]:
    """Complete checkpoints, best first: what `latest` points at, then the others, newest first."""
    pointer = folder / "latest"
    named = pointer.read_text(errors="replace").strip() if pointer.is_file() else ""
    others = sorted((p for unit in DIGITS for p in folder.glob(f"{unit}_*")), reverse=True)
    ordered = sorted(others, key=lambda path: path.name != named)  # stable: newest first
    return [path for path in ordered if (path / "index.json").is_file()]


class Checkpoint:
    """One complete checkpoint directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = read_json(folder / "index.json")
            version = index["format"]
            if version == FORMAT:
                check_index(folder, index)
                self.facts: dict[str, Any] = index["facts"]
                self._shared: dict[str, dict[str, Any]] = index["shared"]
                self._files: list[dict[str, Any]] = index["clients"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"damaged index.json ({error!r})"
            raise ShardError(str(folder), problem, "an older checkpoint") from None
        if version != FORMAT:
            want = f"checkpoint format {FORMAT}"
            raise ConfigError("--resume", version, want, "--resume never")

    @property
    def clients(self) -> list[int]:
        """Ids of the clients it holds, in order."""
        return sorted(client for entry in self._files for client in entry["clients"])

    @property
    def files(self) -> list[dict[str, Any]]:
        """Every file: `file`, `sha256` and, of those of clients, `clients`."""
        return [*self._shared.values(), *self._files]

    def verify(self) -> None:
        """Hash every file; `ShardError` naming the first that is missing or damaged."""
        for entry in [*self._shared.values(), *self._files]:
            self._checked(entry)

    def _checked(self, entry: dict[str, Any]) -> Path:
        path = inside(self.folder, entry["file"])
        if not path.is_file() or _sha256(path) != entry["sha256"]:
            problem = "missing" if not path.is_file() else "does not match its sha256"
            older = "an older checkpoint: --resume DIR"
            raise ShardError(str(path), problem, older)
        return path

    def shared(self, stem: str) -> dict[str, Tensor]:
        """The tensors of one of rank 0's files, on the CPU."""
        if stem not in self._shared:
            problem = f"has no {stem}.safetensors"
            raise ShardError(str(self.folder), problem, "a checkpoint of the same kind of run")
        path = self._checked(self._shared[stem])
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:  # removed by the run it belongs to
            raise ShardError(str(path), str(error), "a newer checkpoint") from None

    def own(self, clients: Sequence[int]) -> dict[str, Tensor]:
        """These clients' tensors, each [K, ...] in their order, whichever rank wrote them."""
        found: dict[str, Tensor] = {}
        with self._fitting():
            for rows, name, values in self._rows(clients):
                if name not in found:
                    found[name] = values.new_zeros(len(clients), *values.shape[1:])
                found[name][rows] = values
        return found

    def load_into(self, state: ClientState, clients: Sequence[int]) -> None:
        """Fill `state` with these clients, whichever rank wrote them."""
        with self._fitting():
            for rows, name, values in self._rows(clients):
                group, _, key = name.partition("/")
                if group == "memory" and not state.memory:
                    state.forget_momentum()
                target = getattr(state, group)[key] if key else getattr(state, group)
                target[rows.to(target.device)] = values.to(target)

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

    def _rows(self, clients: Sequence[int]) -> Iterator[tuple[Tensor, str, Tensor]]:
        """Rows of `clients`, name and values of these rows, of each tensor of each file."""
        rows = {client: row for row, client in enumerate(clients)}
        for entry in self._files:
            wanted = [(at, c) for at, c in enumerate(entry["clients"]) if c in rows]
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
