"""Does a round that paused, was saved and went on in another company end with the same bits?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedcore.algorithms import ALGORITHMS
from fedcore.clients.group import ClientGroup
from fedcore.clients.layout import Tensors
from fedcore.clients.order import Order, Upload
from tests.toy import ToyData, toy_group, toy_order

pytestmark = pytest.mark.broad

SIZES = [20, 9, 13, 1]  # 5, 3, 4 and 1 batches in each of two epochs
EVERYONE = [0, 1, 2, 3]
DATA = ToyData(SIZES)


def group(name: str, clients: Sequence[int], width: int) -> ClientGroup:
    return toy_group(name, clients, DATA, width=width, carry_momentum=True)


def order(name: str) -> Order:
    """Of round 1, without the client that sat it out."""
    return toy_order(name, 1, [0, 2, 3])


def saved(of: ClientGroup) -> tuple[Tensors, Tensors, list[int], Tensors]:
    """Copies of what a checkpoint keeps: state, work, clients under way, lanes under way."""
    work = of.within
    assert work is not None
    found, lanes = work.under_way(of.clients)

    def copied(tensors: Tensors) -> Tensors:
        """In the order of a file, which is not the model's."""
        return {k: tensors[k].clone() for k in sorted(tensors, reverse=True)}

    return copied(of.state.tensors()), copied(work.tensors()), found, copied(lanes)


def taken(of: ClientGroup, source: Sequence[int], kept: tuple) -> None:
    """Fill a group of some clients from a checkpoint of all, as reading one does."""
    state, work, found, lanes = kept
    rows = torch.tensor([source.index(k) for k in of.clients])
    for name, values in state.items():
        of.state.fill(name, torch.arange(len(rows)), values[rows])
    mine = [i for i, k in enumerate(found) if k in of.clients]
    of.go_on_from(
        {k: v[rows] for k, v in work.items()},
        [found[i] for i in mine],
        {k: v[torch.tensor(mine)] for k, v in lanes.items()} if mine else {},
    )


def rows_of(upload: Upload) -> dict[int, list[Tensor]]:
    """What was uploaded of each client."""
    prototypes = upload.prototypes(torch.arange(len(upload.clients)))
    columns = (prototypes, upload.label_counts, upload.readings)
    return {k: [c[i] for c in columns] for i, k in enumerate(upload.clients.tolist())}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_round_goes_on_from_any_step_in_other_hands(name: str, width: int) -> None:
    whole = group(name, EVERYONE, width)
    whole.train(toy_order(name, 0, EVERYONE))
    first = {k: v.clone() for k, v in whole.state.tensors().items()}
    wanted = whole.train(order(name))
    owners = [[1, 2, 3], [0]] if width == 3 else [[0, 3], [1, 2]]  # lanes stay together
    steps = 2 * (5 + 4 + 1) if width == 1 else 2 * (4 + 5)
    for stop in (0, 1, steps // 2, steps - 1):
        paused = group(name, EVERYONE, width)
        for key, values in first.items():
            paused.state.fill(key, torch.arange(4), values)
        left = iter([False] * stop)
        assert not paused.advance(order(name), pause=lambda left=left: next(left, True))
        kept = saved(paused)
        found: dict[int, list[Tensor]] = {}
        for clients in owners:
            other = toy_group(name, clients, DATA, width=width, carry_momentum=True)
            taken(other, EVERYONE, kept)
            upload = other.train(order(name))
            found |= rows_of(upload)
            for key, values in other.state.tensors().items():
                rows = torch.tensor([EVERYONE.index(k) for k in other.clients])
                assert torch.equal(values, whole.state.tensors()[key][rows]), (stop, key)
        for client, columns in rows_of(wanted).items():
            for mine, theirs in zip(found[client], columns, strict=True):
                assert torch.equal(mine.nan_to_num(), theirs.nan_to_num()), (stop, client)


def test_pausing_costs_no_step_and_no_sample() -> None:
    """Paused before every step, each sample is still counted once an epoch."""
    counted: list[int] = []
    often = group("v14", EVERYONE, 1)
    turns = iter(range(10_000))
    whole = toy_order("v14", 0, EVERYONE)
    while not often.advance(whole, counted.append, lambda: next(turns) % 2 == 0):
        pass
    upload = often.finish(whole)
    assert sum(counted) == 2 * sum(SIZES)
    assert upload.clients.tolist() == EVERYONE
    assert often.state.steps.tolist() == [10, 6, 8, 2]


def test_a_rank_without_clients_goes_on_too() -> None:
    """More ranks than lanes: nothing was saved of it."""
    idle = toy_group("v14", [], DATA)
    idle.go_on_from({}, [], {})
    assert idle.within is not None
    assert len(idle.train(order("v14")).clients) == 0
