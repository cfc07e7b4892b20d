"""Batches of a lane from windows as they come, the next of which is made ahead in a thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

import torch

from data_shards.resident import Held

T = TypeVar("T")


class Ahead(Generic[T]):
    """The items of a generator: the first is made at once, each other while the last is used."""

    def __init__(self, pool: Executor, source: Generator[T, None, None]) -> None:
        self.pool, self.source = pool, source
        self._begin()

    def _begin(self) -> None:
        self.future: Future[T | None] = self.pool.submit(next, self.source, None)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self.future.result()
        if item is None:
            raise StopIteration
        self._begin()
        return item

    def close(self) -> None:
        """Make no more; waits for one that is being made, for its generator cannot be closed."""
        if not self.future.cancel():
            self.future.exception()
        self.source.close()


class StreamedClient:
    """The samples of one client in the order of an epoch, from windows as they come."""

    def __init__(
        self,
        windows: Ahead[tuple[int, Held]],  # each with the place of its first sample
        head: Callable[[], Held],  # reads the first B samples
        samples: int,
        size: int,
    ) -> None:
        self.windows, self.read_head, self.samples, self.size = windows, head, samples, size
        self.start, self.stop = 0, 0  # of the newest window
        self.held: Held | None = None
        self.head: Held | None = None  # the first B samples, which fill up the last batch

    def batch(self, step: int) -> list[Held]:
        """B samples in pieces, those after the last from the first on; steps only go up."""
        start = step * self.size
        found = self._between(start, min(start + self.size, self.samples))
        missing = start + self.size - self.samples
        if missing > 0:
            head = self._head()
            found.append(head.at(torch.arange(missing) % len(head.labels)))
        return found

    def _between(self, start: int, stop: int) -> list[Held]:
        """Samples of places start...stop of the epoch."""
        found = []
        while start < stop:
            held = self._window(start)
            found.append(held.between(start - self.start, stop - self.start))
            start += len(found[-1].labels)
        return found

    def _window(self, place: int) -> Held:
        """The one with that place; windows only go up."""
        while self.held is None or place >= self.stop:
            self.start, self.held = next(self.windows)
            self.stop = self.start + len(self.held.labels)
            if self.start == 0 and self.stop >= self.size:
                self.head = self.held.between(0, self.size)
        return self.held

    def _head(self) -> Held:
        if self.head is None:  # gone on with in its middle, or its first window was a short one
            self.head = self.read_head()
        return self.head


class StreamedLane:
    """`Lane` of clients, those with the most steps first."""

    def __init__(
        self,
        clients: Sequence[StreamedClient],
        together: Callable[[Sequence[Sequence[Held]]], Held],
        counts: Sequence[int],  # how many take part in each step
        first: int,  # the number of the first of them
    ) -> None:
        self.clients, self.together, self.counts, self.first = clients, together, counts, first

    def __iter__(self) -> Iterator[Held]:
        for step, count in enumerate(self.counts, self.first):
            yield self.together([client.batch(step) for client in self.clients[:count]])

    def close(self) -> None:
        """Stop reading ahead; what was read is thrown away."""
        for client in self.clients:
            client.windows.close()
