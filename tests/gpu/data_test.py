"""Are batches on a GPU those of the CPU, held there or streamed through pinned windows?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from data_shards.manifest import Manifest
from data_shards.read import TestSamples
from tests.unit.data_shards.reading_test import LANES, data, folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
__all__ = ["folder"]  # the fixture
CUDA = torch.device("cuda")


@contextmanager
def no_waiting() -> Iterator[None]:
    """An operation that synchronises the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_batches_are_those_of_the_cpu(
    folder: Path, streaming: bool, augment: bool, channels_last: bool
) -> None:
    usual = {"dtype": torch.float32, "augment": augment, "held_out": 0.1}
    usual["channels_last"] = channels_last
    here = data(folder, **usual)
    there = data(folder, **usual, device=CUDA, streaming=streaming, workers=4)
    for lane in LANES:
        for first in (0, 1):
            there.ahead(lane, 3, 1)
            pairs = zip(here.epoch(lane, 3, 1, first), there.epoch(lane, 3, 1, first), strict=True)
            for wanted, found in pairs:
                assert all(x.is_cuda for x in found)
                flat = found.images[0].flatten(0, 1)
                assert flat.is_contiguous(memory_format=torch.channels_last) == channels_last
                assert torch.equal(found.labels.cpu(), wanted.labels)
                assert torch.equal(found.weight.cpu(), wanted.weight)
                torch.testing.assert_close(found.images.cpu(), wanted.images, rtol=1e-4, atol=1e-4)
    one, other = (x.held_out([0, 4], 0, 0, 1) for x in (here, there))
    torch.testing.assert_close(other.images.cpu(), one.images, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_an_epoch_of_a_lane_waits_for_nothing(
    folder: Path, streaming: bool, augment: bool, channels_last: bool
) -> None:
    """From the first batch to the last nothing synchronises, not when it begins either."""
    settings = {"dtype": torch.float32, "augment": augment, "channels_last": channels_last}
    source = data(folder, **settings, held_out=0.1, device=CUDA, streaming=streaming)
    lane = [0, 4, 2, 3]
    steps = len(list(source.epoch(lane, 0, 0)))  # what is made once
    source.held_out(lane, 0, 0, 0)
    with no_waiting():
        source.ahead(lane, 1, 0)
        assert len(list(source.epoch(lane, 1, 0))) == steps
        assert len(list(source.epoch(lane, 1, 1, 2))) == steps - 2
        source.held_out(lane, 1, 0, 3)


def test_evaluation_waits_for_nothing(folder: Path) -> None:
    where = (folder, Manifest.load(folder))
    for channels_last in (False, True):
        here = TestSamples(*where, device=torch.device("cpu"), dtype=torch.float32)
        there = TestSamples(*where, device=CUDA, dtype=torch.float32, channels_last=channels_last)
        list(there.chunks(7))
        with no_waiting():
            found = list(there.chunks(7))
        wanted = torch.cat(list(here.chunks(7)))
        torch.testing.assert_close(torch.cat(found).cpu(), wanted, rtol=1e-5, atol=1e-5)
