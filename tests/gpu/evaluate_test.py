"""Does an evaluation on a CUDA device wait for it no more often if there are more clients?"""

from __future__ import annotations

import warnings

import pytest
import torch

from bench.evaluate import CASES, pair

pytestmark = pytest.mark.gpu


def waits(clients: int, width: int) -> int:
    """How often an evaluation waits for the device, once the device is warm."""
    case, device = CASES["small_cnn 8x8"], torch.device("cuda")
    ours = pair(case, width, clients, 600, device, at_once=False).ours
    ours(0)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            ours(0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in met)


@pytest.mark.parametrize("width", [1, 4])
def test_an_evaluation_waits_as_often_for_any_number_of_clients(width: int) -> None:
    assert waits(12, width) == waits(4, width) <= 4
