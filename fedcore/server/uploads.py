"""How uploads reach every rank: in client-id order, a bounded number of clients at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.clients.order import Upload
from fedcore.clients.state import sent
from fedcore.server.comm import Comm

NUMBERS = 1 << 18
"""32-bit numbers of all ranks in one message: memory is bounded by it and not by the clients."""


class Piece(NamedTuple):
    """The uploads of n clients that follow one another, on the CPU."""

    clients: Tensor  # [n] int64
    counts: Tensor  # [n, C] int64
    prototypes: Tensor  # [n, C, D] float64
    readings: Tensor  # [n, len(READINGS) + terms] float64


class Exchange:
    """Gathers what each rank has of the clients it owns."""

    def __init__(self, comm: Comm, owned: Sequence[Collection[int]]) -> None:
        self.comm = comm
        self._owner = {client: rank for rank, own in enumerate(owned) for client in own}

    def pieces(self, upload: Upload, participants: Collection[int]) -> Iterator[Piece]:
        """The uploads of `participants`; without those that their ranks left out. Collective."""
        places = {client: i for i, client in enumerate(upload.clients.tolist())}
        ids, row = sorted(participants), self._packed(upload, [])
        step = max(1, NUMBERS // row.shape[1])
        for first in range(0, len(ids), step):
            piece = self._piece(upload, places, ids[first : first + step])
            if len(piece.clients):
                yield piece

    def _piece(self, upload: Upload, places: dict[int, int], ids: list[int]) -> Piece:
        """One message: all ranks send as many rows as the one that owns most of these clients."""
        owned: list[list[int]] = [[] for _ in range(self.comm.size)]
        for client in ids:
            owned[self._owner[client]].append(client)
        longest = max(map(len, owned))
        mine = [places.get(client) for client in owned[self.comm.rank]]
        here = [i for i, place in enumerate(mine) if place is not None]
        packed = self._packed(upload, [place for place in mine if place is not None])
        rows = packed.new_zeros(longest, packed.shape[1])
        rows[sent(torch.tensor(here, dtype=torch.int64), rows.device)] = packed
        where = {k: r * longest + i for r, own in enumerate(owned) for i, k in enumerate(own)}
        table = self.comm.gather(rows).cpu()[[where[k] for k in ids]]  # sync: once a message
        there = table[:, 0] == 1
        return self._unpacked(upload, torch.tensor(ids)[there], table[there])

    def _packed(self, upload: Upload, places: list[int]) -> Tensor:
        """Uploads as rows [n, ...] of 32-bit numbers: a 1, counts, bits of prototypes, of readings.

        So nothing is rounded, and float32 prototypes are not sent as float64.
        """
        at = torch.tensor(places, dtype=torch.int64)
        here = sent(at, upload.readings.device)
        counts = upload.label_counts[here].int()
        prototypes = upload.prototypes(at).flatten(1).contiguous().view(torch.int32)
        readings = upload.readings[here].contiguous().view(torch.int32)
        return torch.cat([counts.new_ones(len(at), 1), counts, prototypes, readings], 1)

    def _unpacked(self, upload: Upload, clients: Tensor, rows: Tensor) -> Piece:
        classes, numbers = upload.label_counts.shape[1], 2 * upload.readings.shape[1]
        like = upload.prototypes(clients[:0])
        widths = [1, classes, rows.shape[1] - 1 - classes - numbers, numbers]
        _, counts, prototypes, readings = torch.split(rows, widths, dim=1)
        values = prototypes.contiguous().view(like.dtype).double()
        return Piece(
            clients,
            counts.long(),
            values.view(-1, *like.shape[1:]),
            readings.contiguous().view(torch.float64),
        )
