"""Which rank owns which client: pure, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence


def form_lanes(samples: Sequence[int], width: int) -> list[list[int]]:
    """All clients with samples cut into lanes of `width`, clients of similar length together.

    Formed over the whole run and not over a rank's clients: the kernels round differently for
    another number of clients, so a lane's company must not depend on the number of ranks.
    """
    working = [k for k in range(len(samples)) if samples[k]]
    by_length = sorted(working, key=lambda k: (samples[k], k))
    return [by_length[i : i + width] for i in range(0, len(by_length), width)]


def kept_together(width: int, clients: int, per_round: int | None) -> int:
    """How many clients one rank must own together, so that lanes of `width` can be made of them.

    Only `per_round` of all clients take part in a round (None = all): so many that their
    participants make a full lane on average.
    """
    return width if per_round is None else width * -(-clients // per_round)


def balance(
    lanes: Sequence[Sequence[int]], samples: Sequence[int], ranks: int
) -> list[list[list[int]]]:
    """Lanes of each rank, so that ranks hold about equally many samples; some may get none.

    Largest first to the least loaded rank (LPT, Graham 1969).
    """
    owned: list[list[list[int]]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    size = {lane[0]: sum(samples[k] for k in lane) for lane in lanes}
    for lane in sorted(lanes, key=lambda lane: (-size[lane[0]], lane[0])):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        owned[rank].append(list(lane))
        load[rank] += size[lane[0]]
    return owned
