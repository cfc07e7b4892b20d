"""Encoded images to pixels: only known formats, and none that is larger than it may be."""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import FedError, ShardError

FORMATS = ("JPEG", "PNG", "WEBP")
MOST_PIXELS = 2**26  # of an image before it is brought to size: 67 million
WAY_OUT = "a complete jpg, png or webp image"


def decode(data: bytes, shape: tuple[int, int, int], name: str) -> NDArray[np.uint8]:
    """The image [channels, height, width] uint8: its shorter side scaled, its centre cropped.

    An image that has the shape already is returned as it is. Raises `ShardError` with `name` for
    what is no image of `FORMATS`, or claims more than `MOST_PIXELS`.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if image.width * image.height > MOST_PIXELS:
                problem = f"{image.width} x {image.height} pixels, want at most {MOST_PIXELS:,}"
                raise ShardError(name, problem, "a smaller image")
            plain = image.convert("L" if channels == 1 else "RGB")
            if plain.size != (width, height):
                plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, dtype=np.uint8)
    except FedError:
        raise
    except Exception as error:  # of a damaged image, decoders raise nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ShardError(name, f"cannot be decoded: {reason[:200]}", WAY_OUT) from None
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
