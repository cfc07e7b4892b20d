"""Five clients of 50, 0, 7, 1 and 23 samples, in tars of at most four."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_shards.folder import Folder
from data_shards.manifest import Manifest
from data_shards.read import ShardedData
from data_shards.sources import Arrays, Source
from data_shards.write import Dealt, write

SHAPE = (3, 5, 4)
SIZES = [50, 0, 7, 1, 23]
SOURCE = Source(lambda root, split: arrays(), kind="natural", about="a test")


def arrays() -> Arrays:
    draws = np.random.default_rng(1)
    images = draws.integers(0, 256, (sum(SIZES), *SHAPE), dtype=np.uint8)
    return Arrays(images, np.arange(sum(SIZES), dtype=np.int64) % 4)


def parts() -> list[np.ndarray]:
    """The rows of each client."""
    rows = np.split(np.random.default_rng(2).permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return [np.sort(part) for part in rows]


def stored(place: Path, dealt: Sequence[Dealt]) -> Path:
    """Their shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_shards.tar_writer.SHARD_BYTES", 4 * 2048)
        write(place, "toy", SOURCE, arrays(), arrays(), dealt, {"name": "by hand"})
    return place


def sharded(folder: Folder, clients: Sequence[int] | None = None, **other: Any) -> ShardedData:
    """What reads these clients (all of them, unless given) of any folder of shards, as told."""
    usual: dict[str, Any] = {"batch_size": 4, "views": 1, "seed": 0, "augment": False}
    usual |= {"device": torch.device("cpu"), "dtype": torch.float32}
    manifest = Manifest.load(folder)
    chosen = range(len(manifest.clients)) if clients is None else clients
    return ShardedData(folder, manifest, chosen, **usual | other)
