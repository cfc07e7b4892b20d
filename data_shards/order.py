"""In which order an epoch goes through a client's samples: a pure function of sizes and a seed.

A shuffle buffer that holds all of a client's samples gives a uniformly random order. A smaller one
works as in a stream: tars in random order one behind another, that sequence cut into windows of the
buffer's size from a random place on, each window shuffled. So a reader that streams holds no more
than a window, may begin at any step, and yields what a reader of everything yields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.batch import held_out_of
from fedcore.seeds import generator as generator_at


class Order(NamedTuple):
    """The rows of an epoch, and where its windows begin."""

    rows: Tensor  # int64 [n]
    starts: tuple[int, ...]  # into rows; ascending, the first is 0
    tars: tuple[int, ...]  # numbers of the tars in the order in which they are needed

    @property
    def windows(self) -> list[tuple[int, int]]:
        """(first, one after the last) place of each window."""
        return list(zip(self.starts, (*self.starts[1:], len(self.rows)), strict=True))


def epoch_order(
    rows: Tensor, sizes: Sequence[int], buffer: int, generator: torch.Generator
) -> Order:
    """A random order of `rows` [n] (ascending, of tars with those numbers of samples)."""
    n = len(rows)
    if n <= buffer:
        return Order(rows[torch.randperm(n, generator=generator)], (0,), tuple(range(len(sizes))))
    ends = torch.tensor(sizes).cumsum(0)
    tar = torch.bucketize(rows, ends, right=True)  # of each row
    tars = torch.randperm(len(sizes), generator=generator)
    in_tars = rows[torch.argsort(torch.argsort(tars)[tar], stable=True)]
    first = 1 + int(torch.randint(buffer, (), generator=generator))  # samples of the first window
    starts = (0, *range(first, n, buffer))
    lengths = [stop - start for start, stop in zip(starts, (*starts[1:], n), strict=True)]
    shuffled = [torch.randperm(length, generator=generator) for length in lengths]
    places = torch.cat([start + x for start, x in zip(starts, shuffled, strict=True)])
    return Order(in_tars[places], starts, tuple(tars.tolist()))


def kept_back(n: int, share: float, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Rows held out of n and rows trained on, ascending; a single sample is in both."""
    held = held_out_of(n, share)
    order = torch.randperm(n, generator=generator_at(seed, client, 0, "held out"))
    return (order[:held] if held else order), order[held:].sort().values
