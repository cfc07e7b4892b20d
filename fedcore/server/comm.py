"""Comm: the collectives fedcore needs. TorchComm between ranks, LocalComm for one process.

Everything that crosses is tensors or JSON: nothing is unpickled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from fedcore.errors import CollectiveError, FedError, Unexpected, from_json

Watcher = Callable[[str, int, float], None]
"""Told (operation, bytes this rank handed in, seconds) of every collective."""


class Comm(Protocol):
    """A world of `size` ranks. Every method is collective: all ranks call it in the same order.

    Each raises `CollectiveError` if a rank is lost.
    """

    rank: int
    size: int
    device: torch.device
    watcher: Watcher

    def broadcast(self, values: Tensor) -> Tensor:
        """Rank 0's `values` [...] on every rank; the shape is the same everywhere."""

    def gather(self, rows: Tensor) -> Tensor:
        """All ranks' `rows` [n, ...], in rank order: [size * n, ...]; n is the same everywhere."""

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over ranks of integers [...]: associative, so the same in any order."""

    def max(self, values: Tensor) -> Tensor:
        """Elementwise maximum over ranks of `values` [...]."""

    def gather_json(self, value: Any) -> list[Any]:
        """The JSON values of all ranks in rank order."""

    def barrier(self) -> None:
        """Return once all ranks have called it."""

    def beside(self) -> Comm:
        """A Comm of the same ranks in a process group of its own, on CPUs, for one other thread."""

    def close(self) -> None:
        """End a group that `beside` made."""


def agree(comm: Comm, error: BaseException | None) -> None:
    """If any rank met an error, raise the lowest rank's on every rank, so that nobody hangs."""
    mine = None
    if isinstance(error, FedError):
        mine = error.to_json()
    elif error is not None:
        mine = Unexpected(comm.rank, f"{type(error).__name__}: {error}").to_json()
    met = [e for e in comm.gather_json(mine) if e is not None]
    if error is not None and mine in met[:1]:
        raise error
    if met:
        raise from_json(met[0])


@contextmanager
def together(comm: Comm) -> Iterator[None]:
    """Run a block on every rank; an error on any rank is raised on all."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    agree(comm, error)


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether a library's own collective failed: gloo raises plain RuntimeErrors in a backward."""
    text = str(error)
    return isinstance(error, dist.DistError) or "gloo/transport" in text or "NCCL error" in text


@contextmanager
def foreign_collectives(operation: str, rank: int) -> Iterator[None]:
    """Inside, a collective that a library made and that failed is a `CollectiveError`."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        reason = str(error).splitlines()[0][:300]
        raise CollectiveError(operation, rank, reason) from error


# torch 2.14 renamed it, and warns about the old name on every call
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def on_any(comm: Comm, mine: bool) -> bool:
    """Whether it is so on any rank; the same answer on all. Collective."""
    said = torch.tensor([int(mine)], device=comm.device)
    return bool(comm.max(said).item())  # sync


class LocalComm:
    """One process: every collective is the identity."""

    rank, size = 0, 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.watcher: Watcher = lambda operation, size, seconds: None

    def broadcast(self, values: Tensor) -> Tensor:
        return values

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def sum(self, values: Tensor) -> Tensor:
        return values

    def max(self, values: Tensor) -> Tensor:
        return values

    def gather_json(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value))]

    def barrier(self) -> None:
        return None

    def beside(self) -> Comm:
        return LocalComm()

    def close(self) -> None:
        return None


class TorchComm:
    """A process group, the default one unless given: NCCL between CUDA devices, else gloo."""

    def __init__(
        self, device: torch.device, timeout: float = 1800.0, group: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self.timeout, self.group = timeout, group  # timeout: seconds
        self.watcher: Watcher = lambda operation, size, seconds: None

    def _run(self, operation: str, values: Tensor, call: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            call()
        except (RuntimeError, ValueError) as error:  # torch raises DistError, a RuntimeError
            reason = str(error).splitlines()[0][:300]
            raise CollectiveError(operation, self.rank, reason) from error
        self.watcher(operation, values.nbytes, time.monotonic() - began)

    def broadcast(self, values: Tensor) -> Tensor:
        values = values.to(self.device).contiguous()
        self._run("broadcast", values, lambda: dist.broadcast(values, src=0, group=self.group))
        return values

    def gather(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.device).contiguous()
        out = rows.new_empty(self.size * len(rows), *rows.shape[1:])
        self._run("gather", rows, lambda: _all_gather(out, rows, group=self.group))
        return out

    def sum(self, values: Tensor) -> Tensor:
        assert not values.is_floating_point(), "a sum of floats depends on the order of the ranks"
        values = values.to(self.device).contiguous()
        self._reduce("sum", values, dist.ReduceOp.SUM)
        return values

    def max(self, values: Tensor) -> Tensor:
        values = values.to(self.device).clone()
        self._reduce("max", values, dist.ReduceOp.MAX)
        return values

    def _reduce(self, operation: str, values: Tensor, op: dist.ReduceOp.RedOpType) -> None:
        self._run(operation, values, lambda: dist.all_reduce(values, op=op, group=self.group))

    def gather_json(self, value: Any) -> list[Any]:
        text = json.dumps(value).encode()
        longest = int(self.max(torch.tensor([len(text)])).item())
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        return [json.loads(bytes(row.tolist())) for row in self.gather(padded[None]).cpu()]

    def barrier(self) -> None:
        self.sum(torch.zeros(1, dtype=torch.int64))

    def beside(self) -> Comm:
        limit = timedelta(seconds=self.timeout)
        group: Any = dist.new_group(backend="gloo", timeout=limit)
        return TorchComm(torch.device("cpu"), self.timeout, group)

    def close(self) -> None:
        if self.group is not None:
            dist.destroy_process_group(self.group)
