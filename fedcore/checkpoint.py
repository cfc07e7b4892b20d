"""Whole-run checkpoints: a directory that is complete or absent, in safetensors and JSON.

Each rank writes its own clients; client ids in the index make a checkpoint readable on any number
of ranks. The directory is written under a temporary name and renamed when every rank has finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedcore.clients.state import ClientState
from fedcore.errors import ConfigError, ShardError, StorageError
from fedcore.server.comm import Comm, together

FORMAT = 1
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


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def flatten_state(state: ClientState) -> dict[str, Tensor]:
    """A state's tensors by name, each [K, ...], on the CPU."""
    flat = {"log_var": state.log_var, "steps": state.steps}
    for group in GROUPS:
        flat |= {f"{group}/{k}": v for k, v in getattr(state, group).items()}
    return {k: v.detach().cpu().contiguous() for k, v in flat.items()}


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, folder: Path, comm: Comm, keep: int) -> None:
        self.folder, self.comm, self.keep = folder, comm, keep

    def save(
        self,
        round: int,
        clients: Sequence[int],
        state: ClientState,
        server: dict[str, Tensor],
        facts: dict[str, Any],
    ) -> Path:
        """Write the state before round `round`; collective. Returns the new directory.

        server: tensors that are the same on every rank. facts: JSON values to find again.
        Raises `StorageError` on every rank when any of them cannot write; older checkpoints stay.
        """
        name = f"round_{round:05d}"
        part, final = self.folder / f".{name}.part", self.folder / name
        with together(self.comm):
            if self.comm.rank == 0:
                self._guard(part, lambda: _empty(part))
        file = part / f"clients-{self.comm.rank:05d}.safetensors"
        try:
            with together(self.comm):
                self._guard(file, lambda: save_file(flatten_state(state), file))
            entries = self.comm.gather_json(
                {"file": file.name, "clients": list(clients), "sha256": _sha256(file)}
            )
            with together(self.comm):
                if self.comm.rank == 0:
                    self._guard(
                        final,
                        lambda: self._publish(
                            part, final, entries, server, facts | {"round": round}
                        ),
                    )
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
        entries: list[dict[str, Any]],
        server: dict[str, Tensor],
        facts: dict[str, Any],
    ) -> None:
        file = part / "server.safetensors"
        save_file({k: v.detach().cpu().contiguous() for k, v in server.items()}, file)
        index = {
            "format": FORMAT,
            "server": {"file": file.name, "sha256": _sha256(file)},
            "clients": entries,
            "facts": facts,
        }
        write_atomically(part / "index.json", json.dumps(index, indent=1))
        for item in part.iterdir():  # on disk before the name is
            with item.open("rb") as handle:
                os.fsync(handle.fileno())
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        write_atomically(self.folder / "latest", final.name)
        complete = sorted(p for p in self.folder.glob("round_*") if p.is_dir())
        for old in complete[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)


def candidates(folder: Path) -> list[Path]:
    """Complete checkpoints, best first: what `latest` points at, then the others, newest first."""
    pointer = folder / "latest"
    named = pointer.read_text(errors="replace").strip() if pointer.is_file() else ""
    others = sorted(folder.glob("round_*"), reverse=True)
    ordered = sorted(others, key=lambda path: path.name != named)  # stable: newest first
    return [path for path in ordered if (path / "index.json").is_file()]


class Checkpoint:
    """One complete checkpoint directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            version = index["format"]
            if version == FORMAT:
                self.facts: dict[str, Any] = index["facts"]
                self._server, self._files = index["server"], index["clients"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"damaged index.json ({error!r})"
            raise ShardError(str(folder), problem, "an older checkpoint") from None
        if version != FORMAT:
            want = f"checkpoint format {FORMAT}"
            raise ConfigError("--resume", version, want, "--resume never")

    def verify(self) -> None:
        """Hash every file; `ShardError` naming the first that is missing or damaged."""
        for entry in [self._server, *self._files]:
            self._checked(entry)

    def _checked(self, entry: dict[str, Any]) -> Path:
        path = self.folder / str(entry["file"])
        if not path.is_file() or _sha256(path) != entry["sha256"]:
            problem = "missing" if not path.is_file() else "does not match its sha256"
            older = "an older checkpoint: --resume DIR"
            raise ShardError(str(path), problem, older)
        return path

    def server(self) -> dict[str, Tensor]:
        """The tensors every rank holds, on the CPU."""
        return load_file(self._checked(self._server))

    def load_into(self, state: ClientState, clients: Sequence[int]) -> None:
        """Fill `state` with these clients, whichever rank wrote them."""
        rows = {client: row for row, client in enumerate(clients)}
        for entry in self._files:
            wanted = [(at, c) for at, c in enumerate(entry["clients"]) if c in rows]
            if wanted:
                self._copy(self._checked(entry), [(at, rows.pop(c)) for at, c in wanted], state)
        if rows:
            missing = f"has no client {sorted(rows)}"
            raise ShardError(str(self.folder), missing, "the configuration it was written with")

    def _copy(self, path: Path, pairs: list[tuple[int, int]], state: ClientState) -> None:
        sources = torch.tensor([at for at, _ in pairs])
        rows = torch.tensor([row for _, row in pairs])
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if any(name.startswith("memory/") for name in names) and not state.memory:
                state.forget_momentum()
            for name in names:
                group, _, key = name.partition("/")
                target = getattr(state, group)[key] if key else getattr(state, group)
                target[rows.to(target.device)] = file.get_tensor(name)[sources].to(target)
