"""Shards to batches: verified tars -> samples, held or streamed -> padded, augmented lanes.

Nothing here synchronises a device per batch: indices and augmentation parameters are drawn on the
CPU and sent ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from data_shards import augment
from data_shards.folder import Folder
from data_shards.manifest import Manifest, Part
from data_shards.order import epoch_order, kept_back
from data_shards.resident import Epoch, Held, Reader, Resident, read_part, sent
from data_shards.stream import Streaming
from fedcore.batch import Batch
from fedcore.seeds import generator


class Normalise:
    """uint8 images to (x/255 - mean)/std, per channel."""

    def __init__(self, manifest: Manifest, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.mean = torch.tensor(manifest.mean, dtype=dtype, device=device)[:, None, None]
        self.std = torch.tensor(manifest.std, dtype=dtype, device=device)[:, None, None]

    def __call__(self, images: Tensor) -> Tensor:
        """Images in 0...1 to network input, in their place."""
        return images.sub_(self.mean).div_(self.std)

    def unit(self, images: Tensor) -> Tensor:
        """uint8 to 0...1, as new images."""
        return images.to(self.dtype).div_(255)


class ShardedData:
    """`TrainData` from shards: the clients of one rank, whose own files are all that is opened.

    streaming: read samples as they are trained on, instead of holding them on the device. The
    batches are the same: an epoch's order is a pure function of (seed, client, round, epoch).
    """

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
        streaming: bool = False,
        shuffle_buffer: int = 16_384,  # samples of a client that are shuffled at a time
        workers: int = 2,  # threads that read tars
    ) -> None:
        # rows are the same for all clients, so that a lane's company changes nothing; more rows
        # than the largest client of the run has samples would be filling only
        largest = max((part.samples for part in manifest.clients), default=1)
        self.batch_size = max(1, min(batch_size, largest))
        self.buffer = max(shuffle_buffer, self.batch_size)  # a batch is filled from one window
        self.views, self.seed, self.device = views, seed, device
        self.kind, self.augment = manifest.kind, augment
        self.normalise = Normalise(manifest, device, dtype)
        self._parts: dict[int, Part] = {k: manifest.clients[k] for k in clients}
        self._places = torch.arange(self.batch_size)
        # what nearly every batch has is made once
        self._all_ones = lru_cache(partial(_ones, self.batch_size, device, dtype))
        reader = Streaming if streaming else Resident
        self._reader: Reader = reader(folder, manifest, self._parts, device, workers)
        self._kept_back = {  # rows: held out, trained on
            k: kept_back(max(1, part.samples), held_out, seed, k) for k, part in self._parts.items()
        }

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
        epochs = [self._epoch(k, round, epoch, first) for k in clients]
        trained = [self.trained(k) for k in clients]
        for step in range(first, max(self.steps(k) for k in clients)):
            k = sum(step < self.steps(c) for c in clients)
            held = [samples.batch(step) for samples in epochs[:k]]
            left = [n - step * self.batch_size for n in trained[:k]]
            yield self._batch(held, left, clients[:k], (round, epoch, step), "augment")

    def _epoch(self, client: int, round: int, epoch: int, first: int) -> Epoch:
        sizes = [shard.samples for shard in self._parts[client].shards] or [1]
        draws = generator(self.seed, client, round, "shuffle", epoch)
        order = epoch_order(self._kept_back[client][1], sizes, self.buffer, draws)
        return self._reader.epoch(client, order, self.batch_size, first)

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        """One batch of held-out samples, drawn at the address of the step it follows."""
        held, left = [], []
        for client in clients:
            rows = self._kept_back[client][0]
            number = epoch * self.steps(client) + step
            draws = generator(self.seed, client, round, "held-out batch", number)
            order = rows[torch.randperm(len(rows), generator=draws)]
            held.append(self._reader.take(client, order[self._places % len(order)]))
            left.append(len(order) if self.samples(client) else 0)
        return self._batch(held, left, clients, (round, epoch, step), "held-out views")

    def _batch(
        self,
        held: Sequence[Held],
        left: Sequence[int],  # of each client's samples, from this batch on
        clients: Sequence[int],
        where: tuple[int, int, int],  # round, epoch, step
        purpose: str,
    ) -> Batch:
        images, labels = (
            x[0][None] if len(x) == 1 else torch.stack(x) for x in zip(*held, strict=True)
        )
        stacked = self._views(images, clients, *where, purpose)
        full = all(n >= self.batch_size for n in left)
        weight = self._all_ones(len(clients)) if full else self._weight(left)
        return Batch(stacked, labels, weight)

    def _weight(self, left: Sequence[int]) -> Tensor:
        """1 for a sample of this batch, 0 for filling: [K, B]."""
        weight = self._places < torch.tensor(left)[:, None]
        return sent(weight, self.device).to(self.normalise.dtype)

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
        unit = self.normalise.unit(images)[:, None]
        # views that are changed in place must not share their memory
        flat = unit.expand(-1, self.views, -1, *shape).reshape(-1, *shape)
        if self.augment:
            each = self.views * self.batch_size
            draws = [
                augment.draw(self._draws(k, round, epoch, step, purpose), each, self.kind)
                for k in clients
            ]
            flat = augment.apply(
                flat, sent(torch.cat(draws), self.device).to(flat.dtype), self.kind
            )
        return self.normalise(flat).view(len(clients), self.views, self.batch_size, *shape)

    def _draws(
        self, client: int, round: int, epoch: int, step: int, purpose: str
    ) -> torch.Generator:
        """Addressed by the step within the round, as everything else of a step is."""
        number = epoch * self.steps(client) + step
        return generator(self.seed, client, round, purpose, number)


def _ones(rows: int, device: torch.device, dtype: torch.dtype, clients: int) -> Tensor:
    return torch.ones(clients, rows, device=device, dtype=dtype)


class TestSamples:
    """`TestData` from the test shards; every rank holds them all."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    def __init__(
        self, folder: Folder, manifest: Manifest, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        images, labels = read_part(folder, manifest, manifest.test)
        self.images, self.labels = images.to(device), labels.to(device)
        self.shape = manifest.shape
        self.normalise = Normalise(manifest, device, dtype)

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Normalised images of samples start...stop, `size` at a time."""
        for chunk in torch.split(self.images[start:stop], size):
            yield self.normalise(self.normalise.unit(chunk))
