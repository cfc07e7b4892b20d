"""The records that cross from data_shards to fedcore, which do not know each other.

Letters, everywhere: K clients in a lane, N all clients, B samples, V views, C classes,
D feature width, T tokens of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Batch(NamedTuple):
    """One step's samples for those K clients of a lane whose epoch is not over.

    A client's last batch is filled up to B rows with other samples of the same client, of weight 0:
    they feed batch-norm statistics (which so never see a single image) but no loss.
    """

    images: Tensor  # [K, V, B, channels, height, width], augmented and normalised
    labels: Tensor  # [K, B] int64
    weight: Tensor  # [K, B] 1 for a sample of this batch, 0 for filling


def sent(values: Tensor, device: torch.device) -> Tensor:
    """`values` on the device; the copy is not waited for."""
    return pinned_for(values, device).to(device, non_blocking=True)


def pinned_for(values: Tensor, device: torch.device) -> Tensor:
    """`values`, in pinned memory if the device is a GPU: then their copy need not be waited for."""
    return values.pin_memory() if device.type == "cuda" and not values.is_cuda else values


def held_out_of(samples: int, share: float) -> int:
    """How many of a client's samples a share holds out: rounded up, and one is left to train on."""
    return max(0, min(samples - 1, math.ceil(share * samples)))


class TrainData(Protocol):
    """The training samples of the clients of one rank."""

    def samples(self, client: int) -> int:
        """How many samples that client holds."""

    def trained(self, client: int) -> int:
        """How many of them one local epoch goes through: all that are not held out."""

    def label_counts(self, client: int) -> Tensor:
        """Label histogram [C] int64 of that client."""

    def steps(self, client: int) -> int:
        """Batches in one local epoch of that client."""

    def epoch(
        self, clients: Sequence[int], round: int, epoch: int, first: int = 0
    ) -> Iterator[Batch]:
        """The batches of one local epoch for a lane; as many as its longest client has.

        clients: those with the most steps come first, so that a batch is of the first K of them.
        first: begin with that batch; those before it are not made.
        """

    def ahead(self, clients: Sequence[int], round: int, epoch: int) -> None:
        """That epoch of a lane will be asked for soon, from its first batch on: what takes long
        may begin. One is announced at a time."""

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        """One batch of samples that `epoch` never yields; only asked for if a share is held out."""


class TestData(Protocol):
    """The test samples, the same on every rank. Used to report, never to choose."""

    labels: Tensor  # [M] int64
    shape: tuple[int, int, int]  # channels, height, width of an image

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Normalised images [<= size, channels, height, width] of samples start..stop, in order."""


class ValidationData(Protocol):
    """Samples set aside of each client's own data, never trained on. Used as `TestData` is."""

    samples: Mapping[int, int]  # of each client of the whole run that has some

    def chunks(self, client: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images [<= size, channels, height, width] and labels [<= size] int64 of one of
        this rank's clients, in order; it has some."""


class TokenData(Protocol):
    """Token sequences of one training stream (a run's, or one client's) and of held-out text."""

    vocab_size: int
    tokens: int  # of the training text
    bytes_per_token: float  # of the held-out text, to turn nats per token into bits per byte

    def batch(self, step: int, size: int, rows: range) -> Tensor:
        """Rows `rows` of step `step`'s batch of `size` sequences: int64 [len(rows), T + 1].

        A pure function of the seed and its arguments: any rank, any resume gives the same rows.
        """

    def held_out(self) -> Tensor:
        """All held-out text in order: int64 [windows, T + 1]; a window's last token is the first
        of the next, so that each token but the first is predicted once. The last tokens, fewer
        than T, that fill no window are left out."""
