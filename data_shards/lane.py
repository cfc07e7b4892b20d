"""Tables of a lane's epoch: its steps one behind another, and of each step only who takes part.

The clients of a lane are sorted by their number of steps, the longest first, so that those of a
step are always the first ones, and a step's rows of a table lie together: a slice finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def taking_part(steps: Sequence[int]) -> list[int]:
    """How many clients each step has, of their numbers of steps (descending)."""
    counts, clients = [], len(steps)
    for step in range(max(steps, default=0)):
        while steps[clients - 1] <= step:
            clients -= 1
        counts.append(clients)
    return counts


def laid(each: Sequence[Tensor]) -> Tensor:
    """A table [sum of all steps, ...] of the clients' own tables [their steps, ...]."""
    if len(each) == 1:
        return each[0]
    counts = taking_part([len(own) for own in each])
    starts = torch.tensor([0, *accumulate(counts)])
    table = each[0].new_empty(int(starts[-1]), *each[0].shape[1:])
    for i, own in enumerate(each):
        table[starts[: len(own)] + i] = own
    return table
