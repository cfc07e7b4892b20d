"""Is an image decoded as others decode it, and nothing that is no image?"""

from __future__ import annotations

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import CenterCrop, Resize

from data_shards.decode import MOST_PIXELS, Head, decode, head
from data_shards.samples import File
from fedcore.errors import ShardError
from tests.published import encoded

NOISE = np.random.default_rng(0).integers(0, 256, (12, 10, 4), dtype=np.uint8)
RGB = Image.fromarray(NOISE[..., :3])


def image(mode: str) -> Image.Image:
    return Image.fromarray(NOISE).convert("RGB").convert(mode)


@pytest.mark.parametrize(
    ("kind", "mode", "grey"),
    [
        *(("PNG", mode, mode in ("1", "L", "LA")) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")),
        *(("JPEG", mode, mode == "L") for mode in ("L", "RGB", "CMYK")),
        *(("WEBP", mode, False) for mode in ("RGB", "RGBA")),  # webp has no grey
    ],
)
def test_pixels_agree_with_torchvision(tmp_path: Path, kind: str, mode: str, grey: bool) -> None:
    data = encoded(image(mode), kind)
    (tmp_path / "x").write_bytes(data)
    wanted = np.asarray(pil_loader(str(tmp_path / "x")))
    assert (decode(data, (3, 12, 10), "x") == wanted.transpose(2, 0, 1)).all()
    assert head(data, "x") == head(tmp_path / "x", "x") == Head(12, 10, grey)


def test_transparent_colours_are_as_they_are_stored() -> None:
    clear = Image.fromarray(np.dstack([NOISE[..., :3], np.zeros((12, 10), np.uint8)]))
    stored = decode(encoded(clear), (3, 12, 10), "x")
    assert (stored == NOISE[..., :3].transpose(2, 0, 1)).all()


def test_of_sixteen_bits_the_high_eight_are_taken() -> None:
    deep = Image.fromarray(NOISE[..., 0].astype(np.uint16) << 8 | 77)
    assert (decode(encoded(deep), (1, 12, 10), "x")[0] == NOISE[..., 0]).all()
    assert (decode(encoded(deep), (3, 12, 10), "x") == NOISE[..., 0]).all()
    assert head(encoded(deep), "x").grey


def test_a_noted_rotation_is_not_made() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    plain, noted = encoded(RGB, "JPEG"), encoded(RGB, "JPEG", exif=exif)
    assert noted != plain
    assert (decode(noted, (3, 12, 10), "x") == decode(plain, (3, 12, 10), "x")).all()


@pytest.mark.parametrize("size", [4, 8, 12, 24])  # centres on whole pixels
def test_another_size_agrees_with_torchvision(size: int) -> None:
    large = RGB.resize((36, 24), Image.Resampling.BICUBIC)
    wanted = np.asarray(CenterCrop(size)(Resize(size)(large))).transpose(2, 0, 1)
    made = decode(encoded(large), (3, size, size), "x")
    assert abs(made.astype(int) - wanted).max() <= 1
    assert decode(encoded(large), (3, 2 * size, size), "x").shape == (3, 2 * size, size)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_several_frames_are_no_image(kind: str) -> None:
    moving = encoded(RGB, kind, save_all=True, append_images=[RGB.transpose(0)])
    for call in (lambda: decode(moving, (3, 12, 10), "x.png"), lambda: head(moving, "x.png")):
        with pytest.raises(ShardError, match=r"x\.png: is animated"):
            call()


def test_the_photograph_of_a_camera_comes_before_its_preview() -> None:
    both = encoded(RGB, "MPO", save_all=True, append_images=[RGB.resize((5, 5))], quality=95)
    wanted = decode(encoded(RGB, "JPEG", quality=95), (3, 12, 10), "x")
    assert (decode(both, (3, 12, 10), "x") == wanted).all()


def png(width: int, height: int) -> bytes:
    """A few bytes that claim to be that large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rest = chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + start + rest


@pytest.mark.parametrize("side", [8_200, 60_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_a_pixel_is_decoded(side: int, monkeypatch) -> None:
    def never(*given: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    assert side**2 > MOST_PIXELS
    with pytest.raises(ShardError, match=r"bomb\.png.*pixels"):
        decode(png(side, side), (1, 8, 8), "bomb.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_every_truncation_is_told(kind: str) -> None:
    data = encoded(RGB, kind)
    for length in range(0, len(data), 7):
        with pytest.raises(ShardError, match=r"a/b\.jpg: "):
            decode(data[:length], (3, 12, 10), "a/b.jpg")
    with pytest.raises(ShardError):
        decode(data[:-5], (3, 12, 10), "a/b.jpg")  # the last four of a png say nothing


def test_every_flipped_bit_of_a_png_is_told() -> None:
    data = encoded(RGB.crop((0, 0, 4, 4)))
    for at in range(len(data) - 12):  # all but the mark of its end
        damaged = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        with pytest.raises(ShardError):
            decode(damaged, (3, 4, 4), "x")


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_kinds_are_not_opened(kind: str) -> None:
    data = encoded(RGB, kind)
    with pytest.raises(ShardError, match="x: is none of JPEG, PNG, WEBP"):
        decode(data, (3, 12, 10), "x")
    with pytest.raises(ShardError, match="x: is no jpg, png or webp"):
        File.of(data, "x")


@pytest.mark.parametrize(("kind", "wanted"), [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp")])
def test_a_file_is_named_by_what_it_holds(kind: str, wanted: str) -> None:
    assert File.of(encoded(RGB, kind), "called.jpg").extension == wanted


def test_threads_decode_as_one_does() -> None:
    files = [encoded(RGB.rotate(10 * i), kind) for i in range(20) for kind in ("PNG", "JPEG")]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda data: decode(data, (3, 6, 6), "x"), files))
    assert all((decode(f, (3, 6, 6), "x") == m).all() for f, m in zip(files, made, strict=True))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"nowhere\.png: no such file"):
        head(tmp_path / "nowhere.png", str(tmp_path / "nowhere.png"))
