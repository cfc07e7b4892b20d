"""Is an image in a tar that is none, or too large, told by name?"""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from data_shards.manifest import Manifest
from fedcore.errors import ShardError
from tests.unit.data_shards.faulty import BOTH, data, edited, epochs, made, replaced, samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path)


def png(width: int, height: int) -> bytes:
    """A complete png header of that size, and nothing behind it but its end."""
    about = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", about), (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x))
        for name, x in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def saved(kind: str, **more: Any) -> bytes:
    raw = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 99, 199)).save(raw, kind, **more)
    return raw.getvalue()


MOVING = [Image.new("RGB", (8, 8), (i, i, i)) for i in range(3)]


REFUSED = {
    "a moving image": saved("WEBP", save_all=True, append_images=MOVING, lossless=True),
    "a gigapixel": png(40_000, 40_000),
    "hundred megapixels": png(10_000, 10_000),
    "a header that lies": png(4_000, 4_000),
    "a cut image": saved("PNG")[:-40],
    "another format": saved("GIF"),
    "words": b"no image",
    "nothing": b"",
}


READ = {
    "more behind it": saved("PNG") + b"x" * 999,
    "another name": saved("JPEG"),
}


def of_files(folder: Path, image: bytes) -> None:
    """The second tar holds that image as its second sample."""
    label = b'{"label": 1, "index": 1}'
    replaced(folder, samples(("00000001.png", image), ("00000001.json", label)))

    def change(said: dict[str, Any]) -> None:
        said["encoding"] = "original"
        said["clients"][0]["label_counts"] = [5, 2, 3]

    edited(folder, change)


@BOTH
@pytest.mark.parametrize("case", REFUSED)
def test_an_image_that_is_none_or_too_large_is_told(
    folder: Path, streaming: bool, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_files(folder, REFUSED[case])
    monkeypatch.setattr("fedcore.files.LARGEST", 2**20)  # a buffer that is not used
    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match=r"client_00000/00001\.tar, sample '00000001'"):
            epochs(folder, streaming)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@BOTH
@pytest.mark.parametrize("case", READ)
def test_an_odd_image_is_read(folder: Path, streaming: bool, case: str) -> None:
    of_files(folder, READ[case])
    batches = [x.images for x in data(folder, streaming=streaming).epoch([0], 0, 0)]
    means = torch.cat(batches, dim=2)[0, 0].mean((2, 3))
    wanted = torch.tensor([9.0, 99.0, 199.0]) / 255
    said = Manifest.load(folder)
    normal = (wanted - torch.tensor(said.mean)) / torch.tensor(said.std)
    assert (means - normal).abs().amax(1).min() < 0.05


def test_small_files_are_no_huge_images(folder: Path) -> None:
    def change(said: dict[str, Any]) -> None:
        said |= {"encoding": "original", "shape": [3, 9000, 9000]}
        for shard, count in zip(said["clients"][0]["shards"], (5, 3, 2), strict=True):
            shard["samples"] = count

    edited(folder, change)
    with pytest.raises(ShardError, match="5 images of 243,000,000 numbers in a tar"):
        Manifest.load(folder)
