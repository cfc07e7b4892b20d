"""Is everything that can be wrong with a tar told by name, held or streamed?"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from data_shards.manifest import NAME, Manifest
from data_shards.tars import problems, samples_of
from data_shards.text.manifest import TokenManifest
from data_shards.text.read import TokenStream
from fedcore.errors import ShardError
from tests.damage import flip
from tests.unit.data_shards.faulty import (
    BOTH,
    data,
    edited,
    epochs,
    made,
    replaced,
    samples,
    second,
)
from tests.unit.data_shards.text_shards_test import make
from tests.unit.data_shards.toy_store import sharded
from tests.unit.safety_test import tar_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked(path: Path) -> None:
    outside = path.parents[2] / "outside.tar"
    path.rename(outside)
    path.symlink_to(outside)


@BOTH
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "missing shard"),
        (lambda path: path.write_bytes(path.read_bytes()[:-512]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0" * 512), "more than"),
        (flip, "damaged: sha256"),
        (pipe, "no plain file"),
        (directory, "no plain file"),
        (linked, "link out of it"),
    ],
    ids=["missing", "truncated", "longer", "flipped", "pipe", "folder", "link"],
)
def test_a_damaged_file_is_named(folder: Path, streaming: bool, damage: Any, words: str) -> None:
    assert epochs(folder, streaming) == 6
    damage(second(folder))
    with pytest.raises(ShardError, match=rf"client_00000/00001\.tar.*{words}") as caught:
        epochs(folder, streaming)
    assert caught.value.exit_code == 3
    assert [x.problem for x in problems(folder, Manifest.load(folder))] == [caught.value.problem]


@BOTH
def test_a_file_that_may_not_be_read_is_named(
    folder: Path, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a patch: root may read everything."""
    plain = Path.open

    def refuse(path: Path, *args: Any, **more: Any) -> Any:
        if path == second(folder):
            raise PermissionError(13, "Permission denied")
        return plain(path, *args, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ShardError, match=r"00001\.tar: cannot be read: Permission denied"):
        epochs(folder, streaming)


def test_such_a_tar_is_read(folder: Path) -> None:
    replaced(folder, samples(label=1))
    edited(folder, lambda said: said["clients"][0].update(label_counts=[5, 2, 3]))
    assert epochs(folder, False) == epochs(folder, True) == 6


TEXT, PIXELS = ("00000001.json", b'{"label": 1, "index": 1}'), ("00000001.u8", bytes(192))


STRANGE = {
    "no json": (samples(PIXELS), "no json of sample '00000001'"),
    "no pixels": (samples(TEXT), "no image"),
    "few pixels": (samples(TEXT, ("00000001.u8", bytes(191))), "191 bytes of pixels"),
    "twice": (samples(TEXT, PIXELS, PIXELS), "duplicate file name"),
    "broken json": (samples(("00000001.json", b'{"label": 1'), PIXELS), "cannot be read"),
    "json of another kind": (samples(("00000001.json", b"[1]"), PIXELS), "a label None"),
    "one sample less": (samples(count=3), "3 samples, want 4"),
    "one sample more": (samples(count=5), "more than 4 samples"),
    "label too large": (samples(label=3), "a label 3 of 3 classes"),
    "label below zero": (samples(label=-1), "a label -1"),
    "label of words": (samples(label="1"), "a label '1"),
    "label true": (samples(label=True), "a label True"),
    "label of a thousand digits": (samples(label=10**1000), "a label 1000"),
    "label not counted": (samples(label=2), "does not count"),
    "no tar": (b"x" * 10240, "cannot be read"),
    "empty": (b"", "the end of the tar is missing"),
    "compressed": (gzip.compress(samples(label=1)), "cannot be read"),
    "no end": (samples(label=1)[:4096], "the end of the tar is missing"),
}


@BOTH
@pytest.mark.parametrize("case", STRANGE)
def test_a_tar_with_the_right_hash_is_told_too(folder: Path, streaming: bool, case: str) -> None:
    content, words = STRANGE[case]
    replaced(folder, content)
    if words != "does not count":
        edited(folder, lambda said: said["clients"][0].update(label_counts=[5, 2, 3]))
    with pytest.raises(ShardError, match=words) as caught:
        epochs(folder, streaming)
    named = "client_00000/" if words == "does not count" else "client_00000/00001.tar"
    assert named in caught.value.shard


def headed(kind: bytes, size: bytes = b"", name: str = "00000001.u8") -> bytes:
    """A header of that kind, its size as it is given, with a checksum that fits."""
    info = tarfile.TarInfo(name)
    info.linkname, info.size = "/etc/passwd", 512
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[156:157] = kind
    header[124 : 124 + len(size)] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


BELOW = [bytes([255] * 10) + bytes([256 - n, 0]) for n in (2, 4, 6, 8)]  # sizes of -512 n / 2


HUGE = b"\x80" + bytes([0, 0, 0, 127] + [255] * 7)


KINDS = [*b"123456789ABDKLMNSVXgx"]


@pytest.mark.parametrize("reader", ["images", "tokens"])
def test_no_kind_of_member_leads_astray(tmp_path: Path, reader: str) -> None:
    """Links, devices, pipes, folders, sparse files, extended headers; sizes below zero or beyond
    the tar, which `tarfile` follows back for ever; pax records that its expression takes hours
    for."""
    end = "u8" if reader == "images" else "u16"
    first = headed(b"0", b"00000001000", f"0.{end}") + bytes(512)
    other = headed(b"0", b"00000001000", f"2.{end}") + bytes(512)
    plain = headed(b"0", b"00000001000", f"1.{end}") + bytes(512)
    slow = headed(b"x", b"00001000000") + b"1" * 8**6
    odd = [headed(bytes([kind])) + bytes(512) for kind in KINDS]
    odd += [headed(b"0", size) for size in (*BELOW, HUGE, b"77777777777")]
    for content in (*odd, slow, *(headed(b"x", size) for size in BELOW)):
        with pytest.raises(ShardError, match=r"x\.tar: cannot be read: member"):
            list(samples_of(first + other + plain + content + bytes(1024), "x.tar"))
    for name in ("/tmp/x.u8", "../x.u8", "a/../../x.u8", "a/..", ".."):
        info = headed(b"0", b"00000001000", name)
        with pytest.raises(ShardError, match="outside of the tar"):
            list(samples_of(first + info + bytes(512 + 1024), "x.tar"))
    assert len(list(samples_of(first + plain + bytes(1024), "x.tar"))) == 2


def test_a_tar_that_changes_between_epochs_is_told(folder: Path) -> None:
    streamed = data(folder, streaming=True)
    assert len(list(streamed.epoch([0], 0, 0))) == 3
    content = samples(label=1)  # a good tar, but another one
    second(folder).write_bytes(content)
    with pytest.raises(ShardError, match=r"00001\.tar: truncated|00001\.tar: damaged"):
        list(streamed.epoch([0], 0, 1))


@pytest.mark.parametrize("workers", [1, 4])
def test_an_error_in_a_thread_ends_the_lane_and_stops_no_thread(folder: Path, workers: int) -> None:
    """The first error, as it was raised; all threads are free again, and what is whole is read."""
    client = json.loads((folder / NAME).read_text())["clients"][0]
    for number in (1, 2, 3):
        shutil.copytree(folder / "client_00000", folder / f"client_{number:05d}")
        own = json.loads(json.dumps(client).replace("client_00000", f"client_{number:05d}"))
        edited(folder, lambda said, own=own, k=number: said["clients"].append(own | {"client": k}))
    held = data(folder, streaming=True, workers=workers)
    flip(folder / "client_00002/00001.tar")
    for _ in range(5):
        with pytest.raises(ShardError, match=r"client_00002/00001\.tar: damaged"):
            list(held.epoch([0, 1, 2, 3], 0, 0))
    assert len(list(held.epoch([0, 1, 3], 0, 0))) == 3
    reader: Any = held._reader
    waiting = [pool.submit(int) for pool in (reader.readers, reader.assemblers)]
    assert [future.result(timeout=10) for future in waiting] == [0, 0]


def token_tar(folder: Path, *documents: dict[str, bytes]) -> None:
    """The held-out text is another, of which the manifest has the hash."""
    members = [
        (tarfile.TarInfo(f"{i}.{end}"), content)
        for i, document in enumerate(documents)
        for end, content in document.items()
    ]
    content = tar_of(*members)
    (folder / "held_out/00000.tar").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()

    def change(said: dict[str, Any]) -> None:
        said["held_out"]["shards"][0] |= {"bytes": len(content), "sha256": sha256}
        said["held_out"]["shards"][0]["samples"] = said["held_out"]["documents"] = 2
        said["held_out"]["tokens"] = 24

    edited(folder, change)


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([{"u16": bytes(24)}, {"u16": bytes(22) + b"\1\1"}], "a token 257 of 257"),
        ([{"u16": bytes(48)}], "24 tokens in 1 documents, want 24 in 2"),
        ([{"u16": bytes(24)}, {"u16": bytes(20)}], "22 tokens in 2 documents, want 24"),
        ([{"u16": bytes(24)}, {"u16": bytes(23)}], "cannot be read: buffer size"),
        ([{"u16": bytes(24)}, {"json": b"{}"}], "cannot be read: u16"),
    ],
)
def test_text_that_is_not_what_the_manifest_says_is_told(
    tmp_path: Path, documents: list[dict[str, bytes]], words: str
) -> None:
    make(tmp_path / "s")
    token_tar(tmp_path / "s", {"u16": bytes(24)}, {"u16": b"\0\1" + bytes(22)})
    manifest, more = TokenManifest.load(tmp_path / "s"), {"context": 4, "seed": 0}
    assert TokenStream(tmp_path / "s", manifest, order="ordered", **more).held_out().max() == 256
    token_tar(tmp_path / "s", *documents)
    manifest = TokenManifest.load(tmp_path / "s")
    with pytest.raises(ShardError, match=words) as caught:
        TokenStream(tmp_path / "s", manifest, order="ordered", **more)
    assert caught.value.shard.endswith("held_out/00000.tar")


def test_another_rank_s_files_may_be_anything(folder: Path) -> None:
    """Only a client's own are looked at when it is streamed."""
    edited(folder, lambda s: s["clients"].append(s["clients"][0] | {"client": 1}))
    said = json.loads((folder / NAME).read_text())
    text = json.dumps(said["clients"][1]).replace("client_00000", "client_00001")
    edited(folder, lambda s: s["clients"].__setitem__(1, json.loads(text)))
    shutil.copytree(folder / "client_00000", folder / "client_00001")
    pipe(folder / "client_00001/00001.tar")
    assert len(list(sharded(folder, [0], streaming=True).epoch([0], 0, 0))) == 3
    with pytest.raises(ShardError, match=r"client_00001/00001\.tar: no plain file"):
        sharded(folder, [1], streaming=True)
