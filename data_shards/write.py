"""Index arrays to webdataset tars: `client_00003/00000.tar`, `test/00000.tar`, `manifest.json`.

A sample is two files: `<index>.u8` (raw uint8, channels first) and `<index>.json` (label, index).
The same input gives the same bytes. A folder is complete or absent: it is written beside its place
and renamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_shards import tars
from data_shards.manifest import ClientPart, Manifest, Part
from data_shards.samples import Samples
from data_shards.sources import Source, checked
from data_shards.tars import complete_or_absent, write_manifest, write_tar

Tick = Callable[[str], None]


def write(
    folder: Path,
    name: str,
    source: Source,
    train: Samples,
    test: Samples,
    parts: Sequence[NDArray[np.int64]],
    settings: dict[str, Any],
    tick: Tick = lambda name: None,
) -> Manifest:
    """Write all shards of a partition into `folder`, which appears only when complete.

    tick is told the name of each part that is done. Raises `ShardError` for arrays that cannot be
    trained on, `StorageError` when the disk is full or not writable; nothing is left then.
    """
    with complete_or_absent(folder) as work:
        manifest = _write_all(work, name, source, train, test, parts, settings, tick)
        write_manifest(work, manifest)
    return manifest


def _write_all(
    work: Path,
    name: str,
    source: Source,
    train: Samples,
    test: Samples,
    parts: Sequence[NDArray[np.int64]],
    settings: dict[str, Any],
    tick: Tick,
) -> Manifest:
    classes = checked(name, source, train, test)
    mean, std = channel_statistics(train.pixels(np.arange(len(train.labels))))
    clients = []
    for client, indices in enumerate(parts):
        part = _write_part(work, f"client_{client:05d}", train, indices, classes)
        clients.append(ClientPart(client=client, **part.model_dump()))
        tick(f"client {client}")
    everything = np.arange(len(test.labels), dtype=np.int64)
    held_out = _write_part(work, "test", test, everything, classes)
    tick("test")
    return Manifest(
        source=name,
        kind=source.kind,
        classes=classes,
        shape=train.shape,
        mean=source.mean or mean,
        std=source.std or std,
        partition=settings,
        clients=tuple(clients),
        test=held_out,
    )


def channel_statistics(
    images: NDArray[np.uint8],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images [M, channels, H, W], in 0...1."""
    flat = images.transpose(1, 0, 2, 3).reshape(images.shape[1], -1).astype(np.float64) / 255
    std = np.maximum(flat.std(1), 1e-3)  # a constant channel must not divide by zero
    return tuple(flat.mean(1).round(6).tolist()), tuple(std.round(6).tolist())


def _write_part(
    work: Path, name: str, data: Samples, indices: NDArray[np.int64], classes: int
) -> Part:
    """One client's (or the test split's) tars, each with at most SHARD_BYTES of images."""
    each = max(1, tars.SHARD_BYTES // math.prod(data.shape))
    chunks = [indices[i : i + each] for i in range(0, len(indices), each)]
    (work / name).mkdir()
    shards = [
        write_tar(work, f"{name}/{number:05d}.tar", _samples(data, chunk))
        for number, chunk in enumerate(chunks)
    ]
    counts = np.bincount(data.labels[indices], minlength=classes)
    return Part(samples=len(indices), label_counts=tuple(counts.tolist()), shards=tuple(shards))


def _samples(data: Samples, indices: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """What stands in a tar for each index."""
    for index in indices.tolist():
        text = f'{{"label": {int(data.labels[index])}, "index": {index}}}'.encode()
        yield {
            "__key__": f"{index:08d}",
            "u8": data.pixels(np.array([index])).tobytes(),
            "json": text,
        }
