"""Run a function written for one client over the K clients of a lane: the only home of vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def over_clients(one: Callable[..., Tensor], *stacked: Any) -> Tensor:
    """`one` over the leading axis K of all tensors in `stacked`; its results stacked [K, ...].

    A lane of one client is peeled instead of vmapped: the plain kernels are faster, and the
    numbers are the same (tests/law/lanes_test.py).
    """
    lengths = [len(x) for x in torch.utils._pytree.tree_leaves(stacked)]
    if lengths[0] == 1:
        peeled = tree_map(lambda x: x[0], stacked)
        return one(*peeled)[None]
    result: Tensor = torch.func.vmap(one)(*stacked)
    return result
