"""Are shards made once, mended when damaged, and asked for by a command that works?"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

from data_shards.manifest import Manifest
from data_shards.resident import read_part
from data_shards.sources import Arrays, Source
from data_shards.tars import problems
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from fedcore.errors import ShardError, StorageError
from launcher import prepare
from launcher.commands import app
from tests.damage import flip
from tests.unit.data_shards.toy_store import sharded

call = CliRunner().invoke
DRAWS = np.random.default_rng(0)
ARRAYS = Arrays(DRAWS.integers(0, 256, (12, 1, 4, 4), dtype=np.uint8), np.arange(12) % 3)
SOURCE = Source(lambda root, split: ARRAYS, kind="digits", about="a test")


def toy(folder: Path) -> Path:
    """Shards of a client with all samples and one without any."""
    write(
        folder,
        "toy",
        SOURCE,
        ARRAYS,
        ARRAYS,
        [Dealt(np.arange(12)), Dealt(np.zeros(0, dtype=np.int64))],
        {},
    )
    return folder


def config(store: Path, **data: object) -> RunConfig:
    return RunConfig.of(
        {"clients": {"count": 3}, "data": {"source": "digits", "store": str(store), **data}}
    )


def words(store: Path) -> list[str]:
    return ["default", "--set", "data.source=digits", "--set", f"data.store={store}"]


@pytest.mark.parametrize("damaged", ["client_00001/00000.tar", "test/00000.tar", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_the_way_out_of_damage_is_one(tmp_path: Path, damaged: str, damage) -> None:
    """What every `ShardError` recommends gives back the same bytes."""
    assert call(app, ["shards", "make", *words(tmp_path)]).exit_code == 0
    (file,) = tmp_path.rglob(damaged)
    written = file.read_bytes()
    damage(file)
    assert call(app, ["shards", "verify", *words(tmp_path)]).exit_code == 3
    assert call(app, ["shards", "make", *words(tmp_path)]).exit_code == 0
    assert file.read_bytes() == written
    assert call(app, ["shards", "verify", *words(tmp_path)]).exit_code == 0


def test_undamaged_shards_are_left_alone(tmp_path: Path) -> None:
    folder = prepare.make(config(tmp_path))
    before = (folder / "manifest.json").stat()
    prepare.make(config(tmp_path), repair=True)
    assert (folder / "manifest.json").stat().st_ino == before.st_ino


def test_verify_names_every_bad_file(tmp_path: Path) -> None:
    folder = prepare.make(config(tmp_path))
    bad = [folder / "client_00000/00000.tar", folder / "test/00000.tar"]
    flip(bad[0])
    bad[1].unlink()
    result = call(app, ["shards", "verify", str(folder)])
    assert result.exit_code == 3
    assert all(str(file) in result.output for file in bad)
    assert "client_00001" not in result.output


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_complete_store_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards on a read-only file system can be used."""
    folder = prepare.make(config(tmp_path))
    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert prepare.ensure(config(tmp_path)) == folder
    with pytest.raises(StorageError, match=r"Permission denied.*data\.store"):
        prepare.make(config(tmp_path / "other"))


def test_the_command_for_own_data_is_exact(tmp_path: Path) -> None:
    own = tmp_path / "my arrays.npz"
    images, labels = DRAWS.integers(0, 256, (30, 5, 6), dtype=np.uint8), np.arange(30) % 3
    np.savez(own, x_train=images, y_train=labels, x_test=images, y_test=labels)
    chosen = config(tmp_path / "store", source="npz", root=str(own), alpha=0.7, seed=5)
    with pytest.raises(ShardError) as caught:
        prepare.ensure(chosen)
    command = str(caught.value).split("`")[1]
    made = call(app, shlex.split(command)[1:])
    assert made.exit_code == 0, made.output
    assert prepare.ensure(chosen) == Path(made.output.strip().splitlines()[-1])


def test_help_lists_the_sources() -> None:
    shown = call(app, ["shards", "make", "--help"]).output
    assert all(name in shown for name in ("digits", "mnist5k", "npz"))


def test_show_counts_samples_classes_and_bytes(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy")
    shown = call(app, ["shards", "show", str(folder)]).output
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    size = round((folder / "client_00000/00000.tar").stat().st_size / 1000)
    assert rows["0"] == ["0", "12", str(size), "4", "4", "4"]
    assert "test" in rows


def _write_and_wait(folder: Path, started: multiprocessing.synchronize.Event) -> None:
    def hold(name: str) -> None:
        started.set()
        threading.Event().wait(60)

    write(folder, "toy", SOURCE, ARRAYS, ARRAYS, [Dealt(np.arange(12))], {}, hold)


def test_a_killed_writer_leaves_no_shards_and_no_obstacle(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    writer = context.Process(target=_write_and_wait, args=(tmp_path / "toy", started))
    writer.start()
    assert started.wait(30)
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    assert not (tmp_path / "toy").exists()
    assert [p.name for p in tmp_path.iterdir()] == [".toy.part"]
    folder = toy(tmp_path / "toy")
    assert [p.name for p in tmp_path.iterdir()] == ["toy"]
    assert not problems(folder, Manifest.load(folder))


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(
            tmp_path / "toy", "toy", SOURCE, ARRAYS, ARRAYS, [Dealt(np.arange(12))], {}, interrupt
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["clients"].reverse(), "in order"),
        (lambda m: m["clients"][0].update(samples=11), "11 samples, but 12"),
        (lambda m: m["clients"][0].update(label_counts=[12]), "3 classes"),
        (lambda m: m.update(mean=[0.1, 0.2]), "1 channels"),
    ],
)
def test_a_manifest_that_contradicts_itself(tmp_path: Path, change, words: str) -> None:
    path = toy(tmp_path / "toy") / "manifest.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ShardError, match=words):
        Manifest.load(path.parent)


def test_a_shard_on_a_failing_disk_is_named(tmp_path: Path, monkeypatch) -> None:
    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error")

    folder = toy(tmp_path / "toy")
    monkeypatch.setattr("data_shards.tars.sha256_of", fail)
    found = problems(folder, Manifest.load(folder))
    assert [p.problem for p in found] == ["cannot be read: Input/output error"] * 2


def test_shards_are_read_alike_on_any_rank(tmp_path: Path, monkeypatch) -> None:
    """webdataset refuses WORLD_SIZE > 1 without a splitter, or splits; clients are not split."""
    folder = toy(tmp_path / "toy")
    manifest = Manifest.load(folder)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    samples = read_part(folder, manifest, manifest.clients[0])
    assert np.array_equal(samples.images.numpy(), ARRAYS.images)


def test_a_client_without_samples_is_in_no_batch_of_a_lane(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy")
    more = {"batch_size": 5, "views": 2, "dtype": torch.float64, "augment": True}
    data = sharded(folder, [0, 1], **more)
    assert not list(data.epoch([1], 0, 0))
    alone, lane = list(data.epoch([0], 0, 0)), list(data.epoch([0, 1], 0, 0))
    assert len(lane) == data.steps(0) == 3
    for mine, both in zip(alone, lane, strict=True):
        assert len(both.labels) == 1
        assert torch.equal(mine.images, both.images)
