"""Who takes part in a round: pure, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedcore.seeds import EVERYONE, generator


def participants(clients: Sequence[int], per_round: int | None, seed: int, round: int) -> list[int]:
    """The clients of that round, in id order: `per_round` of them drawn by seed, or all."""
    if per_round is None or per_round >= len(clients):
        return list(clients)
    order = torch.randperm(len(clients), generator=generator(seed, EVERYONE, round, "participants"))
    return sorted(clients[i] for i in order[:per_round].tolist())
