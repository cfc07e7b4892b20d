"""Shards to batches: verified tars -> samples, held or streamed -> padded, augmented lanes.

Nothing here synchronises a device, and nothing is made for each client of a step: which samples a
lane takes, how much they weigh and what is done to them is drawn on the CPU for many steps at once,
and sent ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import repeat

import torch
from torch import Tensor

from data_shards import augment
from data_shards.folder import Folder
from data_shards.lane import laid, taking_part
from data_shards.manifest import Manifest, Part
from data_shards.order import epoch_order, kept_back
from data_shards.pixels import Pixels
from data_shards.resident import Lane, Reader, Resident, filled, read_part
from data_shards.stream import Streaming
from fedcore.batch import Batch, sent
from fedcore.seeds import generator

BLOCK = 2**15  # rows whose views are drawn at a time: 1.4 MB of parameters
Address = tuple[list[int], int, int]  # clients with samples, round, epoch


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
        channels_last: bool = False,  # how images lie in memory
    ) -> None:
        # rows are the same for all clients, so that a lane's company changes nothing; more rows
        # than the largest client of the run has samples would be filling only
        largest = max((part.samples for part in manifest.clients), default=1)
        self.batch_size = max(1, min(batch_size, largest))
        self.buffer = max(shuffle_buffer, self.batch_size)  # a batch is filled from one window
        self.views, self.seed, self.device = views, seed, device
        self.kind, self.augment = manifest.kind, augment
        self.pixels = Pixels(manifest, device, dtype, channels_last=channels_last, augment=augment)
        self._parts: dict[int, Part] = {k: manifest.clients[k] for k in clients}
        self._places = torch.arange(self.batch_size)
        self._ones = lru_cache(partial(_ones, self.batch_size, device, dtype))
        reader = Streaming if streaming else Resident
        self._reader: Reader = reader(
            folder, manifest, self._parts, device, workers, self.pixels.innermost
        )
        self._announced: tuple[Address, Lane] | None = None
        self._kept_back = {  # rows: held out, trained on
            k: kept_back(part.samples, held_out, seed, k) for k, part in self._parts.items()
        }
        self._trained = {k: len(rows) for k, (_, rows) in self._kept_back.items()}

    def samples(self, client: int) -> int:
        """How many samples that client holds."""
        return self._parts[client].samples

    def label_counts(self, client: int) -> Tensor:
        """A client's label histogram [C], int64."""
        return torch.tensor(self._parts[client].label_counts)

    def steps(self, client: int) -> int:
        """Batches in one local epoch: the last one is filled up."""
        return -(-self.trained(client) // self.batch_size)

    def trained(self, client: int) -> int:
        """Samples of one local epoch: all that are not held out."""
        return self._trained[client]

    def ahead(self, clients: Sequence[int], round: int, epoch: int) -> None:
        """Begin to read that epoch, which comes soon; what was announced before and did not come
        is given up."""
        self._give_up()
        clients = [k for k in clients if self.steps(k)]
        self._announced = (clients, round, epoch), self._lane(clients, round, epoch, 0)

    def _give_up(self) -> None:
        if self._announced is not None:
            self._announced[1].close()
        self._announced = None

    def epoch(
        self, clients: Sequence[int], round: int, epoch: int, first: int = 0
    ) -> Iterator[Batch]:
        """One local epoch of a lane, whose longest clients come first; a step has those of the
        first clients whose batches are not over."""
        steps = [self.steps(k) for k in clients]
        assert steps == sorted(steps, reverse=True), f"steps of a lane must fall: {steps}"
        clients = [k for k, n in zip(clients, steps, strict=True) if n > first]
        if not clients:
            return
        with closing(self._begun(clients, round, epoch, first)) as lane:
            weights = self._weights(clients, taking_part(steps, first), first)
            drawn = self._drawn(clients, round, epoch, first)
            for held, weight, parameters in zip(lane, weights, drawn, strict=False):
                images = self.pixels.views(held.images, self.views, parameters)
                yield Batch(images, held.labels, weight)

    def _begun(self, clients: list[int], round: int, epoch: int, first: int) -> Lane:
        """The lane as it was announced, or begun now."""
        if self._announced is not None and first == 0:
            address, lane = self._announced
            if address == (clients, round, epoch):
                self._announced = None
                return lane
        return self._lane(clients, round, epoch, first)

    def _lane(self, clients: list[int], round: int, epoch: int, first: int) -> Lane:
        orders = []
        for client in clients:
            sizes = [shard.samples for shard in self._parts[client].shards]
            draws = generator(self.seed, client, round, "shuffle", epoch)
            orders.append(epoch_order(self._kept_back[client][1], sizes, self.buffer, draws))
        return self._reader.epoch(clients, orders, self.batch_size, first)

    def _weights(self, clients: Sequence[int], counts: list[int], first: int) -> Sequence[Tensor]:
        """1 for a sample of the batch, 0 for filling: [K, B] of each step."""
        size, trained = self.batch_size, [self.trained(k) for k in clients]
        if not any(n % size for n in trained):  # nothing is filled up
            return [self._ones(count) for count in counts]
        left = [torch.arange(n - first * size, 0, -size) for n in trained]  # samples, at each step
        weight = sent(self._places < laid(left)[:, None], self.device).to(self.pixels.dtype)
        return torch.split_with_sizes(weight, counts)

    def _drawn(
        self, clients: Sequence[int], round: int, epoch: int, first: int
    ) -> Iterator[Tensor | None]:
        """Parameters of the views of each step [K*V*B, 11] on the device; None: plain images.

        A generator for each client draws the whole epoch, one block of steps after another: a run
        that begins in the middle draws what comes before, too.
        """
        if not self.augment:
            yield from repeat(None)
        rows, kind = self.views * self.batch_size, self.kind
        draws = [generator(self.seed, k, round, "augment", epoch) for k in clients]
        for start, stop in blocks(0, first, self._block_steps(clients)):
            for own in draws:
                augment.uniform(own, stop - start, rows, kind)
        steps = [self.steps(k) for k in clients]
        for start, stop in blocks(first, steps[0], self._block_steps(clients)):
            here = [min(n, stop) - start for n in steps if n > start]
            numbers = laid(
                [augment.uniform(g, n, rows, kind) for g, n in zip(draws, here, strict=False)]
            )
            table = sent(augment.table(numbers.flatten(0, 1), kind), self.device)
            yield from torch.split_with_sizes(table, [rows * count for count in taking_part(here)])

    def _block_steps(self, clients: Sequence[int]) -> int:
        return max(1, BLOCK // (len(clients) * self.views * self.batch_size))

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        """One batch of held-out samples, drawn at the address of the step it follows."""
        rows, left, drawn = [], [], []
        for client in clients:
            own, number = self._kept_back[client][0], epoch * self.steps(client) + step
            draws = generator(self.seed, client, round, "held-out batch", number)
            rows.append(filled(own[torch.randperm(len(own), generator=draws)], self.batch_size)[0])
            left.append(len(own))
            draws = generator(self.seed, client, round, "held-out views", number)
            drawn.append(augment.draw(draws, self.views * self.batch_size, self.kind))
        held = self._reader.take(clients, torch.stack(rows))
        parameters = sent(torch.cat(drawn), self.device) if self.augment else None
        weight = sent(self._places < torch.tensor(left)[:, None], self.device)
        images = self.pixels.views(held.images, self.views, parameters)
        return Batch(images, held.labels, weight.to(self.pixels.dtype))


def _ones(rows: int, device: torch.device, dtype: torch.dtype, clients: int) -> Tensor:
    return torch.ones(clients, rows, device=device, dtype=dtype)


def blocks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """The range from `start` to `stop`, in pieces of at most that size."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)


class TestSamples:
    """`TestData` from the test shards; every rank holds them all."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        *,
        device: torch.device,
        dtype: torch.dtype,
        channels_last: bool = False,  # how images lie in memory
    ) -> None:
        self.shape = manifest.shape
        self.pixels = Pixels(manifest, device, dtype, channels_last=channels_last)
        held = read_part(folder, manifest, manifest.test, self.pixels.innermost)
        self.images, self.labels = held.to(device)

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Normalised images of samples start...stop, `size` at a time."""
        for chunk in torch.split(self.images[start:stop], size):
            yield self.pixels.plain(chunk)
