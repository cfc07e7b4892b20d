"""Samples that are read while they are trained on: a webdataset pipeline for a client's epoch.

tars in the order of the epoch -> verified, decoded blocks (in threads, some ahead) -> windows of
the shuffle buffer (one ahead) -> batches. It runs from when it is made: a lane's epoch may be made
while the lane before it trains. Threads and no processes: hashing, copying and decoding
leave the interpreter free, and a process that holds a GPU and its collectives must not fork.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import webdataset as wds
from torch import Tensor

from data_shards.ahead import Ahead, StreamedClient, StreamedLane
from data_shards.blocks import read_block
from data_shards.counted import Counted
from data_shards.folder import Folder
from data_shards.lane import taking_part
from data_shards.manifest import Manifest, Part, Shard
from data_shards.order import Order
from data_shards.rawtar import Block
from data_shards.resident import Held, empty, pixels
from data_shards.tars import sized
from fedcore.batch import pinned_for


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
        innermost: bool,
    ) -> None:
        self.folder, self.manifest, self.parts, self.device = folder, manifest, parts, device
        if isinstance(folder, Path):  # before there is room for the order of what they claim
            for shard in (shard for part in parts.values() for shard in part.shards):
                sized(folder, shard)
        self.counted = Counted(folder, parts.values())
        self.workers, self.innermost = workers, innermost
        self.readers = ThreadPoolExecutor(workers, thread_name_prefix="tars")
        self.assemblers = ThreadPoolExecutor(workers, thread_name_prefix="windows")

    def epoch(
        self, clients: Sequence[int], orders: Sequence[Order], size: int, first: int
    ) -> StreamedLane:
        """An epoch in batches of `size` from step `first` on; reading begins at once."""
        lane = []
        for client, order in zip(clients, orders, strict=True):
            windows = Ahead(self.assemblers, self.pipeline(client, order, first * size))
            head = partial(self.taken, client, order.rows[:size])
            lane.append(StreamedClient(windows, head, len(order.rows), size))
        counts = taking_part([-(-len(order.rows) // size) - first for order in orders])
        return StreamedLane(lane, self.together, counts, first)

    def take(self, clients: Sequence[int], rows: Tensor) -> Held:
        """Any of each client's samples, on the device."""
        pairs = zip(clients, rows, strict=True)
        return self.together([[self.taken(client, own)] for client, own in pairs])

    def taken(self, client: int, rows: Tensor) -> Held:
        """Any of a client's samples [n]."""
        pieces = self.pieces(self.parts[client], Order(rows, (0,), ()), 0)
        return next(self.windows(self.blocks(pieces)))[1]

    def together(self, found: Sequence[Sequence[Held]]) -> Held:
        """Pieces of a batch of each client as one [K, B], on the device."""
        if len(found) == 1 and len(found[0]) == 1:
            return found[0][0].to(self.device).shaped(1, -1)
        size = sum(len(piece.labels) for piece in found[0])
        room, row = self._room(len(found) * size, device=self.device), 0
        for piece in (piece for pieces in found for piece in pieces):
            place = room.between(row, row + len(piece.labels))
            for to, values in zip(place, piece, strict=True):
                to.copy_(pinned_for(values, self.device), non_blocking=True)
            row += len(piece.labels)
        return room.shaped(len(found), size)

    def _room(self, samples: int, **how: Any) -> Held:
        return empty(samples, self.manifest, innermost=self.innermost, **how)

    def pipeline(
        self, client: int, order: Order, start: int
    ) -> Generator[tuple[int, Held], None, None]:
        """Windows, each with the place of its first sample, from that of place `start` on."""
        pieces = partial(self.pieces, self.parts[client], order, start)
        stages: Generator[tuple[int, Held], None, None] = wds.DataPipeline(
            pieces, self.blocks, self.windows
        ).iterator()
        return stages

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
                held = self._room(window[1] - window[0], pinned=self.device.type == "cuda")
            places, rows = piece.places.numpy(), piece.rows.numpy()
            held.images.numpy()[places] = pixels(block, self.innermost)[rows]
            held.labels.numpy()[places] = block.labels[rows]
        if held is not None:
            yield window[0], held


def _finished(ahead: deque[tuple[Piece, Future[Block]]]) -> tuple[Piece, Block]:
    piece, future = ahead.popleft()
    return piece, future.result()
