"""Shards to batches: verified tars -> samples in memory -> padded, augmented lanes.

A rank reads its own clients once and keeps them as uint8 on its device. Nothing here synchronises
a device per batch: indices and augmentation parameters are drawn on the CPU and sent ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from data_shards import augment
from data_shards.folder import Folder
from data_shards.manifest import WAY_OUT, Manifest, Part
from data_shards.raw import reading
from data_shards.tars import read_tars
from fedcore.batch import Batch, held_out_of
from fedcore.errors import ShardError
from fedcore.files import parse_json
from fedcore.seeds import generator


class Samples(NamedTuple):
    """Decoded samples of one part."""

    images: Tensor  # uint8 [n, channels, height, width]
    labels: Tensor  # int64 [n]


def read_part(folder: Folder, part: Part, shape: tuple[int, int, int]) -> Samples:
    """All samples of a client or of the test split, in the order of the tars."""
    samples = read_tars(folder, part.shards)  # checked, before there is room for what they claim
    place = folder / part.shards[0].file if part.shards else folder
    images = torch.empty(part.samples, *shape, dtype=torch.uint8)
    labels = torch.empty(part.samples, dtype=torch.int64)
    row = 0
    with reading(place, WAY_OUT):
        for sample in samples:
            pixels = torch.frombuffer(bytearray(sample["u8"]), dtype=torch.uint8)
            images[row] = pixels.view(shape)
            labels[row] = int(parse_json(sample["json"])["label"])
            row += 1
    if row != part.samples:
        raise ShardError(str(place), f"{row} samples, want {part.samples}", WAY_OUT)
    if not _are_counted(labels, part.label_counts):
        raise ShardError(str(place), "labels that its manifest does not count", WAY_OUT)
    return Samples(images, labels)


def _are_counted(labels: Tensor, counts: Sequence[int]) -> bool:
    """Whether there are as many labels of each class as that; a label is no other class."""
    known = bool(((labels >= 0) & (labels < len(counts))).all())
    return known and torch.bincount(labels, minlength=len(counts)).tolist() == list(counts)


def _held(samples: Samples) -> Samples:
    """The samples; of a client without any, one blank image that its inactive steps may show."""
    if len(samples.labels):
        return samples
    return Samples(samples.images.new_zeros(1, *samples.images.shape[1:]), torch.zeros(1).long())


class Normalise:
    """uint8 images to (x/255 - mean)/std, per channel."""

    def __init__(self, manifest: Manifest, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.mean = torch.tensor(manifest.mean, dtype=dtype, device=device)[:, None, None]
        self.std = torch.tensor(manifest.std, dtype=dtype, device=device)[:, None, None]

    def __call__(self, images: Tensor) -> Tensor:
        """Images in 0...1 to network input."""
        return (images - self.mean) / self.std

    def unit(self, images: Tensor) -> Tensor:
        """uint8 to 0...1."""
        return images.to(self.dtype) / 255


class ShardedData:
    """`TrainData` from shards: the clients of one rank."""

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        clients: Sequence[int],
        *,
        batch_size: int,
        views: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        augment: bool,
        held_out: float = 0.0,  # share of each client's samples that `epoch` leaves out
    ) -> None:
        # rows are the same for all clients, so that a lane's company changes nothing; more rows
        # than the largest client of the run has samples would be filling only
        largest = max((part.samples for part in manifest.clients), default=1)
        self.batch_size = max(1, min(batch_size, largest))
        self.views, self.seed, self.device = views, seed, device
        self.kind, self.augment = manifest.kind, augment
        self.normalise = Normalise(manifest, device, dtype)
        self._parts = {k: manifest.clients[k] for k in clients}
        self._samples = {
            k: Samples(*(x.to(device) for x in _held(read_part(folder, part, manifest.shape))))
            for k, part in self._parts.items()
        }
        self._kept_back = {k: self._split(k, held_out) for k in self._parts}  # rows, held out first

    def _split(self, client: int, share: float) -> tuple[Tensor, Tensor]:
        """Rows held out and rows trained on; a client of one sample has it in both."""
        n = len(self._samples[client].labels)
        held = held_out_of(n, share)
        order = torch.randperm(n, generator=generator(self.seed, client, 0, "held out"))
        return (order[:held] if held else order), order[held:].sort().values

    def samples(self, client: int) -> int:
        """How many samples that client holds."""
        return self._parts[client].samples

    def label_counts(self, client: int) -> Tensor:
        """Label histogram [C] int64."""
        return torch.tensor(self._parts[client].label_counts)

    def steps(self, client: int) -> int:
        """Batches in one local epoch: the last one is filled up."""
        return -(-self.trained(client) // self.batch_size)

    def trained(self, client: int) -> int:
        """Samples of one local epoch: all that are not held out."""
        return len(self._kept_back[client][1]) if self.samples(client) else 0

    def epoch(
        self, clients: Sequence[int], round: int, epoch: int, first: int = 0
    ) -> Iterator[Batch]:
        """One local epoch of a lane; a client whose batches are over is inactive."""
        orders = [self._order(k, round, epoch) for k in clients]
        for step in range(first, max(self.steps(k) for k in clients)):
            yield self._batch(clients, orders, round, epoch, step)

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        """One batch of held-out samples, drawn at the address of the step it follows."""
        orders = []
        for client in clients:
            rows = self._kept_back[client][0]
            number = epoch * self.steps(client) + step
            draws = generator(self.seed, client, round, "held-out batch", number)
            orders.append(rows[torch.randperm(len(rows), generator=draws)])
        return self._batch(clients, orders, round, epoch, step, purpose="held-out views")

    def _order(self, client: int, round: int, epoch: int) -> Tensor:
        rows = self._kept_back[client][1]
        draws = generator(self.seed, client, round, "shuffle", epoch)
        return rows[torch.randperm(len(rows), generator=draws)]

    def _batch(
        self,
        clients: Sequence[int],
        orders: list[Tensor],
        round: int,
        epoch: int,
        step: int,
        purpose: str = "augment",
    ) -> Batch:
        first = step * self.batch_size if purpose == "augment" else 0
        at = torch.arange(first, first + self.batch_size)
        images, labels, weight = [], [], []
        for client, order in zip(clients, orders, strict=True):
            held = self._samples[client]
            rows = self._send(order[at % len(order)])  # cyclically: filling is the client's own
            images.append(held.images[rows])
            labels.append(held.labels[rows])
            weight.append(at < (len(order) if self.samples(client) else 0))
        active = torch.tensor([step < self.steps(k) for k in clients])
        stacked = self._views(torch.stack(images), clients, round, epoch, step, purpose)
        return Batch(
            stacked,
            torch.stack(labels),
            self._send(torch.stack(weight)).to(stacked.dtype),
            self._send(active),
        )

    def _views(
        self,
        images: Tensor,
        clients: Sequence[int],
        round: int,
        epoch: int,
        step: int,
        purpose: str,
    ) -> Tensor:
        """[K, B, ...] uint8 to V drawn views of each, [K, V, B, ...] normalised."""
        shape = images.shape[2:]
        repeated = images[:, None].expand(-1, self.views, -1, *shape)
        flat = self.normalise.unit(repeated.reshape(-1, *shape))
        if self.augment:
            each = self.views * self.batch_size
            draws = [
                augment.draw(self._draws(k, round, epoch, step, purpose), each, self.kind)
                for k in clients
            ]
            flat = augment.apply(flat, self._send(torch.cat(draws)).to(flat.dtype), self.kind)
        return self.normalise(flat).view(len(clients), self.views, self.batch_size, *shape)

    def _draws(
        self, client: int, round: int, epoch: int, step: int, purpose: str
    ) -> torch.Generator:
        """Addressed by the step within the round, as everything else of a step is."""
        number = epoch * self.steps(client) + step
        return generator(self.seed, client, round, purpose, number)

    def _send(self, values: Tensor) -> Tensor:
        """To the device, without waiting for it."""
        if self.device.type == "cuda":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)


class TestSamples:
    """`TestData` from the test shards; every rank holds them all."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    def __init__(
        self, folder: Folder, manifest: Manifest, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        images, labels = read_part(folder, manifest.test, manifest.shape)
        self.images, self.labels = images.to(device), labels.to(device)
        self.shape = manifest.shape
        self.normalise = Normalise(manifest, device, dtype)

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Normalised images of samples start...stop, `size` at a time."""
        for chunk in torch.split(self.images[start:stop], size):
            yield self.normalise(self.normalise.unit(chunk))
