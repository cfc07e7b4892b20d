"""Does a wish for a pause reach every rank, once?"""

from __future__ import annotations

import time

import pytest

from fedcore.errors import CollectiveError
from fedcore.server.comm import LocalComm
from fedcore.server.pause import Pauses, Wish
from launcher import heartbeat
from launcher.heartbeat import Heartbeat
from tests.procs.runs import wait_for


class DictStore:
    """A rendezvous store in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.held[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.held[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Pauses]:
    """The wishes of three ranks with a heartbeat each."""
    monkeypatch.setattr(heartbeat, "BEAT", 0.02)
    store, lost = DictStore(), list[CollectiveError]()
    pauses = [Pauses(leads=rank == 0, alone=False) for rank in range(3)]
    beats = [Heartbeat(rank, 3, store, 30.0, p, lost.append) for rank, p in enumerate(pauses)]
    yield pauses
    for beat in beats:
        beat.end()
    assert not lost


def test_a_stop_asked_of_one_rank_stops_all(ranks: list[Pauses]) -> None:
    assert [p.wish() for p in ranks] == [Wish.GO_ON] * 3
    ranks[2].stop_requested = True
    wait_for(lambda: all(p.wish() is Wish.STOP for p in ranks), "all to hear of it", 10)


def test_trouble_of_one_rank_lets_all_meet(ranks: list[Pauses]) -> None:
    ranks[1].alarm = True
    wait_for(lambda: all(p.wanted() for p in ranks), "all to hear of it", 10)
    for pauses in ranks:  # a list goes on with its next run
        pauses.begin(None)
    time.sleep(0.2)
    assert not any(p.wanted() for p in ranks)


def test_the_clock_of_the_leading_rank_asks_all_for_a_checkpoint_once(ranks: list[Pauses]) -> None:
    for pauses in ranks:
        pauses.begin(0.0005)
    wait_for(lambda: all(p.wish() is Wish.SAVE for p in ranks), "all to hear of it", 10)
    ranks[0].begin(None)  # no more of them
    time.sleep(0.2)
    for pauses in ranks:
        pauses.agree(LocalComm(), pauses.wish())
    assert [p.wish() for p in ranks] == [Wish.GO_ON] * 3


def test_one_process_has_a_clock_of_its_own() -> None:
    pauses = Pauses()
    assert not pauses.wanted()
    pauses.begin(1e-9)
    assert pauses.wish() is Wish.SAVE
    assert pauses.agree(LocalComm(), Wish.SAVE, True, False) == (Wish.SAVE, [True, False])
    pauses.begin(10)
    assert not pauses.wanted()
