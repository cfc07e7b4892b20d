"""Samples that a rank holds on its device: read once, in threads, and kept as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from data_shards.blocks import read_block
from data_shards.folder import Folder
from data_shards.manifest import WAY_OUT, Manifest, Part
from data_shards.order import Order
from data_shards.raw import reading
from data_shards.tars import sized
from fedcore.errors import ShardError


class Held(NamedTuple):
    """Decoded samples."""

    images: Tensor  # uint8 [n, channels, height, width]
    labels: Tensor  # int64 [n]

    def at(self, rows: Tensor) -> Held:
        """Those of some rows; whole images are copied, where indexing would copy numbers."""
        return Held(self.images.index_select(0, rows), self.labels.index_select(0, rows))

    def between(self, start: int, stop: int) -> Held:
        """A view of neighbours."""
        return Held(self.images[start:stop], self.labels[start:stop])

    def to(self, device: torch.device) -> Held:
        """On that device; the copy from pinned memory is not waited for."""
        pinned = device.type == "cuda" and not self.images.is_cuda
        images, labels = (x.pin_memory() for x in self) if pinned else self
        return Held(images.to(device, non_blocking=pinned), labels.to(device, non_blocking=pinned))


class Epoch(Protocol):
    """The samples of one client in the order of one epoch."""

    def batch(self, step: int) -> Held:
        """B samples on the device, those after the last from the first on; steps only go up."""


class Reader(Protocol):
    """The samples of some clients: all at hand, or read as they are asked for."""

    def epoch(self, client: int, order: Order, size: int, first: int) -> Epoch:
        """An epoch in batches of `size`, from step `first` on."""

    def take(self, client: int, rows: Tensor) -> Held:
        """Any of a client's samples [n], on the device."""


def read_part(folder: Folder, manifest: Manifest, part: Part) -> Held:
    """All samples of a client or of the test split, in the order of the tars."""
    place = f"{folder}/{part.shards[0].file}" if part.shards else str(folder)
    for shard in part.shards:
        sized(folder, shard)  # before there is room for what they claim
    with reading(place, WAY_OUT):
        held = empty(part.samples, manifest)
    row = 0
    for shard in part.shards:
        block = read_block(folder, manifest, shard)
        here = slice(row, row + shard.samples)
        held.images.numpy()[here] = block.images
        held.labels.numpy()[here] = block.labels
        row += shard.samples
    found = torch.bincount(held.labels, minlength=len(part.label_counts))
    if found.tolist() != list(part.label_counts):
        raise ShardError(place, "labels that its manifest does not count", WAY_OUT)
    return held


def empty(samples: int, manifest: Manifest, pinned: bool = False) -> Held:
    """Room for so many samples."""
    shape = (samples, *manifest.shape)
    images = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
    return Held(images, torch.empty(samples, dtype=torch.int64, pin_memory=pinned))


class Resident:
    """`Reader` of samples that lie on the device."""

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        parts: Mapping[int, Part],
        device: torch.device,
        workers: int,
    ) -> None:
        self.device = device
        nothing = blank(manifest).to(device)  # one for all: an image may be large

        def read(part: Part) -> Held:
            return read_part(folder, manifest, part).to(device) if part.samples else nothing

        with ThreadPoolExecutor(workers) as pool:
            self._held = dict(zip(parts, pool.map(read, parts.values()), strict=True))

    def epoch(self, client: int, order: Order, size: int, first: int) -> ResidentEpoch:
        """An epoch in batches of `size`."""
        return ResidentEpoch(self, client, order.rows, size)

    def take(self, client: int, rows: Tensor) -> Held:
        """Any of a client's samples."""
        return self._held[client].at(sent(rows, self.device))


class ResidentEpoch(NamedTuple):
    """`Epoch` of samples that lie on the device."""

    reader: Resident
    client: int
    rows: Tensor
    size: int

    def batch(self, step: int) -> Held:
        """B samples, cyclically: filling is the client's own."""
        start, n = step * self.size, len(self.rows)
        if start + self.size <= n:
            return self.reader.take(self.client, self.rows[start : start + self.size])
        start = start if start < n else 0  # 0: inactive
        at = torch.arange(start, start + self.size) % n
        return self.reader.take(self.client, self.rows[at])


def blank(manifest: Manifest) -> Held:
    """One black image of class 0, which the inactive steps of a client without samples may show."""
    return Held(torch.zeros(1, *manifest.shape, dtype=torch.uint8), torch.zeros(1).long())


def sent(values: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting for it."""
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
