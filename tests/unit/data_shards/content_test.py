"""Do raw files count by what they hold, wherever they lie and whatever else lies there?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from data_shards import content
from data_shards.manifest import Manifest
from data_shards.sources import Arrays, Source
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from launcher import prepare
from launcher.commands import app
from tests.procs.runs import wait_for

pytestmark = pytest.mark.broad


def arrays_in(folder: Path, labels: np.ndarray, fill: int = 0) -> Path:
    """A dataset for `data.source: npy`; its files' sizes do not depend on what they hold."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "test"):
        np.save(folder / f"x_{split}.npy", np.full((len(labels), 4, 4), fill, dtype=np.uint8))
        np.save(folder / f"y_{split}.npy", labels)
    return folder


def config(root: Path, tmp_path: Path, **data: Any) -> RunConfig:
    own = {"source": "npy", "root": str(root), "partition": "iid", "store": str(tmp_path / "store")}
    own |= {"cache": str(tmp_path / "cache"), **data}
    return RunConfig.of({"clients": {"count": 2}, "data": own})


def shards_of(root: Path, tmp_path: Path) -> Path:
    prepare.content.cache_clear()  # as in another process
    folder = prepare.make(config(root, tmp_path))
    assert isinstance(folder, Path)
    return folder


def test_other_labels_in_files_of_the_same_names_and_sizes_are_another_dataset(
    tmp_path: Path,
) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    first = shards_of(root, tmp_path)
    arrays_in(root, 1 - np.arange(6) % 2)
    second = shards_of(root, tmp_path)
    assert first != second
    assert shards_of(arrays_in(tmp_path / "copy", np.arange(6) % 2), tmp_path) == first


def test_what_was_hashed_is_remembered_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    hashed, real = [], content.sha256_of
    monkeypatch.setattr(content, "sha256_of", lambda path: hashed.append(path) or real(path))
    shards_of(root, tmp_path)
    shards_of(root, tmp_path)
    assert len(hashed) == 8  # just written: it may be written again within the clock's grain
    for file in root.iterdir():
        os.utime(file, (1e9, 1e9))
    shards_of(root, tmp_path)
    shards_of(root, tmp_path)
    assert len(hashed) == 12
    os.utime(root / "y_test.npy", (2e9, 1e9 + 1))
    shards_of(root, tmp_path)
    assert len(hashed) == 16


def test_links_to_nothing_hidden_files_and_pipes_are_left_out(tmp_path: Path) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    first = shards_of(root, tmp_path)
    (root / "gone.npy").symlink_to("/nowhere")
    (root / ".#lock").symlink_to("user@host")
    (root / ".hidden").write_text("x")
    os.mkfifo(root / "pipe")
    (root / "again").symlink_to(root)
    assert shards_of(root, tmp_path) == first
    other = arrays_in(tmp_path / "other", np.arange(4) % 2)
    (root / "linked").symlink_to(other)  # a folder behind a link counts
    assert shards_of(root, tmp_path) != first


def test_a_store_among_the_raw_files_is_refused(tmp_path: Path) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    with pytest.raises(ConfigError, match=r"data\.store.*outside of the raw files"):
        prepare.make(config(root, tmp_path, store=str(root / "store")))


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "by_label", "quantity"])
def test_a_split_without_samples_is_told(tmp_path: Path, partition: str) -> None:
    root = arrays_in(tmp_path / "raw", np.zeros(0, dtype=np.int64))
    with pytest.raises(ShardError, match="no labels in the training split"):
        prepare.make(config(root, tmp_path, partition=partition))


def test_test_labels_that_nobody_trains_on_are_refused(tmp_path: Path) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    np.save(root / "y_test.npy", np.arange(6) % 2 + 7)
    with pytest.raises(ShardError, match="test labels 7, 8, and none of them in training"):
        prepare.make(config(root, tmp_path))


def test_arrays_have_no_original_encoding(tmp_path: Path) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    with pytest.raises(ConfigError, match=r"data\.encoding: got 'original'.*data\.encoding=raw"):
        prepare.make(config(root, tmp_path, encoding="original"))


def test_what_a_killed_writer_left_goes_with_the_next_one_of_any_settings(tmp_path: Path) -> None:
    root = arrays_in(tmp_path / "raw", np.arange(6) % 2)
    left, held = (tmp_path / "store" / f".{name}.part" for name in ("left", "held"))
    for part in (left, held):
        part.mkdir(parents=True)
        (part / "00000.tar").write_bytes(b"x")
    with FileLock(held.with_suffix(".lock")):  # its writer is at work
        shards_of(root, tmp_path)
    assert not left.exists()
    assert held.exists()


def test_a_writer_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    words = ["data.source=synthetic", 'data.synthetic={"samples": 3000000, "size": 16}']
    words += [f"data.store={tmp_path}", "clients.count=300"]
    sets = [word for key in words for word in ("--set", key)]
    command = [sys.executable, "-c", "from launcher.commands import app; app()"]
    process = subprocess.Popen([*command, "shards", "make", "default", *sets])
    wait_for(lambda: [*tmp_path.glob(".*.part/client_0000*")], "a client to be written")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(shape=[1, 3, 5]), "cannot be read|bytes of pixels"),
        (lambda m: m["clients"][0].update(label_counts=[1, 2]), "does not count"),
    ],
)
def test_verify_refuses_what_a_run_refuses(tmp_path: Path, change: Any, words: str) -> None:
    images = Arrays(np.zeros((6, 1, 4, 4), dtype=np.uint8), np.arange(6) % 2)
    source = Source(lambda: images, "digits", "")
    dealt = [Dealt(np.array([0, 1, 2])), Dealt(np.array([3, 4, 5]))]
    write(tmp_path / "toy", "toy", source, images, images, dealt, {"clients": 2})
    found = json.loads((tmp_path / "toy" / "manifest.json").read_text())
    change(found)
    (tmp_path / "toy" / "manifest.json").write_text(json.dumps(found))
    Manifest.load(tmp_path / "toy")  # by itself it may be one
    done = CliRunner().invoke(app, ["shards", "verify", str(tmp_path / "toy")])
    assert done.exit_code == 3
    assert any(word in done.output for word in words.split("|")), done.output


def test_a_tar_of_another_client_or_fewer_clients_than_dealt_to_are_no_manifest(
    tmp_path: Path,
) -> None:
    images = Arrays(np.zeros((6, 1, 4, 4), dtype=np.uint8), np.arange(6) % 2)
    source = Source(lambda: images, "digits", "")
    dealt = [Dealt(np.array([0, 1])), Dealt(np.array([2, 3])), Dealt(np.array([4, 5]))]
    write(tmp_path / "toy", "toy", source, images, images, dealt, {"clients": 3})
    path = tmp_path / "toy" / "manifest.json"
    good = path.read_text()
    found = json.loads(good)
    found["clients"][1]["shards"] = found["clients"][0]["shards"]
    path.write_text(json.dumps(found))
    with pytest.raises(ShardError, match=r"client_00000/00000\.tar among the tars of client_00001"):
        Manifest.load(tmp_path / "toy")
    found = json.loads(good)
    del found["clients"][2]
    path.write_text(json.dumps(found))
    with pytest.raises(ShardError, match=r"2 clients, .*dealt out to 3"):
        Manifest.load(tmp_path / "toy")
