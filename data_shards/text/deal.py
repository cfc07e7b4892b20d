"""Which documents are held out, and which client trains on which: pure functions of the seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_shards.balance import balanced
from data_shards.text.corpus import Document
from fedcore.config_lm import LMConfig
from fedcore.errors import ConfigError
from fedcore.seeds import EVERYONE, seed

CLIENTS = "lm.federated.clients"


def held_out(documents: int, share: float, data_seed: int) -> tuple[list[int], list[int]]:
    """(trained, held out) indices, each sorted: a random share, at least one document each."""
    order = _draws(data_seed, "held-out documents").permutation(documents).tolist()
    held = min(documents - 1, max(1, round(share * documents)))
    return sorted(order[held:]), sorted(order[:held])


def deal(
    documents: Sequence[Document], trained: Sequence[int], lm: LMConfig, data_seed: int
) -> list[list[int]]:
    """The trained indices of each client, sorted; one client unless the run is federated."""
    if lm.federated is None:
        return [list(trained)]
    if lm.data.partition == "folders":
        return by_folder(documents, trained, lm.federated.clients)
    return by_document(documents, trained, lm.federated.clients, data_seed)


def by_document(
    documents: Sequence[Document], trained: Sequence[int], clients: int, data_seed: int
) -> list[list[int]]:
    """Shuffled documents, each to the client with the fewest bytes so far: IID, equally long."""
    if clients > len(trained):
        want = f"at most {len(trained)} clients: a document each"
        raise ConfigError(CLIENTS, clients, want, f"{CLIENTS}={len(trained)}, or more text")
    order = _draws(data_seed, "deal documents").permutation(np.array(trained)).tolist()
    parts = balanced([documents[i].bytes for i in order], clients)
    return [sorted(order[piece] for piece in part) for part in parts]


def by_folder(
    documents: Sequence[Document], trained: Sequence[int], clients: int
) -> list[list[int]]:
    """Whole groups, the largest first, each to the client with the fewest bytes so far."""
    groups: dict[str, list[int]] = {}
    for i in trained:
        groups.setdefault(documents[i].group, []).append(i)
    if clients > len(groups):
        want = f"at most {len(groups)} clients: a folder each"
        way_out = f"{CLIENTS}={len(groups)}, or lm.data.partition=documents"
        raise ConfigError(CLIENTS, clients, want, way_out)
    sized = [(sum(documents[i].bytes for i in group), group) for group in groups.values()]
    sized.sort(key=lambda pair: -pair[0])  # stable
    parts = balanced([size for size, _ in sized], clients)
    return [sorted(i for piece in part for i in sized[piece][1]) for part in parts]


def _draws(data_seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(seed(data_seed, EVERYONE, 0, purpose))
