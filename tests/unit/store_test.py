"""Does it matter where clients rest between their turns? Only to memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore.clients.group import ClientGroup
from fedcore.clients.state import ClientState
from fedcore.clients.store import Away, Mapped, bytes_of, on_device
from fedcore.errors import StorageError
from tests.toy import ToyData, toy_group, toy_order

SIZES = [20, 9, 13, 1, 7]
EVERYONE = range(len(SIZES))


def in_memory(state: ClientState, device: torch.device) -> Away:
    return Away(state.each(torch.clone), device)


def on_disk(folder: Path, state: ClientState, device: torch.device) -> Away:
    room = Mapped(folder, bytes_of(state))
    return Away(state.each(room.place), device, room.forget)


def trained(name: str, width: int, store: Any, rounds: int = 3) -> ClientGroup:
    group = toy_group(name, EVERYONE, ToyData(SIZES), width=width, rounds=rounds, store=store)
    for round in range(rounds):
        group.train(toy_order(name, round, [k for k in EVERYONE if k != round]))
    return group


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", ["v14", "fedavg", "scaffold", "gradnorm", "hypergradient"])
def test_a_round_is_the_same_wherever_clients_rest(name: str, width: int, tmp_path: Path) -> None:
    wanted = trained(name, width, on_device).state.tensors()
    for store in (in_memory, partial(on_disk, tmp_path)):
        found = trained(name, width, store).state.tensors()
        assert found.keys() == wanted.keys()
        for key, values in wanted.items():
            assert torch.equal(found[key], values), key


def test_models_are_read_out_where_they_rest(tmp_path: Path) -> None:
    """Also right after a round, when the last lane may still be on its way back."""
    here, away = (trained("v14", 2, s) for s in (on_device, partial(on_disk, tmp_path)))
    for (ids, wanted), (others, found) in zip(
        here.models({0, 2, 4}), away.models({0, 2, 4}), strict=True
    ):
        assert ids == others
        for key, values in wanted.items():
            assert torch.equal(found[key], values), key


def test_a_file_leaves_no_name_behind(tmp_path: Path) -> None:
    room = Mapped(tmp_path, 1000)
    placed = room.place(torch.arange(7))
    room.forget()
    assert placed.tolist() == list(range(7))
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_is_told_before_the_run(tmp_path: Path) -> None:
    """A write to a mapped page without room would end the process by a signal."""
    with pytest.raises(StorageError, match=r"clients\.store=memory"):
        Mapped(tmp_path, 1 << 61)


def test_what_fails_in_the_thread_is_not_lost() -> None:
    class Broken(ClientState):
        def put(self, rows: Tensor, part: ClientState) -> None:
            raise OSError("no medium")

    def broken(state: ClientState, device: torch.device) -> Away:
        return Away(Broken(**vars(state.each(torch.clone))), device)

    with pytest.raises(OSError, match="no medium"):
        trained("v14", 1, broken)
