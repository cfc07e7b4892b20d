"""One tar of images to arrays: raw pixels by a view of the bytes, files by their decoder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_shards import rawtar
from data_shards.decode import decode
from data_shards.folder import Folder
from data_shards.manifest import WAY_OUT, Manifest, Shard
from data_shards.raw import reading
from data_shards.rawtar import Block, labels_in
from data_shards.samples import EXTENSIONS
from data_shards.tars import samples_of, verified
from fedcore.errors import ShardError
from fedcore.files import parse_json


def read_block(folder: Folder, manifest: Manifest, shard: Shard) -> Block:
    """All samples of a tar in its order, after its hash was compared.

    Raises `ShardError` naming the file for anything but as many samples as the manifest says.
    """
    content, name = verified(folder, shard), f"{folder}/{shard.file}"
    with reading(name, WAY_OUT):
        block = rawtar.decoded(content, shard.samples, manifest.shape)
        if block is None:
            block = _by_member(content, name, manifest.shape, shard.samples)
    if len(block.labels) and int(block.labels.max()) >= manifest.classes:
        problem = f"a label {block.labels.max()} of {manifest.classes} classes"
        raise ShardError(name, problem, WAY_OUT)
    return block


def _by_member(content: bytes, name: str, shape: tuple[int, int, int], samples: int) -> Block:
    """Any tar with a json and pixels or an image file for each sample."""
    images, texts = np.empty((samples, *shape), dtype=np.uint8), []
    for row, sample in enumerate(samples_of(content, name)):
        if row == samples:
            raise ShardError(name, f"more than {samples} samples", WAY_OUT)
        if "json" not in sample:
            raise ShardError(name, f"no json of sample {sample['__key__']!r}", WAY_OUT)
        images[row] = _image(sample, shape, name)
        texts.append(parse_json(sample["json"]))
    if len(texts) != samples:
        raise ShardError(name, f"{len(texts)} samples, want {samples}", WAY_OUT)
    return Block(images, labels_in(texts))


def _image(sample: dict[str, Any], shape: tuple[int, int, int], name: str) -> NDArray[np.uint8]:
    where = f"{name}, sample {sample['__key__']!r}"
    if "u8" in sample:
        pixels = np.frombuffer(sample["u8"], dtype=np.uint8)
        if len(pixels) != math.prod(shape):
            problem = f"{len(pixels)} bytes of pixels, want {list(shape)}"
            raise ShardError(where, problem, WAY_OUT)
        return pixels.reshape(shape)
    for extension in EXTENSIONS:
        if extension in sample:
            return decode(sample[extension], shape, where)
    raise ShardError(where, "no image", WAY_OUT)
