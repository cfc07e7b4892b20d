"""What travels between server and clients in a round, Order and Upload, and reports of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from fedcore.clients.layout import Tensors
from fedcore.clients.state import ClientState
from fedcore.clients.step import Targets

Ticker = Callable[[int], None]
"""Told the number of samples after each step."""


class Order(NamedTuple):
    """What the server sends the clients at the start of a round."""

    round: int
    progress: float  # share of all rounds done
    factor: float  # s(p) at the start of the round
    spread: float  # client-prototype std over its first-round value
    targets: Targets
    weights: Tensors | None  # averaged parameters and buffers; None = client models persist
    participants: frozenset[int]  # the clients of this round


class Upload(NamedTuple):
    """What the clients of a rank send the server at the end of a round; K that took part."""

    clients: Tensor  # [K] int64
    prototypes: Callable[[Tensor], Tensor]  # of clients at places [n] of these: [n, C, D]; or
    # mean features per class, as the algorithm says. Not all at once: there may be many
    label_counts: Tensor  # [K, C]
    readings: Tensor  # [K, len(READINGS) + n] per client, the columns READINGS, then n loss terms


class Fold(Protocol):
    """What adds up the models of a round, lane by lane."""

    limits: Sequence[Tensor]  # of parameters, and of each batch statistic; of their magnitudes

    def add(self, clients: Sequence[int], part: ClientState) -> None:
        """Add the models of these clients, whose round is over. part: their state, K first."""
