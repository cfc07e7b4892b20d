"""Whether a folder of shards is as it was written, and is what its manifest says it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from data_shards import tars
from data_shards.blocks import read_block
from data_shards.folder import Folder
from data_shards.manifest import WAY_OUT, Manifest, Shard
from data_shards.text.manifest import TokenManifest
from data_shards.text.read import read_tokens
from fedcore.errors import ShardError

Tick = Callable[[str], None]


def problems(
    folder: Folder, manifest: Manifest | TokenManifest, tick: Tick = lambda name: None
) -> list[ShardError]:
    """Every file that a run would refuse, in the manifest's order.

    Each is hashed and read as a run reads it, so that a manifest that was changed is told as well
    as a file that was. tick is told the name of each file that was looked at.
    """
    if manifest.kind == "tokens":
        return tars.problems(folder, manifest, tick) or _of_texts(folder, manifest)
    return _of_images(folder, manifest, tick)


def _of_images(folder: Folder, manifest: Manifest, tick: Tick) -> list[ShardError]:
    def looked_at(shard: Shard) -> NDArray[np.int64] | ShardError:
        try:
            labels = read_block(folder, manifest, shard).labels
            return np.bincount(labels, minlength=manifest.classes)
        except ShardError as error:
            return error
        finally:
            tick(shard.file)

    with ThreadPoolExecutor(tars.AT_ONCE) as pool:
        results = list(pool.map(looked_at, manifest.shards))
    found = [result for result in results if isinstance(result, ShardError)]
    if found:
        return found
    read = [result for result in results if not isinstance(result, ShardError)]
    counts = dict(zip((shard.file for shard in manifest.shards), read, strict=True))
    for part in manifest.parts:
        none = np.zeros(manifest.classes, dtype=np.int64)
        labels = np.sum([none, *(counts[shard.file] for shard in part.shards)], axis=0)
        if labels.tolist() != list(part.label_counts):
            place = f"{folder}/{part.shards[0].file}"
            found.append(ShardError(place, "labels that its manifest does not count", WAY_OUT))
    return found


def _of_texts(folder: Folder, manifest: TokenManifest) -> list[ShardError]:
    found = []
    for part in manifest.parts.values():
        try:
            read_tokens(folder, part, manifest.dtype)
        except ShardError as error:
            found.append(error)
    return found
