"""Tables of a lane's epoch: its steps one behind another, and of each step only who takes part.

The clients of a lane are sorted by their number of steps, the longest first, so that those of a
step are always the first ones, and a step's rows of a table lie together: a slice finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def taking_part(steps: Sequence[int], first: int = 0) -> list[int]:
    """How many clients each step from `first` on has, of their numbers of steps (descending)."""
    counts, clients = [], len(steps)
    for step in range(first, max(steps, default=0)):
        while steps[clients - 1] <= step:
            clients -= 1
        counts.append(clients)
    return counts


def laid(each: Sequence[Tensor]) -> Tensor:
    """A table [sum of all steps, ...] of the clients' own tables [their steps, ...], the longest
    of which come first."""
    steps = [own.shape[0] for own in each]
    if len(each) == 1:
        return each[0]
    if steps[0] == steps[-1]:
        return torch.stack(list(each), 1).flatten(0, 1)
    starts = torch.tensor([0, *accumulate(steps[:-1])])
    step = torch.arange(steps[0])[:, None]
    return torch.cat(list(each))[(starts + step)[step < torch.tensor(steps)]]
