"""Which rank owns which client, and who takes part in a round: pure, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedcore.seeds import EVERYONE, generator


def balance(samples: Sequence[int], ranks: int) -> list[list[int]]:
    """Clients of each rank in id order, so that ranks hold about equally many samples.

    Largest first to the least loaded rank (LPT, Graham 1969). A client without samples has no
    rank. Ranks may get several clients or none.
    """
    owned: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for client in sorted(range(len(samples)), key=lambda k: (-samples[k], k)):
        if samples[client]:
            rank = min(range(ranks), key=lambda r: (load[r], r))
            owned[rank].append(client)
            load[rank] += samples[client]
    return [sorted(clients) for clients in owned]


def participants(clients: Sequence[int], per_round: int | None, seed: int, round: int) -> list[int]:
    """The clients of that round, in id order: `per_round` of them drawn by seed, or all."""
    if per_round is None or per_round >= len(clients):
        return list(clients)
    order = torch.randperm(len(clients), generator=generator(seed, EVERYONE, round, "participants"))
    return sorted(clients[i] for i in order[:per_round].tolist())
