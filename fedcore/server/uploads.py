"""How uploads reach every rank: in client-id order, a bounded number of clients at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.batch import sent
from fedcore.clients.order import Upload
from fedcore.server.comm import Comm

NUMBERS = 1 << 18
"""32-bit numbers in one message: memory is bounded by it, and not by the number of clients."""


class Piece(NamedTuple):
    """The uploads of n clients that follow one another, on the CPU."""

    clients: Tensor  # [n] int64
    counts: Tensor  # [n, C] int64
    prototypes: Tensor  # [n, C, D] float64
    readings: Tensor  # [n, len(READINGS) + terms] float64


def pieces(comm: Comm, upload: Upload, participants: Collection[int]) -> Iterator[Piece]:
    """The uploads of `participants`, on every rank; without those that their ranks left out.

    upload: of this rank's clients. Collective.
    """
    places = {client: i for i, client in enumerate(upload.clients.tolist())}
    like = upload.prototypes(torch.zeros(0, dtype=torch.int64))  # [0, C, D]
    ids, step = sorted(participants), max(1, NUMBERS // _packed(upload, []).shape[1])
    for first in range(0, len(ids), step):
        some = ids[first : first + step]
        table = comm.sum(_rows(upload, [places.get(client) for client in some])).cpu()  # sync
        there = table[:, 0] == 1
        if there.any():
            yield _piece(torch.tensor(some)[there], table[there], upload, like)


def _rows(upload: Upload, places: list[int | None]) -> Tensor:
    """Rows [n, ...] of those clients, of which others have no place here: theirs are 0.

    A client is one rank's, so the sum of all ranks' bits is that rank's bits.
    """
    here = [row for row, place in enumerate(places) if place is not None]
    packed = _packed(upload, [place for place in places if place is not None])
    rows = packed.new_zeros(len(places), packed.shape[1])
    return rows.index_copy_(0, sent(torch.tensor(here, dtype=torch.int64), rows.device), packed)


def _packed(upload: Upload, places: list[int]) -> Tensor:
    """Uploads as rows [n, ...] of 32-bit numbers: a 1, counts, bits of prototypes, of readings.

    So nothing is rounded, and float32 prototypes are not sent as float64.
    """
    at = torch.tensor(places, dtype=torch.int64)
    here = sent(at, upload.readings.device)
    counts = upload.label_counts[here].int()
    prototypes = upload.prototypes(at).flatten(1).contiguous().view(torch.int32)
    readings = upload.readings[here].contiguous().view(torch.int32)
    return torch.cat([counts.new_ones(len(at), 1), counts, prototypes, readings], 1)


def _piece(clients: Tensor, rows: Tensor, upload: Upload, like: Tensor) -> Piece:
    """What `_packed` packed."""
    classes, numbers = upload.label_counts.shape[1], 2 * upload.readings.shape[1]
    widths = [1, classes, rows.shape[1] - 1 - classes - numbers, numbers]
    _, counts, prototypes, readings = torch.split(rows, widths, dim=1)
    # copies: a single row is contiguous, but 64-bit numbers in it need not begin where one may
    values = _copied(prototypes).view(like.dtype).double()
    return Piece(
        clients,
        counts.long(),
        values.view(-1, *like.shape[1:]),
        _copied(readings).view(torch.float64),
    )


def _copied(bits: Tensor) -> Tensor:
    return bits.clone(memory_format=torch.contiguous_format)
