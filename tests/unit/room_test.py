"""What happens to a lane that does not fit into memory?"""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from fedcore.clients import launch
from fedcore.clients.group import ClientGroup
from fedcore.clients.readings import Totals
from fedcore.clients.room import Answer, Room, is_out_of_memory
from fedcore.clients.store import Away
from fedcore.errors import ConfigError
from fedcore.server.average import ModelFold
from tests.toy import ToyData, toy_group, toy_order

SIZES = [20, 9, 13, 1]


def group(width: int, answer: Answer) -> ClientGroup:
    made = toy_group("v14", [0, 1, 2, 3], ToyData(SIZES), width=width)
    made.room = Room(answer)
    return made


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`small(n, step)`: a machine on which more than n clients at once do not fit, from a step on;
    n = 0: client 0, with its 20 samples, never does."""
    step = launch.local_step

    def limit(clients: int, after: int = 0) -> None:
        def checked(setup: Any, state: Any, *rest: Any) -> Any:
            alone_too_large = clients == 0 and int(state.steps.max()) >= 8
            too_many = len(state) > max(clients, 1) and int(state.steps.max()) >= after
            if too_many or alone_too_large:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return step(setup, state, *rest)

        monkeypatch.setattr(launch, "local_step", checked)

    return limit


@pytest.mark.parametrize("after", [0, 5])
def test_a_lane_is_halved_until_it_fits_and_ends_as_a_narrow_one(small: Any, after: int) -> None:
    """From the start or in the middle of the round: nothing of the failed try is left."""
    narrow, wide = group(1, "shrink"), group(4, "shrink")
    narrow.train(toy_order("v14", 0, [0, 1, 2, 3]))
    small(1, after)
    upload = wide.train(toy_order("v14", 0, [0, 1, 2, 3]))
    assert upload.clients.tolist() == [0, 1, 2, 3]
    for name, values in narrow.state.tensors().items():
        torch.testing.assert_close(wide.state.tensors()[name], values, rtol=0, atol=1e-12)
    assert [note.split(" ")[0] for note in wide.room.notes] == ["4", "2"]
    assert "2 at a time from now on" in wide.room.notes[0]
    wide.room.notes.clear()
    wide.train(toy_order("v14", 1, [0, 1, 2, 3]))
    assert not wide.room.notes, "the next round begins with lanes that fit"


def too_large(clients: int) -> None:
    if clients > 2:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize("where", ["take", "add", "record"])
def test_it_may_be_full_at_the_beginning_or_the_end_of_a_lane(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """When the models are fetched, or when they are added up: no client counts twice."""
    sums = []
    for full in (False, True):
        made = toy_group("fedavg", [0, 1, 2, 3], ToyData(SIZES), width=4)
        made.room, order = Room("shrink"), toy_order("fedavg", 0, [0, 1, 2, 3])
        start = made.start_of(order)
        assert start is not None
        fold = made.fold = ModelFold(start, {k: SIZES[k] / sum(SIZES) for k in range(4)})
        if full:
            owner = {"take": made.store, "add": fold, "record": Totals}[where]
            real = getattr(owner, where)

            def checked(first: Any, *rest: Any, real: Any = real) -> Any:
                too_large(len(first.steps) if isinstance(first, Totals) else len(first))
                return real(first, *rest)

            monkeypatch.setattr(owner, where, checked)
        assert made.train(order).clients.tolist() == [0, 1, 2, 3]
        assert len(made.room.notes) == full
        sums.append(fold.models_mean(fold.total, 1.0))
    for name, values in sums[0].items():
        torch.testing.assert_close(sums[1][name], values, rtol=0, atol=1e-9)


def test_nothing_of_a_lane_that_did_not_fit_stays_in_memory(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, held, seen = group(4, "shrink"), list[Any](), list[bool]()
    take = made.store.take

    def watched(*words: Any) -> Any:
        seen.extend(ref() is None for ref in held)
        part = take(*words)
        held.append(weakref.ref(part))
        return part

    monkeypatch.setattr(made.store, "take", watched)
    small(2)
    made.train(toy_order("v14", 0, [0, 1, 2, 3]))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("answer", ["shrink", "skip"])
def test_a_client_that_fits_only_without_the_next_one_is_trained(
    monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """Clients at home elsewhere are fetched ahead: that is given up before a client is."""
    made, step = group(1, answer), launch.local_step
    plain = group(1, answer)
    made.store = Away(made.state, torch.device("cpu"))

    def crowded(*words: Any) -> Any:
        if made.store._next is not None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return step(*words)

    monkeypatch.setattr(launch, "local_step", crowded)
    upload = made.train(toy_order("v14", 0, [0, 1, 2, 3]))
    assert upload.clients.tolist() == [0, 1, 2, 3]
    assert not made.room.notes
    monkeypatch.setattr(launch, "local_step", step)
    plain.train(toy_order("v14", 0, [0, 1, 2, 3]))
    for name, values in plain.state.tensors().items():
        assert torch.equal(made.state.tensors()[name], values)


def test_a_lane_that_was_fetched_beside_another_is_fetched_again() -> None:
    """There was no room for it then; the other is gone by the time it is wanted."""
    store = Away(group(1, "fail").state, torch.device("cpu"))
    fetch, tries = store._fetch, list[int]()

    def full_at_first(*words: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return fetch(*words)

    store._fetch = full_at_first  # type: ignore[method-assign]
    store.ahead(torch.tensor([1]))
    assert torch.equal(store.take(torch.tensor([1])).log_var, store.state.log_var[1:2])
    assert len(tries) == 2


def test_a_client_that_does_not_fit_alone_is_left_out_for_the_round(small: Any) -> None:
    skipping = group(2, "skip")
    before = skipping.state.take(torch.tensor([0]))
    small(0)
    upload = skipping.train(toy_order("v14", 0, [0, 1, 2, 3]))
    assert upload.clients.tolist() == [1, 2, 3]
    assert any("client 0 does not fit" in note for note in skipping.room.notes)
    after = skipping.state.take(torch.tensor([0]))
    for name, values in before.model_tensors().items():
        assert torch.equal(after.model_tensors()[name], values)


@pytest.mark.parametrize(("answer", "clients"), [("fail", 1), ("shrink", 0)])
def test_no_way_on_names_the_key_and_the_way_out(small: Any, answer: Any, clients: int) -> None:
    small(clients)
    with pytest.raises(ConfigError, match=r"clients\.out_of_memory.*clients\.out_of_memory=skip"):
        group(2, answer).train(toy_order("v14", 0, [0, 1, 2, 3]))


def test_a_mistake_in_a_term_is_no_lack_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    said = "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate"
    assert is_out_of_memory(RuntimeError(said))
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**52)
    assert is_out_of_memory(raised.value)
