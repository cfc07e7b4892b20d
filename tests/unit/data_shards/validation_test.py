"""Are a client's validation samples its own, the same however they are read, and apart?"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data_shards import stream
from data_shards.blocks import read_block
from data_shards.manifest import Manifest
from data_shards.partition import with_validation
from data_shards.validation import ValidationSamples
from data_shards.write import Dealt
from fedcore.errors import ShardError
from tests.unit.data_shards.toy_store import SIZES, arrays, parts, sharded, stored

ASIDE = {0: 15, 2: 3, 4: 7}  # clients 1 and 3 have none


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(
        tmp_path_factory.mktemp("store") / "toy",
        [Dealt(*pair) for pair in with_validation(parts(), 0.3, 0)],
    )


def samples(folder: Path, clients: list[int] | None = None, **other: Any) -> ValidationSamples:
    device, dtype = torch.device("cpu"), torch.float64
    chosen = list(range(len(SIZES))) if clients is None else clients
    return ValidationSamples(
        folder, Manifest.load(folder), chosen, device=device, dtype=dtype, **other
    )


def all_of(found: ValidationSamples, client: int, size: int) -> tuple[Tensor, Tensor]:
    chunks = list(found.chunks(client, size))
    assert all(len(images) == len(labels) <= size for images, labels in chunks)
    images, labels = zip(*chunks, strict=True)
    return torch.cat(images), torch.cat(labels)


def rows_in(folder: Path, part: str) -> list[int]:
    """The index of each sample in the tars of a part, in their order."""
    rows = []
    for file in sorted((folder / part).glob("*.tar")):
        with tarfile.open(file) as tar:
            texts = [tar.extractfile(m).read() for m in tar if m.name.endswith(".json")]  # type: ignore[union-attr]
        rows += [json.loads(text)["index"] for text in texts]
    return rows


@pytest.mark.parametrize("size", [1, 4, 6, 1000])
@pytest.mark.parametrize("streaming", [False, True])
def test_chunks_are_the_plain_images_of_the_source_normalised(
    folder: Path, streaming: bool, size: int
) -> None:
    found, manifest = samples(folder, streaming=streaming), Manifest.load(folder)
    assert found.samples == ASIDE
    mean, std = (np.array(x)[:, None, None] for x in (manifest.mean, manifest.std))
    for client in ASIDE:
        rows = rows_in(folder, f"validation_{client:05d}")
        images, labels = all_of(found, client, size)
        wanted = (arrays().images[rows] / 255 - mean) / std
        assert np.allclose(images.numpy(), wanted, rtol=0, atol=1e-12)
        assert labels.tolist() == (np.array(rows) % 4).tolist()


def test_every_reader_gives_the_same_bits_each_time(folder: Path) -> None:
    held, streamed = samples(folder), samples(folder, streaming=True, workers=5)
    for client in ASIDE:
        wanted = list(held.chunks(client, 4))
        for again in (held, streamed, streamed, samples(folder, [client], streaming=True)):
            pairs = zip(again.chunks(client, 4), wanted, strict=True)
            assert all(all(map(torch.equal, *pair)) for pair in pairs)


def test_no_client_trains_on_what_any_is_evaluated_on(folder: Path) -> None:
    trained = Counter(row for k in range(5) for row in rows_in(folder, f"client_{k:05d}"))
    aside = Counter(row for k in range(5) for row in rows_in(folder, f"validation_{k:05d}"))
    assert sum(aside.values()) == sum(ASIDE.values())
    assert trained + aside == Counter(range(sum(SIZES)))


def test_a_run_trains_on_none_of_them(folder: Path) -> None:
    """Images are all different, so what an epoch shows tells what is in it."""
    data, found = sharded(folder, [0], dtype=torch.float64), samples(folder)
    shown = torch.cat([b.images[0, 0] for b in data.epoch([0], 0, 0)]).flatten(1).tolist()
    aside = all_of(found, 0, 8)[0].flatten(1).tolist()
    assert len({tuple(x) for x in shown}) == 35
    assert not {tuple(x) for x in shown} & {tuple(x) for x in aside}


@pytest.mark.parametrize("streaming", [False, True])
def test_only_the_client_s_own_files_are_opened(
    folder: Path, tmp_path: Path, streaming: bool
) -> None:
    """Nothing else is there."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    for part in copy.iterdir():
        if part.is_dir() and part.name != "validation_00002":
            shutil.rmtree(part)
    assert len(all_of(samples(copy, [1, 2, 3], streaming=streaming), 2, 2)[1]) == 3
    with pytest.raises(ShardError, match=r"validation_00004.*missing"):
        all_of(samples(copy, [4], streaming=streaming), 4, 2)


def test_a_stream_reads_each_tar_once_and_a_few_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small chunks of large tars must not read them again and again; nor all at once."""
    opened: list[str] = []

    def watched(folder: Path, manifest: Manifest, shard: Any) -> Any:
        opened.append(shard.file)
        return read_block(folder, manifest, shard)

    monkeypatch.setattr(stream, "read_block", watched)
    chunks = samples(folder, streaming=True, workers=1).chunks(0, 1)
    assert not opened
    next(chunks)
    assert len(opened) < 4
    assert len(list(chunks)) == 14
    assert sorted(opened) == sorted({*opened})
    assert len(opened) == len(list((folder / "validation_00000").iterdir()))
