"""Are images the same in both layouts, in one piece or many, and do they lie as asked for?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from data_shards import pixels, read
from data_shards.lane import laid, taking_part
from data_shards.manifest import Manifest
from data_shards.read import TestSamples
from data_shards.validation import ValidationSamples
from data_shards.write import Dealt
from tests.unit.data_shards.faulty import BOTH
from tests.unit.data_shards.reading_test import data, equal
from tests.unit.data_shards.shards_test import data as grey
from tests.unit.data_shards.shards_test import folder as grey_folder
from tests.unit.data_shards.toy_store import SIZES, parts, stored

__all__ = ["grey_folder"]  # the fixture
LANE, CPU = [0, 4, 2, 3], torch.device("cpu")
AUGMENT = pytest.mark.parametrize("augment", [False, True], ids=["plain", "views"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last client's samples are validated with, too."""
    dealt = [
        Dealt(part, part if k == 4 else np.zeros(0, dtype=np.int64))
        for k, part in enumerate(parts())
    ]
    return stored(tmp_path_factory.mktemp("store") / "toy", dealt)


def lies_channels_last(images: Tensor) -> bool:
    """Without a copy, and seen as such by a convolution."""
    return images.is_contiguous(memory_format=torch.channels_last) and images.stride(1) == 1


@AUGMENT
@BOTH
def test_both_layouts_hold_the_same_bits(folder: Path, streaming: bool, augment: bool) -> None:
    one, last = (
        data(folder, streaming=streaming, augment=augment, held_out=0.2, channels_last=x)
        for x in (False, True)
    )
    for plain, batch in zip(one.epoch(LANE, 1, 0), last.epoch(LANE, 1, 0), strict=True):
        assert equal(plain, batch)
        for client in batch.images:
            flat = client.flatten(0, 1)
            assert flat.data_ptr() == client.data_ptr()
            assert lies_channels_last(flat)
    assert equal(one.held_out(LANE, 1, 0, 2), last.held_out(LANE, 1, 0, 2))


@BOTH
def test_evaluation_sees_the_same_bits_in_both_layouts(folder: Path, streaming: bool) -> None:
    where = (folder, Manifest.load(folder))
    on = {"device": CPU, "dtype": torch.float32}
    tests = [TestSamples(*where, **on, channels_last=x) for x in (False, True)]
    for plain, chunk in zip(*(test.chunks(10) for test in tests), strict=True):
        assert torch.equal(plain, chunk)
        assert lies_channels_last(chunk)
    samples = [
        ValidationSamples(*where, [4], **on, streaming=streaming, channels_last=x)
        for x in (False, True)
    ]
    for plain, chunk in zip(*(own.chunks(4, 5) for own in samples), strict=True):
        assert all(map(torch.equal, plain, chunk))
        assert lies_channels_last(chunk[0])


def test_grey_images_lie_channels_last_too(grey_folder: Path) -> None:
    for augment in (False, True):
        batches = zip(
            grey(grey_folder, [0], augment=augment).epoch([0], 0, 0),
            grey(grey_folder, [0], augment=augment, channels_last=True).epoch([0], 0, 0),
            strict=True,
        )
        for plain, batch in batches:
            assert equal(plain, batch)
            flat = batch.images[0].flatten(0, 1)  # a single channel may have any stride
            assert flat.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels_last", [False, True])
@AUGMENT
@BOTH
def test_views_drawn_and_made_in_pieces_are_those_made_at_once(
    folder: Path,
    streaming: bool,
    augment: bool,
    channels_last: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of steps that do not end where clients do; chunks of a few rows, the last shorter."""
    source = data(folder, streaming=streaming, augment=augment, channels_last=channels_last)
    whole = list(source.epoch(LANE, 0, 1))
    for block, chunk in ((1, 1), (100, 180), (300, 900), (2**20, 60)):
        monkeypatch.setattr(read, "BLOCK", block)
        monkeypatch.setattr(pixels, "CHUNK", chunk)
        for first in (0, 3):
            pairs = zip(source.epoch(LANE, 0, 1, first), whole[first:], strict=True)
            assert all(equal(*pair) for pair in pairs)


@pytest.mark.parametrize("first", range(5))
@BOTH
def test_a_lane_is_its_clients_one_by_one(folder: Path, streaming: bool, first: int) -> None:
    source = data(folder, streaming=streaming)
    alone = {k: list(source.epoch([k], 3, 2)) for k in LANE}
    assert {k: len(batches) for k, batches in alone.items()} == {0: 13, 4: 6, 2: 2, 3: 1}
    step = first
    for step, batch in enumerate(source.epoch([*LANE, 1], 3, 2, first), first):
        wanted = [alone[k][step] for k in LANE if step < len(alone[k])]
        columns = zip(*wanted, strict=True)
        assert all(torch.equal(torch.cat(x), y) for x, y in zip(columns, batch, strict=True))
    assert step == 12
    assert SIZES[1] == 0


class Operations(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@AUGMENT
def test_a_step_of_a_lane_takes_no_more_operations_than_one_of_a_client(
    folder: Path, augment: bool
) -> None:
    """What the host does for a step does not grow with the clients."""
    source, counts = data(folder, augment=augment, channels_last=True), []
    for lane in ([0], [0, 4], [0, 4, 2]):
        batches = source.epoch(lane, 0, 0)
        next(batches)
        with Operations() as operations:
            assert len(next(batches).labels) == len(lane)
        counts.append(operations.count)
    assert counts[0] == counts[1] == counts[2]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_tables_are_laid_step_by_step(steps: list[int]) -> None:
    steps.sort(reverse=True)
    each = [
        torch.tensor([[10 * client + step] for step in range(n)]) for client, n in enumerate(steps)
    ]
    counts = taking_part(steps)
    wanted = [[10 * client + step] for step, count in enumerate(counts) for client in range(count)]
    assert laid(each).tolist() == wanted
    assert counts == [sum(n > step for n in steps) for step in range(steps[0])]
    assert taking_part(steps, 2) == counts[2:]
