"""Does making shards end, say what was wrong, and leave nothing but what the next time removes?"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_shards import write as writing
from data_shards.manifest import Manifest
from data_shards.samples import File, Files
from data_shards.sources import Arrays, Source
from data_shards.tars import problems
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from fedcore.errors import ShardError, StorageError
from launcher import prepare
from tests import damage
from tests.unit.fuzz.shards_fuzz_test import FILES, file_of

pytestmark = pytest.mark.broad

SHAPE = (1, 8, 8)


def arrays(count: int = 40) -> Arrays:
    pixels = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    return Arrays(pixels, np.arange(count, dtype=np.int64) % 4)


@dataclass(frozen=True)
class Failing(Arrays):
    """Samples, of which that row cannot be read."""

    row: int = 0
    error: BaseException = KeyboardInterrupt()

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        if self.row in rows:
            raise self.error
        return super().pixels(rows)


def failing(row: int, error: BaseException) -> Failing:
    return Failing(arrays().images, arrays().labels, None, row, error)


def made(folder: Path, samples: Any, parts: Sequence[NDArray[np.int64]], **more: Any) -> Manifest:
    source = Source(lambda root, split: samples, "digits", "", mean=(0.5,) * 3, std=(0.5,) * 3)
    test = FILES if samples.shape == FILES.shape else arrays()
    dealt = [Dealt(np.asarray(rows)) for rows in parts]
    return write(folder, "toy", source, samples, test, dealt, {}, **more)


def grey(folder: Path, samples: Any, parts: Sequence[NDArray[np.int64]]) -> Manifest:
    source = Source(lambda root, split: samples, "digits", "", mean=(0.5,), std=(0.5,))
    return write(folder, "toy", source, samples, arrays(), [Dealt(x) for x in parts], {})


FOUR = np.array_split(np.arange(40), 4)


@pytest.mark.parametrize(
    "error",
    [
        ShardError("photo.jpg", "cannot be decoded", "another"),
        KeyboardInterrupt(),
        MemoryError("no room"),
        ZeroDivisionError("a defect of a source"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("row", [0, 25, 39])
def test_a_source_that_fails_is_told_and_leaves_nothing(
    tmp_path: Path, row: int, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        grey(tmp_path / "toy", failing(row, error), FOUR)
    assert caught.value is error
    assert not list(tmp_path.iterdir())
    grey(tmp_path / "toy", arrays(), FOUR)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


@pytest.mark.parametrize("row", [0, 5, 12])
@pytest.mark.parametrize("original", [False, True])
def test_an_image_that_is_none_is_told_by_its_own_name(
    tmp_path: Path, row: int, original: bool
) -> None:
    """Before it is in the shards, where it would be found in the middle of an epoch."""

    def read(asked: int) -> File:
        good = file_of(asked)
        return File(good.extension, good.data[:40]) if asked == row else good

    files = Files(read, [f"photo {i}.jpg" for i in range(13)], FILES.labels, FILES.shape)
    with pytest.raises(ShardError, match=rf"^photo {row}\.jpg: cannot be decoded"):
        made(tmp_path / "toy", files, [np.arange(13)], original=original)
    assert not list(tmp_path.iterdir())


def test_a_tar_of_small_files_is_small_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blank image of a kilobyte may be a megabyte of pixels."""
    monkeypatch.setattr("data_shards.tar_writer.SHARD_BYTES", 2000)
    files = Files(file_of, FILES.names, FILES.labels, (3, 16, 16))
    source = Source(lambda root, split: files, "natural", "", mean=(0.5,) * 3, std=(0.5,) * 3)
    found = write(
        tmp_path / "toy", "toy", source, files, files, [Dealt(np.arange(13))], {}, original=True
    )
    assert [shard.samples for shard in found.clients[0].shards] == [2] * 6 + [1]


def test_the_first_error_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 clients, and the disk is full with the third file: few more are tried."""
    tried, kept = [], writing.write_shard

    def full(work: Path, file: str, content: Any, count: int) -> Any:
        tried.append(file)
        if len(tried) > 2:
            raise OSError(28, f"No space left for {file}")
        return kept(work, file, content, count)

    monkeypatch.setattr(writing, "write_shard", full)
    before = threading.active_count()
    clients = [np.array([k % 40]) for k in range(10_000)]
    with pytest.raises(StorageError, match=r"cannot write .*toy: No space left for client_0000"):
        grey(tmp_path / "toy", arrays(), clients)
    assert threading.active_count() <= before  # those of earlier tests may have ended
    assert len(tried) < 100
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_cancels_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has no room for another folder, while tars wait to be made."""
    tried, submit, go_on = [], writing._submit, threading.Event()

    def slow(*args: Any) -> Any:
        tried.append(args[0])
        go_on.wait(10)
        raise AssertionError("not looked at")

    def full(pool: Any, folder: Path, *rest: Any) -> Any:
        if folder.name == "client_00003":
            threading.Timer(0.2, go_on.set).start()
            raise OSError(28, "No space left on device")
        return submit(pool, folder, *rest)

    monkeypatch.setattr(writing, "THREADS", 1)
    monkeypatch.setattr(writing, "_write_raw", slow)
    monkeypatch.setattr(writing, "_submit", full)
    with pytest.raises(StorageError, match="No space left"):
        grey(tmp_path / "toy", arrays(), [np.array([k % 40]) for k in range(6)])
    assert len(tried) == 1, "the second waited"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_name_that_is_taken_is_told_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    folder, nobody = tmp_path / "toy", failing(0, AssertionError("was read"))
    if kind == "file":
        folder.write_text("mine")
    else:
        (tmp_path / "mine").mkdir()
        folder.symlink_to("mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match="a link or a file has its name"):
        grey(folder, nobody, FOUR)
    assert sorted(tmp_path.iterdir()) == before
    assert kind == "link" or folder.read_text() == "mine"


def config(store: Path, **more: Any) -> RunConfig:
    data = {"source": "digits", "store": str(store)}
    return RunConfig.of({"clients": {"count": 40}, "data": data | more})


def test_a_store_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("mine")
    with pytest.raises(StorageError, match=r"store.*(Not a directory|File exists)"):
        prepare.make(config(tmp_path / "store"))
    assert (tmp_path / "store").read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB and 300 files."""
    with damage.small_disk(tmp_path / "disk", "size=1m,nr_inodes=300") as disk:
        yield disk


@pytest.mark.root
def test_a_disk_that_is_really_full_is_told_soon(small_disk: Path) -> None:
    """Of bytes, then of files; and once there is room the same call makes them."""
    store = small_disk / "store"
    with pytest.raises(StorageError, match="No space left on device"):
        prepare.make(config(store))
    assert not [path for path in store.iterdir() if path.is_dir()]
    start = time.monotonic()
    with pytest.raises(StorageError, match="No space left on device"):
        grey(store / "toy", arrays(), [np.array([k % 40]) for k in range(10_000)])
    assert time.monotonic() - start < 20
    assert not [path for path in store.iterdir() if path.is_dir()]
    damage.remount(small_disk, "size=64m,nr_inodes=9000")
    folder = prepare.make(config(store))
    assert not problems(folder, Manifest.load(folder))


@pytest.mark.root
def test_a_store_that_may_only_be_read(small_disk: Path) -> None:
    """Whole shards are used, also by `make`; damaged or missing ones are told."""
    damage.remount(small_disk, "size=64m,nr_inodes=9000")
    folder = prepare.make(config(small_disk))
    damage.remount(small_disk, "ro")
    assert prepare.make(config(small_disk), repair=True) == folder
    with pytest.raises(StorageError, match=r"Read-only file system.*data\.store"):
        prepare.make(config(small_disk, alpha=0.7))
    damage.remount(small_disk, "rw")
    (folder / "test/00000.tar").unlink()
    damage.remount(small_disk, "ro")
    with pytest.raises(StorageError, match=r"Read-only file system.*data\.store"):
        prepare.make(config(small_disk), repair=True)


CALL = """
import json, sys, time
from fedcore.config import RunConfig
from launcher import prepare
told = []
def tick(name):
    print(name, flush=True)
    told.append(name)
    time.sleep(len(told) == 1)
prepare.make(RunConfig.of(json.loads(sys.argv[1])), tick)
"""


def maker(store: Path) -> subprocess.Popen[str]:
    """A process that makes shards, tells of each part and waits a second after the first."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", CALL, json.dumps(config(store).plain())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def test_of_two_writers_one_is_killed_and_the_other_makes_them(tmp_path: Path) -> None:
    """The lock of a dead process is free; what it had written is begun anew."""
    both = [maker(tmp_path) for _ in range(2)]
    try:
        ready, _, _ = select.select([one.stdout for one in both], [], [], 60)
        (struck,) = [one for one in both if one.stdout in ready]
        struck.send_signal(signal.SIGKILL)
        rest = {one: one.communicate(timeout=60)[0] for one in both}
        (alive,) = [one for one in both if one is not struck]
    finally:
        for one in both:
            one.kill()
    assert struck.returncode == -signal.SIGKILL
    assert alive.returncode == 0
    assert "test" not in rest[struck]
    assert "test" in rest[alive]
    folder = prepare.store_dir(config(tmp_path))
    assert not problems(folder, Manifest.load(folder))
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, f".{folder.name}.lock"}
