"""Run a function written for one client over the K clients of a lane: the only home of vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def over_clients(one: Callable[..., Tensor], *stacked: Any) -> Tensor:
    """`one` over the leading axis K of all tensors in `stacked`; its results stacked [K, ...].

    A lane of one client is peeled instead of vmapped: the plain kernels are faster, and the
    numbers are the same (tests/law/lanes_test.py).
    """
    if _length(stacked) == 1:
        return one(*map(_peeled, stacked))[None]
    result: Tensor = torch.func.vmap(one)(*stacked)
    return result


def _length(stacked: Any) -> int | None:
    """K, read off the first tensor; None if there is none."""
    if isinstance(stacked, Tensor):
        return len(stacked)
    parts = stacked.values() if isinstance(stacked, dict) else stacked
    return next((n for part in parts if (n := _length(part)) is not None), None)


def _peeled(stacked: Any) -> Any:
    """The same nested dictionaries, lists and tuples, of the first client's tensors. Short: it is
    done in each step, and torch's tree_map takes several times as long."""
    if isinstance(stacked, Tensor):
        return stacked[0]
    if isinstance(stacked, dict):
        return {name: _peeled(part) for name, part in stacked.items()}
    parts = map(_peeled, stacked)
    return type(stacked)(*parts) if hasattr(stacked, "_fields") else type(stacked)(parts)
