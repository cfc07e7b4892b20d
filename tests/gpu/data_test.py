"""Are batches on a GPU those of the CPU, held there or streamed through pinned windows?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.data_shards.reading_test import LANES, data, folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
__all__ = ["folder"]  # the fixture


@pytest.mark.parametrize("streaming", [False, True])
def test_batches_are_those_of_the_cpu(folder: Path, streaming: bool) -> None:
    here = data(folder, dtype=torch.float32)
    there = data(
        folder, dtype=torch.float32, device=torch.device("cuda"), streaming=streaming, workers=4
    )
    for lane in LANES:
        for first in (0, 1):
            pairs = zip(here.epoch(lane, 3, 1, first), there.epoch(lane, 3, 1, first), strict=True)
            for wanted, found in pairs:
                assert all(x.is_cuda for x in found)
                assert torch.equal(found.labels.cpu(), wanted.labels)
                assert torch.equal(found.weight.cpu(), wanted.weight)
                torch.testing.assert_close(found.images.cpu(), wanted.images, rtol=1e-4, atol=1e-4)


def test_a_stream_of_batches_waits_for_no_copy(folder: Path) -> None:
    """Nothing synchronises between one batch and the next."""
    streamed = data(folder, dtype=torch.float32, device=torch.device("cuda"), streaming=True)
    list(streamed.epoch([0], 0, 0))  # what is made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(streamed.epoch([0], 1, 0))) == 13
    finally:
        torch.cuda.set_sync_debug_mode("default")
