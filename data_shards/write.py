"""Index arrays to webdataset tars: `client_00003/00000.tar`, `test/00000.tar`, `manifest.json`.

A sample is two files: `<index>.json` (label, index) and `<index>.u8` (raw uint8, channels first) or
the image's own file (`.jpg`, `.png`, `.webp`). The same input gives the same bytes. A folder is
complete or absent: it is written beside its place and renamed. Tars are made in threads, a few at a
time: memory is that of a few tars, whatever the dataset has.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_shards import rawtar, tar_writer
from data_shards.manifest import (
    TEST,
    ClientPart,
    Manifest,
    Part,
    Shard,
    client_folder,
    tar_name,
    validation_folder,
)
from data_shards.samples import Samples
from data_shards.sources import Source, checked
from data_shards.tar_writer import (
    complete_or_absent,
    filled,
    write_manifest,
    write_shard,
    write_tar,
)

T = TypeVar("T")
Tick = Callable[[str], None]
Rows = NDArray[np.int64]
LEVELS = np.arange(256, dtype=np.int64)  # of a pixel
THREADS = min(8, os.cpu_count() or 1)


class Dealt(NamedTuple):
    """What one client is given: rows it trains on, and rows set aside (null: none are)."""

    train: Rows
    validation: Rows | None = None


def write(
    folder: Path,
    name: str,
    source: Source,
    train: Samples,
    test: Samples,
    dealt: Sequence[Dealt],
    settings: dict[str, Any],
    tick: Tick = lambda name: None,
    *,
    original: bool = False,
) -> Manifest:
    """Write all shards of a partition into `folder`, which appears only when complete.

    tick is told the name of each part that is done; original: images that have files of their own
    are stored as those. Raises `ShardError` for samples that cannot be trained on, `StorageError`
    when the disk is full or not writable; nothing is left then.
    """
    classes = checked(name, source, train, test)
    with complete_or_absent(folder) as work:
        if not original:
            _has_room(work, len(train.labels) + len(test.labels), train.shape)
        parts = _written(work, _parts(dealt, train, test), classes, original, tick)
        mean, std = source.mean, source.std
        if mean is None or std is None:
            mean, std = channel_statistics(train)
        manifest = Manifest(
            source=name,
            kind=source.kind,
            encoding="original" if original else "raw",
            classes=classes,
            class_names=source.class_names,
            shape=train.shape,
            mean=mean,
            std=std,
            partition=settings,
            clients=tuple(_clients(len(dealt), parts)),
            test=parts[TEST],
        )
        write_manifest(work, manifest)
    return manifest


def _has_room(work: Path, samples: int, shape: tuple[int, int, int]) -> None:
    """Told before the first of many gigabytes is written."""
    wanted, free = samples * rawtar.stride(math.prod(shape)), shutil.disk_usage(work).free
    if wanted > free:
        free_of = f"{free / 1e6:,.0f} MB are free of {wanted / 1e6:,.0f} MB that shards take"
        reason = f"No space left on device: {free_of}"
        raise OSError(errno.ENOSPC, reason)


def _parts(
    dealt: Sequence[Dealt], train: Samples, test: Samples
) -> Iterator[tuple[str, Samples, Rows]]:
    """Folder and rows of every part."""
    for client, rows in enumerate(dealt):
        yield client_folder(client), train, rows.train
        if rows.validation is not None:
            yield validation_folder(client), train, rows.validation
    yield TEST, test, np.arange(len(test.labels), dtype=np.int64)


def _clients(count: int, parts: dict[str, Part]) -> Iterator[ClientPart]:
    for client in range(count):
        own, aside = parts[client_folder(client)], parts.get(validation_folder(client))
        yield ClientPart(client=client, validation=aside, **dict(own))


def _written(
    work: Path,
    parts: Iterator[tuple[str, Samples, Rows]],
    classes: int,
    original: bool,
    tick: Tick,
) -> dict[str, Part]:
    """Every part by its folder's name; its tars are made in threads."""
    done: dict[str, Part] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            jobs = (
                (where, samples.labels[rows], _submit(pool, work / where, samples, rows, original))
                for where, samples, rows in parts
            )
            for folder, labels, futures in _begun(jobs):
                shards = tuple(shard for future in futures for shard in future.result())
                counts = tuple(np.bincount(labels, minlength=classes).tolist())
                done[folder] = Part(samples=len(labels), label_counts=counts, shards=shards)
                tick(folder)
        except BaseException:  # the disk is full: the others need not try
            pool.shutdown(cancel_futures=True)
            raise
    return done


def _begun(jobs: Iterator[T]) -> Iterator[T]:
    """The jobs, a few of them ahead: an error is met before thousands more have been tried."""
    ahead: deque[T] = deque()
    for job in jobs:
        ahead.append(job)
        if len(ahead) > 4 * THREADS:
            yield ahead.popleft()
    yield from ahead


def _submit(
    pool: ThreadPoolExecutor, folder: Path, samples: Samples, rows: Rows, original: bool
) -> list[Future[list[Shard]]]:
    """A job for each tar; for images as they came, whose sizes are not known, one for the part."""
    folder.mkdir()
    if original or not rawtar.fits(rows):
        return [pool.submit(_write_files, folder, samples, rows, original)]
    each = max(1, tar_writer.SHARD_BYTES // rawtar.stride(math.prod(samples.shape)))
    return [
        pool.submit(_write_raw, folder, number, samples, rows[start : start + each])
        for number, start in enumerate(range(0, len(rows), each))
    ]


def _write_raw(folder: Path, number: int, samples: Samples, rows: Rows) -> list[Shard]:
    """A tar of pixels."""
    content = rawtar.encoded(rows, samples.labels[rows], samples.pixels(rows))
    return [write_shard(folder.parent, tar_name(folder.name, number), content.data, len(rows))]


def _write_files(folder: Path, samples: Samples, rows: Rows, original: bool) -> list[Shard]:
    """A part's tars, in which an image may stand as the file it came as."""
    decoded = math.prod(samples.shape)
    return [
        write_tar(folder.parent, tar_name(folder.name, number), some)
        for number, some in enumerate(filled(_entries(samples, rows, original), decoded))
    ]


def _entries(samples: Samples, rows: Rows, original: bool) -> Iterator[dict[str, Any]]:
    """What stands in a tar for each row."""
    for row in rows.tolist():
        pixels = samples.pixels(np.array([row]))  # a file that is no image is told here, by name
        file = samples.file(row) if original else None
        name, data = file or ("u8", pixels.tobytes())
        about = {"label": int(samples.labels[row]), "index": row}
        yield {"__key__": f"{row:08d}", name: data, "json": json.dumps(about).encode()}


def channel_statistics(samples: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of all images, in 0...1; sums are exact."""
    channels, height, width = samples.shape
    sums, squares = np.zeros(channels, dtype=object), np.zeros(channels, dtype=object)
    each = max(1, tar_writer.SHARD_BYTES // (8 * math.prod(samples.shape)))
    for start in range(0, len(samples.labels), each):
        rows = np.arange(start, min(start + each, len(samples.labels)), dtype=np.int64)
        images = samples.pixels(rows)
        for channel in range(channels):
            counts = np.bincount(images[:, channel].reshape(-1), minlength=256)
            sums[channel] += int(counts @ LEVELS)
            squares[channel] += int(counts @ LEVELS**2)
    pixels = len(samples.labels) * height * width
    means = [int(x) / pixels for x in sums]
    spreads = [math.sqrt(max(0.0, q / pixels - m * m)) for q, m in zip(squares, means, strict=True)]
    # a constant channel must not divide by zero
    return (
        tuple(round(m / 255, 6) for m in means),
        tuple(round(max(s / 255, 1e-3), 6) for s in spreads),
    )
