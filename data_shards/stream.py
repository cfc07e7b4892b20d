"""Samples that are read while they are trained on: a webdataset pipeline for a client's epoch.

tars in the order of the epoch -> verified, decoded blocks (in threads, some ahead) -> windows of
the shuffle buffer (one ahead) -> batches. Threads and no processes: hashing, copying and decoding
leave the interpreter free, and a process that holds a GPU and its collectives must not fork.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import webdataset as wds
from torch import Tensor

from data_shards.blocks import read_block
from data_shards.counted import Counted
from data_shards.folder import Folder
from data_shards.manifest import Manifest, Part, Shard
from data_shards.order import Order
from data_shards.rawtar import Block
from data_shards.resident import Epoch, Held, blank, empty
from data_shards.tars import sized

T = TypeVar("T")


class Piece(NamedTuple):
    """What a window takes from one tar."""

    shard: Shard
    rows: Tensor  # within the tar
    places: Tensor  # within the window
    window: tuple[int, int]  # (first, one after the last) of its places in the epoch


class Streaming:
    """`Reader` of samples that are read from their tars each time."""

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        parts: Mapping[int, Part],
        device: torch.device,
        workers: int,
    ) -> None:
        self.folder, self.manifest, self.parts, self.device = folder, manifest, parts, device
        if isinstance(folder, Path):  # before there is room for the order of what they claim
            for shard in (shard for part in parts.values() for shard in part.shards):
                sized(folder, shard)
        self.counted = Counted(folder, parts.values())
        self.workers = workers
        self.readers = ThreadPoolExecutor(workers, thread_name_prefix="tars")
        self.assemblers = ThreadPoolExecutor(workers, thread_name_prefix="windows")

    def epoch(self, client: int, order: Order, size: int, first: int) -> Epoch:
        """An epoch in batches of `size`, from step `first` on."""
        if not self.parts[client].samples:
            return NoSamples(self.take(client, torch.zeros(size).long()))
        return StreamedEpoch(self, client, order, size, first)

    def take(self, client: int, rows: Tensor) -> Held:
        """Any of a client's samples, on the device."""
        if not self.parts[client].samples:
            return blank(self.manifest).at(rows).to(self.device)
        pieces = self.pieces(self.parts[client], Order(rows, (0,), ()), 0)
        _, held = next(self.windows(self.blocks(pieces)))
        return held.to(self.device)

    def pipeline(self, client: int, order: Order, start: int) -> Iterator[tuple[int, Held]]:
        """Windows, each with the place of its first sample, from that of place `start` on."""
        part = self.parts[client]
        stages = wds.DataPipeline(
            partial(self.pieces, part, order, start),
            self.blocks,
            self.windows,
            partial(one_ahead, self.assemblers),
        )
        return iter(stages)

    def pieces(self, part: Part, order: Order, start: int) -> Iterator[Piece]:
        """What each window takes from which tar; windows that end before `start` are left out."""
        ends = torch.tensor([shard.samples for shard in part.shards]).cumsum(0)
        rank = {tar: i for i, tar in enumerate(order.tars)}
        for window in order.windows:
            if window[1] <= start:
                continue
            rows = order.rows[slice(*window)]
            tar = torch.bucketize(rows, ends, right=True)
            for number in sorted(torch.unique(tar).tolist(), key=lambda t: rank.get(t, t)):
                places = torch.nonzero(tar == number)[:, 0]
                before = int(ends[number - 1]) if number else 0
                yield Piece(part.shards[number], rows[places] - before, places, window)

    def blocks(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Block]]:
        """Each piece with its tar, which is read ahead; once, if it ends one window and begins
        the next."""
        ahead: deque[tuple[Piece, Future[Block]]] = deque()
        try:
            for piece in pieces:
                if ahead and ahead[-1][0].shard is piece.shard:
                    future = ahead[-1][1]
                else:
                    future = self.readers.submit(self._read, piece.shard)
                ahead.append((piece, future))
                if len(ahead) > self.workers:
                    yield _finished(ahead)
            while ahead:
                yield _finished(ahead)
        finally:
            for _, future in ahead:
                future.cancel()

    def _read(self, shard: Shard) -> Block:
        block = read_block(self.folder, self.manifest, shard)
        self.counted.take(shard, block.labels)
        return block

    def windows(self, blocks: Iterable[tuple[Piece, Block]]) -> Iterator[tuple[int, Held]]:
        """Windows [w] in the order of the epoch, pinned where a GPU is."""
        window, held = (0, 0), None
        for piece, block in blocks:
            if held is None or piece.window != window:
                if held is not None:
                    yield window[0], held
                window = piece.window
                held = empty(window[1] - window[0], self.manifest, self.device.type == "cuda")
            places, rows = piece.places.numpy(), piece.rows.numpy()
            held.images.numpy()[places] = block.images[rows]
            held.labels.numpy()[places] = block.labels[rows]
        if held is not None:
            yield window[0], held


def _finished(ahead: deque[tuple[Piece, Future[Block]]]) -> tuple[Piece, Block]:
    piece, future = ahead.popleft()
    return piece, future.result()


def one_ahead(pool: ThreadPoolExecutor, items: Iterable[T]) -> Iterator[T]:
    """The items, the next of which is made while the last is used."""
    source = iter(items)
    end = object()
    future = pool.submit(next, source, end)
    try:
        while (item := future.result()) is not end:
            future = pool.submit(next, source, end)
            yield item  # type: ignore[misc]
    finally:
        if not future.cancel():
            future.exception()  # a generator that runs cannot be closed
        if hasattr(source, "close"):
            source.close()


class NoSamples(NamedTuple):
    """`Epoch` of a client without any: its steps are inactive."""

    held: Held

    def batch(self, step: int) -> Held:
        """Blank images."""
        return self.held


class StreamedEpoch:
    """`Epoch` from windows as they come."""

    def __init__(self, reader: Streaming, client: int, order: Order, size: int, first: int) -> None:
        self.reader, self.client, self.order, self.size = reader, client, order, size
        self.windows = reader.pipeline(client, order, first * size)
        self.held, self.start = blank(reader.manifest).between(0, 0), 0  # the newest window
        self.head: Held | None = None  # the first B samples, which fill up the last batch

    def batch(self, step: int) -> Held:
        """B samples on the device, those after the last from the first on; steps only go up."""
        start, n = step * self.size, len(self.order.rows)
        found = self._between(start, min(start + self.size, n)) if start < n else []
        missing = self.size - sum(len(held.labels) for held in found)
        if missing:
            head = self._head()
            found.append(head.at(torch.arange(missing) % len(head.labels)))
        held = found[0] if len(found) == 1 else Held(*map(torch.cat, zip(*found, strict=True)))
        return held.to(self.reader.device)

    def _between(self, start: int, stop: int) -> list[Held]:
        """Samples of places start...stop of the epoch."""
        found = []
        while start < stop:
            while start >= self.start + len(self.held.labels):
                self.start, self.held = next(self.windows)
                if self.start == 0 and len(self.held.labels) >= self.size:
                    self.head = self.held.between(0, self.size)
            found.append(self.held.between(start - self.start, stop - self.start))
            start += len(found[-1].labels)
        return found

    def _head(self) -> Held:
        if self.head is None:  # gone on with in its middle, or its first window was a short one
            self.head = self.reader.take(self.client, self.order.rows[: self.size])
        return self.head
