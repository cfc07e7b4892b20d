"""Samples that a rank holds on its device: read once, in threads, and kept as uint8."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from data_shards.blocks import read_block
from data_shards.folder import Folder
from data_shards.lane import laid, taking_part
from data_shards.manifest import WAY_OUT, Manifest, Part
from data_shards.order import Order
from data_shards.raw import reading
from data_shards.rawtar import Block
from data_shards.tars import sized
from fedcore.batch import sent
from fedcore.errors import ShardError

CPU = torch.device("cpu")


class Held(NamedTuple):
    """Decoded samples, labels beside images."""

    images: Tensor  # uint8 [n, channels, height, width], or with the channels last
    labels: Tensor  # int64 [n]

    def at(self, rows: Tensor) -> Held:
        """The samples at rows [...]; whole images are copied, where indexing would copy numbers."""
        found = Held(*(x.index_select(0, rows.flatten()) for x in self))
        return found.shaped(*rows.shape)

    def shaped(self, *shape: int) -> Held:
        """The samples in that shape instead of a row."""
        images = self.images.view(*shape, *self.images.shape[1:])
        return Held(images, self.labels.view(shape))

    def between(self, start: int, stop: int) -> Held:
        """Samples `start` to `stop` (exclusive), sharing memory with these."""
        return Held(self.images[start:stop], self.labels[start:stop])

    def to(self, device: torch.device) -> Held:
        """On that device; the copy from pinned memory is not waited for."""
        return Held(*(sent(x, device) for x in self))


class Lane(Protocol):
    """An epoch of a lane, step by step: samples [K, B] of the clients that have that step."""

    def __iter__(self) -> Iterator[Held]: ...

    def close(self) -> None:
        """Stop reading."""


class Reader(Protocol):
    """The samples of some clients: all in memory, or read as they are asked for."""

    def epoch(self, clients: Sequence[int], orders: Sequence[Order], size: int, first: int) -> Lane:
        """An epoch in batches of `size` from step `first` on, which each of the clients has;
        those with the most steps come first."""

    def take(self, clients: Sequence[int], rows: Tensor) -> Held:
        """Any of each client's samples [K, n], on the device."""


def empty(
    samples: int,
    manifest: Manifest,
    *,
    innermost: bool = False,  # channels
    pinned: bool = False,
    device: torch.device = CPU,
) -> Held:
    """Room for so many samples, on that device."""
    channels, height, width = manifest.shape
    shape = (height, width, channels) if innermost else manifest.shape
    images = torch.empty(samples, *shape, dtype=torch.uint8, pin_memory=pinned, device=device)
    labels = torch.empty(samples, dtype=torch.int64, pin_memory=pinned, device=device)
    return Held(images, labels)


def pixels(block: Block, innermost: bool) -> np.ndarray:
    """A view of the images of a tar, as they are to lie."""
    return np.moveaxis(block.images, 1, -1) if innermost else block.images


def read_part(folder: Folder, manifest: Manifest, part: Part, innermost: bool = False) -> Held:
    """All samples of a client or of the test split, in the order of the tars."""
    check(folder, part)
    with reading(_name(folder, part), WAY_OUT):
        held = empty(part.samples, manifest, innermost=innermost)
    fill(held, folder, manifest, part, innermost)
    return held


def check(folder: Folder, part: Part) -> None:
    """Raise `ShardError` for a missing tar, before there is room for what they all claim."""
    for shard in part.shards:
        sized(folder, shard)


def fill(held: Held, folder: Folder, manifest: Manifest, part: Part, innermost: bool) -> None:
    """Read a part into `held`, one tar at a time."""
    found, row = np.zeros(len(part.label_counts), dtype=np.int64), 0
    for shard in part.shards:
        block = read_block(folder, manifest, shard)
        here = held.between(row, row + shard.samples)
        host = empty(shard.samples, manifest, innermost=innermost) if here.images.is_cuda else here
        host.images.numpy()[:] = pixels(block, innermost)
        host.labels.numpy()[:] = block.labels
        if host is not here:
            here.images.copy_(host.images)
            here.labels.copy_(host.labels)
        found += np.bincount(block.labels, minlength=len(found))
        row += shard.samples
    if found.tolist() != list(part.label_counts):
        raise ShardError(_name(folder, part), "labels that its manifest does not count", WAY_OUT)


def _name(folder: Folder, part: Part) -> str:
    return f"{folder}/{part.shards[0].file}" if part.shards else str(folder)


class Resident:
    """`Reader` of samples that all lie on the device, client after client.

    So a step of a lane is one copy of rows, however many clients it has.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        parts: Mapping[int, Part],
        device: torch.device,
        workers: int,
        innermost: bool,
    ) -> None:
        self.device = device
        ends = list(accumulate((part.samples for part in parts.values()), initial=0))
        self._starts = dict(zip(parts, ends, strict=False))  # the first row of each client
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(partial(check, folder), parts.values()))
            with reading(folder, WAY_OUT):
                self._held = empty(ends[-1], manifest, innermost=innermost, device=device)

            def read(client: int) -> None:
                start, part = self._starts[client], parts[client]
                room = self._held.between(start, start + part.samples)
                fill(room, folder, manifest, part, innermost)

            list(pool.map(read, parts))

    def epoch(
        self, clients: Sequence[int], orders: Sequence[Order], size: int, first: int
    ) -> Generator[Held, None, None]:
        """Samples [K, B] of each step; which they are is sent to the device once."""
        each = [
            filled(order.rows + self._starts[client], size)[first:]
            for client, order in zip(clients, orders, strict=True)
        ]
        rows = sent(laid(each), self.device)
        labels = self._held.labels[rows]
        counts = taking_part([own.shape[0] for own in each])
        steps = (torch.split_with_sizes(x, counts) for x in (rows, labels))
        for here, named in zip(*steps, strict=True):
            images = self._held.images.index_select(0, here.flatten())
            yield Held(images.view(*here.shape, *images.shape[1:]), named)

    def take(self, clients: Sequence[int], rows: Tensor) -> Held:
        """The samples at rows [K, n], those of each client numbered from 0."""
        starts = torch.tensor([self._starts[k] for k in clients])
        return self._held.at(sent(rows + starts[:, None], self.device))


def filled(rows: Tensor, size: int) -> Tensor:
    """Rows [n] in batches [steps, size], the last filled up with the first: filling is the client's
    own."""
    n = rows.shape[0]
    if missing := -n % size:
        rows = torch.cat([rows, rows[torch.arange(missing) % n]])
    return rows.view(-1, size)
