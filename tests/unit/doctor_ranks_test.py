"""Does the doctor see what is wrong between ranks? Each rank is a thread here, over one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from launcher.doctor import facts, roll, shared
from launcher.doctor.check import Check
from launcher.doctor.clocks import clocks, skew
from launcher.doctor.group import timed
from launcher.doctor.roll import Roll, ranks_in_words

pytestmark = pytest.mark.broad

Found = dict[int, list[Check]]


def ranks(count: int, look: Callable[[Roll], Iterable[Check]], patience: float = 6.0) -> Found:
    """What each of so many ranks found."""
    store, found = HashStore(), {}

    def one(rank: int) -> None:
        mine = Roll(rank, count, store, store, lambda finding: None, patience)
        found[rank] = list(look(mine))

    threads = [threading.Thread(target=one, args=[rank], daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == count, "a rank hangs or broke"
    return found


def names(found: Found, ok: bool) -> set[tuple[int, str]]:
    return {(rank, c.name) for rank, checks in found.items() for c in checks if c.ok == ok}


def test_one_folder_is_found_to_be_one(tmp_path: Path) -> None:
    found = ranks(3, lambda mine: shared.shared(tmp_path, mine))
    assert names(found, False) == set()
    assert names(found, True) >= {(1, "shared folder"), (2, "atomic rename"), (2, "lock")}
    assert not list(tmp_path.iterdir())  # nothing stays


def test_a_rank_with_another_folder_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("shared", "mine", "shared")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    found = ranks(3, lambda mine: shared.shared(folders[mine.rank], mine), patience=1.0)
    assert names(found, False) == {(1, "shared folder")}
    assert "another folder here" in found[1][0].detail
    assert (2, "lock") in names(found, True)


def test_a_folder_rank_0_cannot_write_to_holds_up_nobody(tmp_path: Path) -> None:
    def look(mine: Roll) -> list[Check]:
        return roll.tried("folder", lambda: shared.shared(tmp_path / "nowhere", mine))

    assert names(ranks(2, look), False) == {(0, "folder")}


def test_a_lock_that_holds_nobody_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLock:
        def release(self) -> None: ...

    monkeypatch.setattr(shared, "alone_in", lambda path: NoLock())
    found = ranks(2, lambda mine: shared.shared(tmp_path, mine))
    assert names(found, False) == {(1, "lock")}


def test_a_file_replaced_in_place_is_seen_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_place(path: Path, text: str) -> None:
        with path.open("w") as file:
            for at in range(0, len(text), 4096):
                file.write(text[at : at + 4096])
                file.flush()

    monkeypatch.setattr(shared, "write_atomically", in_place)
    assert (1, "atomic rename") in names(ranks(2, lambda r: shared.shared(tmp_path, r)), False)


def test_one_process_tries_rename_and_lock_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ranks(1, lambda mine: shared.shared(tmp_path, mine))
    assert names(found, True) == {(0, "atomic rename"), (0, "lock")}
    monkeypatch.setattr(shared, "alone_in", lambda path: threading.Event())  # locks nothing
    monkeypatch.setattr(threading.Event, "release", lambda self: None, raising=False)
    assert names(ranks(1, lambda mine: shared.shared(tmp_path, mine)), False) == {(0, "lock")}


def test_a_clock_that_is_ahead_is_named_and_by_how_much() -> None:
    ahead = {0: 0.0, 1: 0.2, 2: 7.5}
    found = ranks(3, lambda r: clocks(r, lambda: time.time() + ahead[r.rank]))
    (check,) = found[0]
    assert not check.ok
    assert check.figures["seconds"] == pytest.approx(7.5, abs=0.1)
    assert "rank 2 is ahead of rank 0" in check.detail
    assert not check.needed  # training does not depend on it


def test_clocks_that_agree_are_fine_with_their_uncertainty() -> None:
    (check,) = ranks(2, clocks)[0]
    assert check.ok
    assert check.figures["uncertainty_seconds"] > 0
    assert skew({0: (0.0, 0.0), 1: (-0.9, 0.1)}).figures["seconds"] == pytest.approx(0.9)


def told(count: int, look: Callable[[Roll], Iterator[Check]], deaf: int) -> dict[int, Check]:
    """What is told on each rank but `deaf`, which never comes, when a step takes too long."""
    store, found = HashStore(), {}
    for rank in range(count):
        if rank != deaf:
            mine = Roll(rank, count, store, store, lambda c, r=rank: found.update({r: c}), 0.2)
            step = threading.Thread(target=mine.step, args=["work", lambda r=mine: look(r)])
            step.daemon = True
            step.start()
    until = time.monotonic() + 10
    while len(found) < count - (deaf >= 0) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "GRACE", 0.5)
    found = told(3, lambda mine: iter([Check("x", True, "")]), deaf=1)
    assert set(found) == {0, 2}
    assert all("rank 1 died or hangs" in check.detail and check.bad for check in found.values())


def test_a_rank_that_lives_but_does_not_end_its_step_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roll, "GRACE", 0.5)

    def look(mine: Roll) -> Iterator[Check]:
        time.sleep(5 if mine.rank == 1 else 0)
        yield Check("x", True, "")

    found = told(2, look, deaf=-1)
    assert all("rank 1 did not end step 'work' within 0.2 s" in c.detail for c in found.values())


def of(node: str, **other: object) -> dict[str, object]:
    same = dict.fromkeys(facts.SAME, "1") | {"node": node, "cores": [0, 1], "gpu": ""}
    return same | other


def test_ranks_that_differ_are_named_with_their_nodes() -> None:
    everyone = [of("n1"), of("n1"), of("n2", packages="torch 2.9.0"), of("n2", config="other")]
    found = [check for check in facts.alike(everyone, 1) if check.bad]
    assert [check.name for check in found] == ["same packages", "same config"]
    assert found[0].detail == "rank 2 (n2): torch 2.9.0; ranks 0-1, 3 (n1, n2): 1"
    assert not any(check.bad for check in facts.alike([of("n1"), of("n2")], 1))


def test_a_node_without_cards_beside_one_with_them_is_named() -> None:
    everyone = [of("n1", device="cuda"), of("n2", device="cpu"), of("n1", device="cuda")]
    (check,) = [check for check in facts.alike(everyone, 1) if check.bad]
    assert check.detail == "rank 1 (n2): cpu; ranks 0, 2 (n1): cuda"


def test_two_ranks_on_one_card_are_bad() -> None:
    everyone = [of("n1", gpu="GPU-1"), of("n1", gpu="GPU-1"), of("n1", gpu="GPU-2")]
    (check,) = [check for check in facts.alike(everyone, 1) if check.bad]
    assert check.detail == "ranks 0-1 use one GPU"


def test_more_threads_than_cores_are_told() -> None:
    assert facts.cores([of("n1"), of("n1")], threads=1).ok
    assert not facts.cores([of("n1"), of("n1")], threads=2).ok  # 4 threads on 2 cores
    assert not facts.cores([of("n1", cores=[0]), of("n1", cores=[1])], threads=2).ok
    assert facts.cores([of("n1"), of("n2")], threads=2).ok


def test_the_code_of_a_rank_is_known_by_its_files() -> None:
    assert facts.code_sha256() == facts.code_sha256()
    assert len(facts.code_sha256()) == 64


def test_a_sum_that_is_wrong_is_seen() -> None:
    cpu = torch.device("cpu")

    def of_two(values: torch.Tensor) -> None:
        values.mul_(3)  # rank 0 brings 1, rank 1 brings 2 times the pattern

    right, seconds = timed(of_two, 4096, 3, rank=0, ranks=2, device=cpu)
    assert right
    assert seconds > 0
    assert not timed(lambda values: None, 4096, 3, 0, 2, cpu)[0]


def test_ranks_are_said_in_runs() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([6, 0, 1, 2]) == "ranks 0-2, 6"
