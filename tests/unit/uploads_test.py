"""Does every rank get all uploads, in id order, whatever the pieces and the ranks?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedcore.clients.order import Upload
from fedcore.server import uploads
from fedcore.server.comm import LocalComm
from fedcore.server.uploads import pieces

# an even number of classes: the 64-bit numbers of a row then begin at an odd 32-bit one
CLASSES, WIDTH, COLUMNS, CLIENTS = 4, 4, 11, 9
DRAWS = torch.Generator().manual_seed(1)
PROTOTYPES = torch.randn(CLIENTS, CLASSES, WIDTH, generator=DRAWS)
COUNTS = torch.randint(0, 9, (CLIENTS, CLASSES), generator=DRAWS)
READINGS = torch.randn(CLIENTS, COLUMNS, generator=DRAWS, dtype=torch.float64)
READINGS[4, 2], READINGS[5, 3], PROTOTYPES[1, 0, 0] = torch.nan, torch.inf, -0.0
WANTED = {"prototypes": PROTOTYPES.double(), "counts": COUNTS, "readings": READINGS}
OWNED = [[2, 3, 8], [], [0, 1, 4, 5, 6, 7]]


class World(LocalComm):
    """One rank of three whose messages are put together by hand."""

    size = len(OWNED)

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank  # type: ignore[misc]
        self.sent: list[Tensor] = []
        self.answers: list[Tensor] = []

    def sum(self, values: Tensor) -> Tensor:
        self.sent.append(values)
        return self.answers.pop(0) if self.answers else values


def upload_of(clients: list[int], dtype: torch.dtype) -> Upload:
    rows = torch.tensor(clients, dtype=torch.int64)
    held = PROTOTYPES[rows].to(dtype)
    return Upload(rows, lambda places: held[places], COUNTS[rows], READINGS[rows])


@pytest.mark.parametrize("numbers", [1 << 20, 100, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uploads_arrive_in_id_order_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, numbers: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(uploads, "NUMBERS", numbers)
    participants, left_out = {0, 2, 3, 5, 6, 8}, 3
    mine = [[k for k in own if k in participants and k != left_out] for own in OWNED]
    worlds = [World(rank) for rank in range(3)]
    for world, own in zip(worlds, mine, strict=True):  # what each of them sends
        list(pieces(world, upload_of(own, dtype), participants))
    messages = [
        torch.stack(rows).sum(0).int()
        for rows in zip(*(world.sent for world in worlds), strict=True)
    ]
    for world, own in zip(worlds, mine, strict=True):
        world.answers = list(messages)
        found = list(pieces(world, upload_of(own, dtype), participants))
        clients = torch.cat([piece.clients for piece in found])
        assert clients.tolist() == [0, 2, 5, 6, 8]
        assert all(len(piece.clients) for piece in found)
        assert len(found) == {1 << 20: 1, 1: 5}.get(numbers, len(found))
        for name, values in WANTED.items():
            got = torch.cat([getattr(piece, name) for piece in found])
            assert got.numpy().tobytes() == values[clients].numpy().tobytes()


def test_nobody_sends_more_than_a_message_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "NUMBERS", 100)
    world = World(0)
    everyone = set(range(CLIENTS))
    list(pieces(world, upload_of(OWNED[0], torch.float32), everyone))
    assert len(world.sent) > 1
    assert max(rows.numel() for rows in world.sent) <= 100
