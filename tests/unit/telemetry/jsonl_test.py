"""Does no line of metrics.jsonl get lost, torn or doubled?"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from fedcore.telemetry.events import ResumeEvent, WarningEvent
from fedcore.telemetry.jsonl import JsonlSink, Tail, last_of_each, read_events
from tests.unit.telemetry.made_up import client_event, round_event


def test_written_is_read(tmp_path: Path) -> None:
    path, told = tmp_path / "metrics.jsonl", list[str]()
    sink = JsonlSink(path, told.append)
    events = [client_event(0), client_event(1), round_event()]
    sink.write(events)
    assert read_events(path) == [e.record() for e in events]  # on disk before close
    sink.close()
    assert not told


def test_a_batch_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, write = list[int](), os.write
    sink = JsonlSink(tmp_path / "metrics.jsonl", print)

    def counted(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", counted)
    sink.write([client_event(k) for k in range(50)])
    assert len(sizes) == 1


def test_full_disk_keeps_lines_and_warns_once(tmp_path: Path) -> None:
    path, told = tmp_path / "metrics.jsonl", list[str]()
    path.symlink_to("/dev/full")
    sink = JsonlSink(path, told.append)
    for round in range(3):
        sink.write([round_event(round)])
    assert len(told) == 1
    assert "No space left" in told[0]
    sink.close()
    assert told[1].startswith("3 lines")


def test_disk_with_room_again_gets_all_lines_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, room = tmp_path / "metrics.jsonl", os.write, [100]

    def tight(fd: int, data: bytes) -> int:
        """A disk that takes 100 bytes, in the middle of a line, and then none."""
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(fd, data[: room[0]])
        room[0] -= taken
        return taken

    sink = JsonlSink(path, lambda words: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", tight)
        sink.write([round_event(0)])
        sink.write([round_event(1)])
    assert path.stat().st_size == 100
    sink.close()
    assert [r["round"] for r in read_events(path)] == [0, 1]
    assert path.read_bytes().count(b"\n") == 2


def test_missing_directory_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "later" / "metrics.jsonl"
    sink = JsonlSink(path, lambda words: None)
    sink.write([round_event(0)])
    path.parent.mkdir()
    sink.write([round_event(1)])
    assert [r["round"] for r in read_events(path)] == [0, 1]


def test_half_line_of_a_killed_writer_is_healed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlSink(path, print).write([round_event(0)])
    with path.open("a") as file:
        file.write('{"event": "round", "rou')
    assert [r["round"] for r in read_events(path)] == [0]  # left out while it is the last
    JsonlSink(path, print).write([round_event(1)])
    assert [r["round"] for r in read_events(path)] == [0, 1]


def test_whole_file_is_not_healed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for round in range(2):
        JsonlSink(path, print).write([round_event(round)])
    assert b"\n\n" not in path.read_bytes()


def test_repeated_rounds_count_once_and_the_last_wins() -> None:
    events = [
        client_event(0, base_loss=1.0),
        client_event(1),
        round_event(0),
        WarningEvent(0, "a"),
        WarningEvent(0, "b"),
        ResumeEvent(0, "x"),
        client_event(0, base_loss=2.0),
        round_event(0),
        client_event(0, 1),
    ]
    kept = last_of_each(e.record() for e in events)
    assert [r["event"] for r in kept] == [
        *["client", "client", "round", "warning", "warning", "resume", "client"]
    ]
    assert kept[0]["base_loss"] == 2.0


def test_a_tail_reads_each_line_once_however_the_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcore.telemetry.jsonl.PIECE", 7)
    path, tail, read = tmp_path / "metrics.jsonl", Tail(tmp_path / "metrics.jsonl"), list[dict]()
    records = [e.record() for e in (client_event(0), client_event(1), round_event())]
    data = b"".join(json.dumps(r).encode() + b"\n" for r in records)
    read += tail.read()  # not there yet
    for end in range(0, len(data) + 40, 40):
        path.write_bytes(data[:end])
        assert not tail.is_replaced()
        read += tail.read()
    assert read == records


@pytest.mark.parametrize("way", ["moved away", "cut"])
def test_a_tail_begins_anew_when_the_file_is_another_one(tmp_path: Path, way: str) -> None:
    path, tail = tmp_path / "metrics.jsonl", Tail(tmp_path / "metrics.jsonl")
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail.is_replaced()
    assert len([*tail.read()]) == 2
    if way == "moved away":
        path.rename(tmp_path / "old.jsonl")
        assert not tail.is_replaced()  # nothing to begin with
    path.write_text('{"b": 1}\n')
    assert tail.is_replaced()
    assert [*tail.read()] == [{"b": 1}]
    assert not tail.is_replaced()
