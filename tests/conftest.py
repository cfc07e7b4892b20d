"""For all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

# toy tensors gain nothing from threads, and with other processes about they wait for each other
torch.set_num_threads(1)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """A world listens to signals; the tests after one that joins a world must not."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
