"""Dealing samples out to clients: pure functions of (labels, settings, seed).

Each returns N sorted index arrays in which every sample stands exactly once. A client may get none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcore.config_data import DataConfig
from fedcore.errors import ConfigError
from fedcore.seeds import EVERYONE, seed

Labels = NDArray[np.int64]
Parts = list[NDArray[np.int64]]


def partition(labels: Labels, data: DataConfig, clients: int, run_seed: int) -> Parts:
    """The partition that the configuration asks for."""
    if data.partition == "dirichlet":
        return dirichlet(labels, clients, data.alpha, run_seed)
    if data.partition == "by_label":
        return by_label(labels, clients, data.labels_per_client, run_seed)
    return iid(labels, clients, run_seed)


def _draws(run_seed: int, step: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed(run_seed, EVERYONE, 0, "partition", step))


def _sorted(parts: list[list[NDArray[np.int64]]]) -> Parts:
    empty = np.zeros(0, dtype=np.int64)
    return [np.sort(np.concatenate([empty, *chunks])) for chunks in parts]


def dirichlet(labels: Labels, clients: int, alpha: float, run_seed: int) -> Parts:
    """Per class, proportions ~ Dir(alpha 1_N) (Hsu et al. 2019).

    Counts are floored; the remainder goes one each to distinct random clients.
    """
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        draws = _draws(run_seed, int(label))
        members = draws.permutation(np.flatnonzero(labels == label))
        share = draws.dirichlet(np.full(clients, alpha))
        if not np.isfinite(share).all() or share.sum() == 0:
            # below alpha ~ 1e-3 the draw underflows; its limit gives all to one client
            share = np.eye(clients)[draws.integers(clients)]
        counts = np.floor(share * len(members)).astype(np.int64)
        lucky = draws.choice(clients, len(members) - counts.sum(), replace=False)
        counts[lucky] += 1
        for client, chunk in enumerate(np.split(members, np.cumsum(counts)[:-1])):
            parts[client].append(chunk)
    return _sorted(parts)


def iid(labels: Labels, clients: int, run_seed: int) -> Parts:
    """Equal random parts; sizes differ by at most one."""
    order = _draws(run_seed).permutation(len(labels)).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, clients)]


def by_label(labels: Labels, clients: int, labels_per_client: int, run_seed: int) -> Parts:
    """Each client holds `labels_per_client` classes; a class is shared equally by its clients.

    Classes are handed out in a random order, round and round, so that each is held about equally
    often. Raises `ConfigError` when the clients cannot cover all classes.
    """
    classes = np.unique(labels)
    if labels_per_client > len(classes) or clients * labels_per_client < len(classes):
        raise ConfigError(
            "data.labels_per_client",
            labels_per_client,
            f"1...{len(classes)} labels, and all {len(classes)} covered by {clients} clients",
            f"data.labels_per_client={min(len(classes), -(-len(classes) // clients))}",
        )
    order = _draws(run_seed).permutation(classes)
    holders: dict[int, list[int]] = {int(c): [] for c in classes}
    for slot in range(clients * labels_per_client):
        holders[int(order[slot % len(order)])].append(slot // labels_per_client)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label, owners in holders.items():
        members = _draws(run_seed, 1 + label).permutation(np.flatnonzero(labels == label))
        for client, chunk in zip(owners, np.array_split(members, len(owners)), strict=True):
            parts[client].append(chunk)
    return _sorted(parts)
