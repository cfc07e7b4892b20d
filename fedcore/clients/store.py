"""Store: where a rank's clients rest between their turns, and the way from there to the device.

At home they lie as one `ClientState` on the device, in host memory, or in a file that is mapped
into memory. A thread fetches the next lane and puts the last one back while one trains.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcore.batch import sent
from fedcore.clients.room import is_out_of_memory
from fedcore.clients.state import ClientState
from fedcore.errors import StorageError

Asked = tuple[list[int], bool]  # rows; with models


class Store:
    """Where clients rest: rows are copied out and written back, `state` is what lies at home."""

    def __init__(self, state: ClientState, device: torch.device) -> None:
        self._state, self.device = state, device

    @property
    def state(self) -> ClientState:
        """All of the clients, with everything that was put back."""
        return self._state

    def settle(self) -> None:
        """Wait until all that was put back is at home."""

    def ahead(self, rows: Tensor, model: bool = True) -> None:
        """Announce the rows [K] that will be taken next."""

    def let_go(self) -> bool:
        """Free all memory but what lies at home; whether any was freed."""
        return False

    def take(self, rows: Tensor, model: bool = True) -> ClientState:
        """The clients at rows [K], copied to the device; model: with their models."""
        return self._state.take(rows, model)

    def put(self, rows: Tensor, part: ClientState) -> None:
        """Write clients `part` [K, ...] back to their rows [K]."""
        self._state.put(rows, part)

    def prototypes(self, rows: Tensor) -> Tensor:
        """Prototypes [K, C, D], on the device, of the clients at rows [K].

        None of them may be on its way back.
        """
        held = self._state.params["prototypes"]
        return sent(held[sent(rows, held.device)], self.device)


def on_device(state: ClientState, device: torch.device) -> Store:
    """A store on the device itself, of a copy."""
    return Store(state.each(lambda x: x.to(device).clone()), device)


class Away(Store):
    """Clients that rest elsewhere than on the device, fetched and put back by a thread."""

    def __init__(
        self, state: ClientState, device: torch.device, forget: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(state, device)
        self._forget = forget  # what was read or written may leave this process's memory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")  # one: in order
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._next: tuple[Asked, Future[ClientState]] | None = None
        self._puts: list[Future[None]] = []

    @property
    def state(self) -> ClientState:
        """All of the clients, once the last ones are back."""
        self.settle()
        return self._state

    def settle(self) -> None:
        """Wait for what is on its way."""
        self._wait_for_puts(0)

    def prototypes(self, rows: Tensor) -> Tensor:
        """Prototypes [K, C, D], on the device, of the clients at rows [K].

        None of them may be on its way back.
        """
        found = super().prototypes(rows)
        self._forget()
        return found

    def ahead(self, rows: Tensor, model: bool = True) -> None:
        """Begin to fetch the clients at these rows [K]."""
        self._next = (rows.tolist(), model), self._thread.submit(self._fetch, rows, model)

    def let_go(self) -> bool:
        """Free what was fetched and wait for what is on its way back; whether there was any."""
        held = bool(self._next or self._puts)
        if self._next is not None:
            wait([self._next[1]])
            self._next = None
        self.settle()
        return held

    def take(self, rows: Tensor, model: bool = True) -> ClientState:
        """The clients at rows [K], on the device; fetched already if they were announced."""
        if self._next is None or self._next[0] != (rows.tolist(), model):
            self.ahead(rows, model)
        assert self._next is not None
        part, self._next = self._fetched(self._next), None
        if self._stream is None:
            return part
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return part.each(self._used_here)

    def put(self, rows: Tensor, part: ClientState) -> None:
        """Begin to write these back; at most one lane is on its way."""
        self._wait_for_puts(1)
        done: Any = None
        if self._stream is not None:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._puts.append(self._thread.submit(self._write, rows, part, done))

    def _wait_for_puts(self, left: int) -> None:
        while len(self._puts) > left:
            self._puts.pop(0).result()

    def _fetched(self, asked: tuple[Asked, Future[ClientState]]) -> ClientState:
        """What came of it; asked for again if there was no room beside the lane before."""
        (rows, model), coming = asked
        try:
            return coming.result()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return self._thread.submit(self._fetch, torch.tensor(rows), model).result()

    def _used_here(self, values: Tensor) -> Tensor:
        values.record_stream(torch.cuda.current_stream(self.device))
        return values

    def _fetch(self, rows: Tensor, model: bool) -> ClientState:
        part = self._state.take(rows, model)
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                part = part.each(lambda x: sent(x, self.device))
        self._forget()
        return part

    def _write(self, rows: Tensor, part: ClientState, done: Any) -> None:
        with torch.no_grad():
            if self._stream is not None:
                with torch.cuda.stream(self._stream):
                    self._stream.wait_event(done)
                    part = part.each(_to_pinned)
                    self._stream.synchronize()  # sync: of this thread only
            self._state.put(rows, part)
        self._forget()


def _to_pinned(values: Tensor) -> Tensor:
    pinned = torch.empty_like(values, device="cpu", pin_memory=True)
    return pinned.copy_(values, non_blocking=True)


CHUNK = 64 << 20
"""Bytes of a mapped file that are written before their pages leave memory."""


class Mapped:
    """Room for a state in a file without a name, which is gone with the process."""

    def __init__(self, folder: Path, size: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                # now: a write to a mapped page that has no room on the disk would be fatal
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
                self._map = mmap.mmap(file.fileno(), max(size, 1))
        except OSError as error:
            way_out = "freeing space, another --run-dir, or clients.store=memory"
            raise StorageError(str(folder), f"no {size:,} bytes: {error}", way_out) from error
        self._used = 0

    def place(self, values: Tensor) -> Tensor:
        """A copy of the tensor in the file."""
        if not values.numel():
            return values.cpu()
        start = -(-self._used // 64) * 64
        self._used = start + values.nbytes
        flat = torch.frombuffer(self._map, dtype=values.dtype, count=values.numel(), offset=start)
        placed, rows = flat.view(values.shape), max(1, CHUNK * len(values) // values.nbytes)
        for mine, theirs in zip(torch.split(placed, rows), torch.split(values, rows), strict=True):
            mine.copy_(theirs)
            self.forget()
        return placed

    def forget(self) -> None:
        """Let the pages leave this process's memory; they stay in the system's cache."""
        self._map.madvise(mmap.MADV_DONTNEED)


def bytes_of(state: ClientState) -> int:
    """Bytes that a state takes, with room to align each tensor."""
    return sum(v.nbytes + 64 for v in state.leaves().values())
