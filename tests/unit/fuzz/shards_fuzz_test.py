"""Are shards read as they were written, or told by name, whoever reads and whatever was changed?

Whole folders, so that a change lies where chance lets it: in pixels, in the headers of tars, in
png, jpg and webp files, in the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from data_shards import rawtar
from data_shards.blocks import _by_member
from data_shards.manifest import NAME, Manifest
from data_shards.read import TestSamples
from data_shards.samples import EXTENSIONS, Extension, File, Files
from data_shards.sources import Arrays, Source
from data_shards.tars import problems
from data_shards.text.manifest import TokenManifest, load_any
from data_shards.text.read import TokenStream
from data_shards.write import Dealt, write
from fedcore.errors import FedError, ShardError
from launcher.commands import app
from launcher.shard_tables import remarks, table
from tests.unit.data_shards.text_shards_test import make
from tests.unit.data_shards.toy_store import sharded
from tests.unit.fuzz.hostile import REFUSED, bytes_changed, cases, json_changed, read

pytestmark = pytest.mark.broad

SHAPE = (3, 5, 4)
PIXELS = np.random.default_rng(0).integers(0, 256, (13, *SHAPE), dtype=np.uint8)
LABELS = np.arange(13, dtype=np.int64) % 3
ROWS = np.arange(13)
DEALT = [Dealt(ROWS[:6], ROWS[6:7]), Dealt(ROWS[:0]), Dealt(ROWS[7:])]


def file_of(row: int) -> File:
    """An image in one of the three formats; two of them lose a little."""
    extension, raw = cast(Extension, EXTENSIONS[row % 3]), io.BytesIO()
    format = {"jpg": "JPEG"}.get(extension, extension)
    Image.fromarray(PIXELS[row].transpose(1, 2, 0)).save(raw, format)
    return File(extension, raw.getvalue())


FILES = Files(file_of, [f"image {row}" for row in range(13)], LABELS, SHAPE)
ARRAYS = Arrays(PIXELS, LABELS)


def images(folder: Path, original: bool) -> Path:
    samples = FILES if original else ARRAYS
    source = Source(lambda root, split: samples, kind="natural", about="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_shards.tar_writer.SHARD_BYTES", 4 * 2048)  # several tars
        write(folder, "toy", source, samples, ARRAYS, DEALT, {"name": "x"}, original=original)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("store")
    images(place / "raw", original=False)
    images(place / "original", original=True)
    make(place / "tokens")
    return place


def batches(folder: Path, *, streaming: bool) -> list[torch.Tensor]:
    """An epoch of every client, after it was read."""
    data = sharded(folder, streaming=streaming, workers=2, shuffle_buffer=5)
    count = len(Manifest.load(folder).clients)
    return [x for k in range(min(count, 4)) for batch in data.epoch([k], 0, 0) for x in batch]


def held_out(folder: Path) -> list[torch.Tensor]:
    """The test split and the shards that were set aside."""
    manifest = Manifest.load(folder)
    test = TestSamples(folder, manifest, device=torch.device("cpu"), dtype=torch.float32)
    assert not [x for x in problems(folder, manifest) if "test" not in x.shard]
    return [test.images, test.labels]


def tokens(folder: Path) -> list[torch.Tensor]:
    stream = TokenStream(folder, TokenManifest.load(folder), context=4, order="ordered", seed=0)
    return [stream.batch(0, 4, range(4)), stream.held_out()]


Reader = Callable[[Path], list[torch.Tensor]]
READERS: dict[str, list[Reader]] = {
    "raw": [lambda f: batches(f, streaming=False), lambda f: batches(f, streaming=True)],
    "tokens": [tokens],
}
READERS["original"] = READERS["raw"]


def changed_files(folder: Path, seed: str, count: int) -> Iterator[tuple[Path, random.Random]]:
    """One file after the other that is not as it was written; in the end all are again."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for draws in cases(f"{folder.name} {seed}", count):
        file = draws.choice(files)
        good = file.read_bytes()
        try:
            file.write_bytes((json_changed if file.name == NAME else bytes_changed)(good, draws))
            yield file, draws
        finally:
            file.write_bytes(good)


def words_or(reader: Callable[[], Any]) -> Any:
    """What it reads, or the words of an error of ours."""
    try:
        return reader()
    except FedError as error:
        return str(error)


@pytest.mark.parametrize(("kind", "count"), [("raw", 500), ("original", 600), ("tokens", 900)])
def test_any_changed_byte_is_harmless_or_told(store: Path, kind: str, count: int) -> None:
    """2,000 of them. A manifest that still can be read may describe the same files otherwise."""
    folder, met = store / kind, dict.fromkeys(("tar", "json", "same"), 0)
    whole = [reader(folder) for reader in READERS[kind]]
    for file, draws in changed_files(folder, "changed", count):
        number = draws.randrange(len(whole))
        name, reader = file.relative_to(folder).as_posix(), READERS[kind][number]
        found = words_or(lambda reader=reader: reader(folder))
        if isinstance(found, str):
            met["json" if file.suffix == ".json" else "tar"] += 1
            assert str(folder) in found
            assert file.name == NAME or name in found
        elif file.name != NAME:
            met["same"] += 1
            assert not name.startswith("client"), "it was read"
            assert all(map(torch.equal, found, whole[number]))
        if file.name != NAME and draws.random() < 0.3:
            assert [x.shard for x in problems(folder, load_any(folder))] == [str(file)]
        elif file.name == NAME and (found := read(lambda: load_any(folder))) is not REFUSED:
            read(lambda found=found: (table(found), remarks(found, 20)))
    assert min(met["tar"], met["json"]) > 20
    assert all(map(torch.equal, READERS[kind][0](folder), whole[0]))


def test_the_commands_tell_of_any_damage(store: Path) -> None:
    for kind in READERS:
        for file, _ in changed_files(store / kind, "commands", 6):
            for command in ("verify", "show"):
                found = CliRunner().invoke(app, ["shards", command, str(store / kind)])
                assert found.exit_code in (0, 3), found.exception
                assert isinstance(found.exception, SystemExit | None)
            if file.name != NAME:
                found = CliRunner().invoke(app, ["shards", "verify", str(store / kind)])
                assert found.exit_code == 3
                assert str(file) in found.output


def rehashed(folder: Path, file: Path) -> None:
    """The manifest says that the file is as it was written."""
    content, manifest = file.read_bytes(), folder / NAME
    said = json.loads(manifest.read_text())
    held = [*said["clients"], said.get("held_out") or said["test"]]
    held += [x["validation"] for x in said["clients"] if x.get("validation")]
    for shard in (shard for part in held for shard in part["shards"]):
        if shard["file"] == file.relative_to(folder).as_posix():
            shard |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(said))


SIZES = [b"\xff" * 10 + b"\xfa\x00", b"\x80" + bytes(10) + b"\x01"]  # below zero; 1
SIZES += [b"77777777777\0", b"-0000001000\0"]


def tar_changed(good: bytes, draws: random.Random) -> bytes:
    """Anywhere, or in a header, whose checksum then fits; sizes and kinds most of all."""
    if draws.random() < 0.4:
        return bytes_changed(good, draws)
    found, at = bytearray(good), 512 * draws.randrange(max(1, len(good) // 512))
    if draws.random() < 0.5:
        found[at + 124 : at + 136] = draws.choice(SIZES)
    elif draws.random() < 0.5:
        found[at + 156] = draws.choice(b"0123456789xgLKSV\0")
    else:
        found[at + draws.randrange(100)] ^= 1 << draws.randrange(8)
    found[at + 148 : at + 156] = b" " * 8
    found[at + 148 : at + 156] = b"%06o\0 " % (sum(found[at : at + 512]) % 8**6)
    return bytes(found)


@pytest.mark.parametrize(("kind", "count"), [("raw", 90), ("original", 90), ("tokens", 200)])
def test_a_tar_whose_hash_was_mended_is_samples_or_told(store: Path, kind: str, count: int) -> None:
    """Other data perhaps, of the same shape; nothing else happens, and it ends."""
    folder = store / kind
    said, whole = (folder / NAME).read_bytes(), [reader(folder) for reader in READERS[kind]]
    files = sorted(folder.glob("client_*/*.tar"))
    before, met = {*store.rglob("*")}, set()
    for draws in cases(f"rehashed {kind}", count):
        file, number = draws.choice(files), draws.randrange(len(whole))
        good = file.read_bytes()
        try:
            file.write_bytes(tar_changed(good, draws))
            rehashed(folder, file)
            found = read(lambda number=number: READERS[kind][number](folder))
            met.add(found is REFUSED)
            if found is not REFUSED:
                assert [x.shape for x in found] == [x.shape for x in whole[number]]
        finally:
            file.write_bytes(good)
            (folder / NAME).write_bytes(said)
    assert met == {True, False}
    assert {*store.rglob("*")} == before
    assert all(map(torch.equal, READERS[kind][0](folder), whole[0]))


def text_changed(content: bytes, draws: random.Random) -> bytes:
    """Jsons that begin, end or hold a piece of another's, in place and of the right length."""
    found = bytearray(content)
    pieces = [b'{"label":1},', b',{"label":2}', b'"x":"', b'"}', b"[", b"]", b"{", b"}", b"{}"]
    pieces += [b"\xef\xbb\xbf", b"\\", b'"', b"1", b" ", b"\0", b"\xff", b'"label":2,']
    for _ in range(draws.choice([1, 2, 3])):
        at = 512 + draws.randrange(4) * rawtar.stride(16) + draws.randrange(26)
        piece = draws.choice(pieces)
        found[at : at + len(piece)] = piece
    return bytes(found)


def test_what_is_read_at_once_is_what_a_reader_of_members_reads() -> None:
    shape, met = (1, 4, 4), [0, 0]
    images = PIXELS.reshape(-1)[:64].reshape(4, *shape)
    for draws in cases("quick", 4000):
        good = rawtar.encoded(np.arange(4), np.arange(4), images).tobytes()
        content = draws.choice([bytes_changed, tar_changed, text_changed])(good, draws)
        quick = read_or_none(lambda content=content: rawtar.decoded(content, 4, shape))
        met[quick is not None] += 1
        if quick is not None:
            slow = _by_member(content, "x.tar", shape, 4)
            assert np.array_equal(quick.images, slow.images)
            assert np.array_equal(quick.labels, slow.labels)
    assert min(met) > 100


def read_or_none(reader: Callable[[], Any]) -> Any:
    """What it reads; None if it does not."""
    try:
        return reader()
    except (ValueError, ShardError):
        return None


def raw_tar(*samples: tuple[int, bytes]) -> bytes:
    """A tar of blank images with those indices and jsons, made by hand."""
    index, sizes = np.array([i for i, _ in samples]), np.array([len(x) for _, x in samples])
    whole = rawtar.encoded(index, index, np.zeros((len(index), 1, 4, 4), dtype=np.uint8))
    rows = whole[: len(index) * rawtar.stride(16)].reshape(len(index), -1)
    rows[:, :512] = rawtar._headers("json", index, sizes)
    for row, (_, text) in zip(rows, samples, strict=True):
        row[512:1024] = np.frombuffer(text.ljust(512, b"\0"), dtype=np.uint8)
    return whole.tobytes()


@pytest.mark.parametrize(
    "samples",
    [
        [(0, b'{"label": 1}'), (1, b'{"label":1,"x":[1'), (2, b'2]},{"label":2}')],
        [(0, b'{"label":0,"x":"}'), (1, b'{","label":1}'), (2, b'{"label":2}')],
        [(0, b'{"label":0},{"label":1}'), (1, b'{"label":1'), (2, b'"y":2}')],
        [(0, b'{"label": 1}'), (0, b'{"label": 2}')],
        [(5, b'{"label": 1}'), (5, b'{"label": 1}')],
        [(0, '{"label": 1}'.encode("utf-16"))],
        [(0, b""), (1, b'{"label":1},{"label":2}')],
        [(0, b'{"label": 1, "x": {"label": 2}}')],
        [(0, b'{"label": 1, "label": 2}')],
    ],
    ids=str,
)
def test_jsons_are_taken_one_by_one(samples: list[tuple[int, bytes]]) -> None:
    content, n = raw_tar(*samples), len(samples)
    quick = read_or_none(lambda: rawtar.decoded(content, n, (1, 4, 4)))
    slow = read_or_none(lambda: _by_member(content, "x.tar", (1, 4, 4), n))
    assert quick is None or np.array_equal(quick.labels, slow.labels)
