"""Encoded images to pixels: only known formats, and none that is larger than it may be.

What decides an image's pixels, the same as torchvision's `ImageFolder` where not said otherwise:
a palette is looked up and CMYK turned to RGB; transparency is dropped, not laid on a ground; a
rotation noted in EXIF is not made, nor a colour profile applied; of 16 bits the high 8 are taken
(torchvision cuts grey ones off at 255). Several frames are no image, but for a camera's JPEG with
its previews (MPO), whose first is taken.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import FedError, ShardError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP")
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "La")
MOST_PIXELS = 2**26  # of an image before it is brought to size: 67 million
MOST_BYTES = 2**28  # of its file: what 67 million pixels take uncompressed, and some more
WAY_OUT = "a complete jpg, png or webp image"


class Head(NamedTuple):
    """What a file says of its image before any pixel is decoded."""

    height: int
    width: int
    grey: bool


def decode(data: bytes, shape: tuple[int, int, int], name: str) -> NDArray[np.uint8]:
    """The image [channels, height, width] uint8: its shorter side scaled, its centre cropped.

    An image that has the shape already is returned as it is. Raises `ShardError` with `name` for
    what is no image of `FORMATS`, is cut off, or claims more than `MOST_PIXELS`.
    """
    from PIL.Image import Resampling
    from PIL.ImageOps import fit

    channels, height, width = shape
    with _opened(data, name) as image:
        if image.format == "PNG":  # decoding it compares no checksum, and needs no end
            with _opened(data, name) as twin:
                twin.verify()
        plain = _eight_bits(image).convert("L" if channels == 1 else "RGB")
        if plain.size != (width, height):
            plain = fit(plain, (width, height), Resampling.BILINEAR)
        pixels = np.array(plain, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def head(data: bytes | Path, name: str) -> Head:
    """Size and colour of an image, with the checks of `decode` but those of its pixels."""
    with _opened(data, name) as image:
        return Head(image.height, image.width, image.mode in GREY)


def encoded(path: Path) -> bytes:
    """The bytes of an image's file; `ShardError` if it is missing or too large to be one."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ShardError(str(path), f"cannot be read: {error.strerror}", WAY_OUT) from None
    if len(data) > MOST_BYTES:
        raise ShardError(str(path), f"more than {MOST_BYTES:,} bytes", WAY_OUT)
    return data


@contextmanager
def _opened(data: bytes | Path, name: str) -> Iterator[Image]:
    """An image that is small enough; whatever its decoder raises becomes a `ShardError`."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError
    from PIL.Image import open as image_of

    _quiet()
    try:
        with image_of(io.BytesIO(data) if isinstance(data, bytes) else data, "r", FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                problem = f"{image.width} x {image.height} pixels, want at most {MOST_PIXELS:,}"
                raise ShardError(name, problem, "a smaller image")
            if image.format in ("PNG", "WEBP") and getattr(image, "is_animated", False):
                raise ShardError(name, "is animated", "one image a file")
            yield image
    except FedError:
        raise
    except FileNotFoundError:
        raise ShardError(name, "no such file", WAY_OUT) from None
    except DecompressionBombError:  # twice what the library warns of
        problem = f"more than {MOST_PIXELS:,} pixels"
        raise ShardError(name, problem, "a smaller image") from None
    except UnidentifiedImageError:  # its text is an address in memory
        raise ShardError(name, f"is none of {', '.join(FORMATS)}", WAY_OUT) from None
    except Exception as error:  # of a damaged image, decoders raise nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ShardError(name, f"cannot be decoded: {reason[:200]}", WAY_OUT) from None


@cache
def _quiet() -> None:
    """Nothing on stderr about large images: they are refused here, below the library's limit."""
    from PIL.Image import DecompressionBombWarning

    warnings.simplefilter("ignore", DecompressionBombWarning)


def _eight_bits(image: Image) -> Image:
    """The high 8 bits of a grey image of 16, which a plain conversion would cut off at 255."""
    from PIL.Image import fromarray

    if not image.mode.startswith("I"):
        return image
    return fromarray((np.asarray(image) >> 8).astype(np.uint8))
