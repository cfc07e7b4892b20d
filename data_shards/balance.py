"""Pieces that stay whole, dealt out so that all clients hold about equally much."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced(sizes: Sequence[int], clients: int) -> list[list[int]]:
    """The pieces of each client, by number: each piece, in order, goes to who has least so far.

    Of clients that hold equally much, the first: so no client is left without a piece.
    """
    parts: list[list[int]] = [[] for _ in range(clients)]
    load = [(0, client) for client in range(clients)]  # a heap
    for piece, size in enumerate(sizes):
        held, client = heapq.heappop(load)
        parts[client].append(piece)
        heapq.heappush(load, (held + size, client))
    return parts
