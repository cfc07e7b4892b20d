"""For all tests."""

from __future__ import annotations

import torch

# toy tensors gain nothing from threads, and with other processes about they wait for each other
torch.set_num_threads(1)
