"""Is an epoch that was announced the same, read before it is asked for, and given up in peace?"""

from __future__ import annotations

import gc
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from data_shards import stream
from data_shards.blocks import read_block
from fedcore.errors import ShardError
from tests.procs.runs import wait_for
from tests.unit.data_shards.faulty import BOTH
from tests.unit.data_shards.reading_test import LANES, data, equal, folder

__all__ = ["folder"]  # the fixture


def threads_of(streamed: Any) -> set[threading.Thread]:
    reader = streamed._reader
    return {*reader.readers._threads, *reader.assemblers._threads}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tars that were read."""
    files: list[str] = []

    def watched(folder: Path, manifest: Any, shard: Any) -> Any:
        files.append(shard.file)
        return read_block(folder, manifest, shard)

    monkeypatch.setattr(stream, "read_block", watched)
    return files


@BOTH
def test_announced_batches_are_those_that_were_not(folder: Path, streaming: bool) -> None:
    plain, announced = (data(folder, streaming=streaming) for _ in range(2))
    for lane in LANES:
        for epoch in (0, 1):
            wanted = list(plain.epoch(lane, 2, epoch))
            announced.ahead(lane, 2, epoch)
            found = list(announced.epoch(lane, 2, epoch))
            assert len(found) == len(wanted)
            assert all(equal(*pair) for pair in zip(found, wanted, strict=True))


@BOTH
def test_another_epoch_in_between_takes_nothing_from_it(folder: Path, streaming: bool) -> None:
    """A lane trains on while the next is announced; a resumed epoch is not the announced one."""
    plain, announced = (data(folder, streaming=streaming) for _ in range(2))
    for address in (([0], 0, 0, 0), ([0, 4], 0, 0, 0), ([4, 2], 1, 0, 0), ([4, 2], 0, 0, 1)):
        announced.ahead([4, 2], 0, 0)
        between = zip(announced.epoch(*address), plain.epoch(*address), strict=True)
        assert all(equal(*pair) for pair in between)
        pairs = zip(announced.epoch([4, 2], 0, 0), plain.epoch([4, 2], 0, 0), strict=True)
        assert all(equal(*pair) for pair in pairs)


def test_its_first_tars_are_read_before_it_is_asked_for_and_once(
    folder: Path, opened: list[str]
) -> None:
    streamed = data(folder, [0, 4], streaming=True, workers=1)
    streamed.ahead([0, 4], 0, 0)
    lane: Any = streamed._announced[1]  # type: ignore[index]
    wait_for(lambda: all(client.windows.future.done() for client in lane.clients), "windows", 10)
    # a window of 9 samples is in at most 4 of the 13 and 6 tars of 4; one and the next are ahead
    assert 2 <= len(opened) <= 2 * (4 + 2)
    assert len(list(streamed.epoch([0, 4], 0, 0))) == 13
    assert sorted(opened) == sorted({*opened})
    assert len(opened) == 19


def test_what_was_announced_and_never_came_leaves_no_memory_and_no_thread(folder: Path) -> None:
    streamed = data(folder, streaming=True)
    lanes = []
    for epoch in range(30):
        streamed.ahead([0, 4, 2], 0, epoch)
        lanes.append(weakref.ref(streamed._announced[1]))  # type: ignore[index]
    gc.collect()
    assert [lane() is None for lane in lanes] == [True] * 29 + [False]
    assert len(threads_of(streamed)) <= 4
    reader: Any = streamed._reader
    waiting = [pool.submit(int) for pool in (reader.readers, reader.assemblers)]
    assert [future.result(timeout=10) for future in waiting] == [0, 0]
    threads = threads_of(streamed)
    del streamed, reader, waiting
    gc.collect()
    wait_for(lambda: not any(thread.is_alive() for thread in threads), "threads to end", 10)
    assert lanes[-1]() is None


def test_damage_is_told_when_the_epoch_comes_and_not_before(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    streamed = data(copy, streaming=True)
    tar = copy / "client_00004" / "00001.tar"
    tar.write_bytes(b"x" * tar.stat().st_size)
    for _ in range(3):
        streamed.ahead([4], 0, 0)
    assert len(list(streamed.epoch([0], 0, 0))) == 13
    with pytest.raises(ShardError, match=r"client_00004/00001\.tar: damaged"):
        list(streamed.epoch([4], 0, 0))
    streamed.ahead([2, 3], 0, 0)
    assert len(list(streamed.epoch([2, 3], 0, 0))) == 2


def test_an_announced_lane_waits_with_one_window_of_each_client(folder: Path) -> None:
    streamed = data(folder, streaming=True)
    streamed.ahead([0, 4], 0, 0)
    time.sleep(0.2)
    lane: Any = streamed._announced[1]  # type: ignore[index]
    for client in lane.clients:
        start, held = client.windows.future.result(timeout=10)
        assert start == 0
        assert len(held.labels) <= 9
        assert torch.is_tensor(held.images)
        assert client.held is None
