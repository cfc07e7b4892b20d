"""Dealing samples out to clients: pure functions of (labels, settings, seed).

Each returns N sorted index arrays in which every sample stands exactly once. A client may get none.
Memory is that of a few arrays of all samples, however many clients and classes there are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_shards.balance import balanced
from fedcore.batch import held_out_of
from fedcore.config_data import DataConfig
from fedcore.errors import ConfigError
from fedcore.seeds import EVERYONE, seed

Indices = NDArray[np.int64]
Labels = Indices
Owners = Indices  # the client of each sample [M]
Parts = list[Indices]

TRIES = 1000  # draws until the smallest client has data.min_samples


def partition(
    labels: Labels, data: DataConfig, clients: int, run_seed: int, users: Labels | None = None
) -> Parts:
    """Sorted sample indices of each client, as `data.partition` deals them out.

    labels [M]. users [M]: the user of each sample, if the source knows them. Raises `ConfigError`
    if the samples cannot be dealt out so.
    """
    if data.partition == "dirichlet":
        return dirichlet(labels, clients, data.alpha, run_seed, data.min_samples)
    if data.partition == "quantity":
        return quantity(len(labels), clients, data.alpha, run_seed, data.min_samples)
    if data.partition == "by_label":
        return by_label(labels, clients, data.labels_per_client, run_seed)
    if data.partition == "natural":
        return natural(_known(users, data.source), clients)
    return iid(labels, clients, run_seed)


def with_validation(parts: Parts, share: float, run_seed: int) -> list[tuple[Indices, Indices]]:
    """(training, validation) indices of each client, both sorted.

    share: of a client's samples, rounded up; one sample is left to train on. Each client's are
    drawn at its own address: they depend on what it holds, and not on the other clients.
    """
    return [_split(part, share, seed(run_seed, k, 0, "validation")) for k, part in enumerate(parts)]


def _split(part: Indices, share: float, client_seed: int) -> tuple[Indices, Indices]:
    order = np.random.default_rng(client_seed).permutation(part)
    held = held_out_of(len(part), share)
    return np.sort(order[held:]), np.sort(order[:held])


# -- the partitions


def iid(labels: Labels, clients: int, run_seed: int) -> Parts:
    """Random parts of equal size; sizes differ by at most one. labels [M]."""
    order = _draws(run_seed).permutation(len(labels)).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(
    labels: Labels, clients: int, alpha: float, run_seed: int, min_samples: int = 0
) -> Parts:
    """Per class, shares of the clients ~ Dir(alpha 1_N) (Yurochkin et al. 2019). labels [M].

    Counts are rounded down; the remainder goes one each to distinct random clients. With
    `min_samples`, all classes are drawn again until the smallest client has that many (Li et al.
    2022). Raises `ConfigError` if no draw gives it as many.
    """
    members = _by_class(labels)

    def draw(attempt: int) -> Owners:
        owners = np.empty(len(labels), dtype=np.int64)
        for label, own in members.items():
            draws = _draws(run_seed, label, attempt)
            order = draws.permutation(own)
            owners[order] = np.repeat(np.arange(clients), _counts(len(own), clients, alpha, draws))
        return owners

    return _repeated(draw, len(labels), clients, min_samples)


def quantity(
    samples: int, clients: int, alpha: float, run_seed: int, min_samples: int = 0
) -> Parts:
    """Sizes ~ M Dir(alpha 1_N), samples at random: labels are IID (Li et al. 2022).

    samples: M. Rounded, drawn again and refused as in `dirichlet`.
    """

    def draw(attempt: int) -> Owners:
        draws = _draws(run_seed, 0, attempt)
        order = draws.permutation(samples)
        owners = np.empty(samples, dtype=np.int64)
        owners[order] = np.repeat(np.arange(clients), _counts(samples, clients, alpha, draws))
        return owners

    return _repeated(draw, samples, clients, min_samples)


def by_label(labels: Labels, clients: int, labels_per_client: int, run_seed: int) -> Parts:
    """Each client holds `labels_per_client` classes; a class is shared equally by its clients.

    labels [M]. Classes are handed out in a random order, over and over, so that each is held about
    equally often. Raises `ConfigError` when the clients cannot cover all classes.
    """
    members = _by_class(labels)
    if labels_per_client > len(members) or clients * labels_per_client < len(members):
        raise ConfigError(
            "data.labels_per_client",
            labels_per_client,
            f"1...{len(members)} labels, and all {len(members)} covered by {clients} clients",
            f"data.labels_per_client={min(len(members), -(-len(members) // clients))}",
        )
    order = _draws(run_seed).permutation(np.array(list(members)))
    slots = np.resize(order, clients * labels_per_client)  # the class of each place
    owners = np.empty(len(labels), dtype=np.int64)
    for label, own in members.items():
        shuffled = _draws(run_seed, 1 + label).permutation(own)
        holders = np.flatnonzero(slots == label) // labels_per_client
        for client, chunk in zip(holders, np.array_split(shuffled, len(holders)), strict=True):
            owners[chunk] = client
    return _parts(owners, clients)


def natural(users: Labels, clients: int) -> Parts:
    """Whole users for each client: client k is the k-th user if there are as many of both.

    users [M]: of each sample. With fewer clients, users go, the largest first, to the client that
    has the fewest samples so far. Raises `ConfigError` for more clients than users.
    """
    _, number = np.unique(users, return_inverse=True)
    sizes = np.bincount(number)
    if clients > len(sizes):
        want = f"at most {len(sizes)} clients: a user each"
        raise ConfigError("clients.count", clients, want, f"clients.count={len(sizes)}")
    if clients == len(sizes):
        return _parts(number, clients)
    largest = np.argsort(-sizes, kind="stable")
    owner_of = np.empty(len(sizes), dtype=np.int64)
    for client, part in enumerate(balanced(sizes[largest].tolist(), clients)):
        owner_of[largest[part]] = client
    return _parts(owner_of[number], clients)


def _known(users: Labels | None, source: str) -> Labels:
    if users is None:
        want = f"a source whose users are known, which those of {source} are not"
        raise ConfigError("data.partition", "natural", want, "data.partition=dirichlet")
    return users


# -- what they share


def _draws(run_seed: int, step: int = 0, attempt: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed(run_seed, EVERYONE, attempt, "partition", step))


def _by_class(labels: Labels) -> dict[int, Indices]:
    """The samples of each class that occurs, sorted."""
    order = np.argsort(labels, kind="stable")
    classes, first = np.unique(labels[order], return_index=True)
    return dict(zip(classes.tolist(), np.split(order, first[1:]), strict=True))


def _counts(
    samples: int, clients: int, alpha: float, draws: np.random.Generator
) -> NDArray[np.int64]:
    """How many of the samples each client gets [N]: their shares are Dirichlet."""
    share = draws.dirichlet(np.full(clients, alpha))
    if not np.isfinite(share).all() or share.sum() == 0:
        # below alpha ~ 1e-3 the draw underflows; its limit gives all to one client
        share = np.eye(clients)[draws.integers(clients)]
    counts = np.floor(share * samples).astype(np.int64)
    lucky = draws.choice(clients, samples - counts.sum(), replace=False)
    counts[lucky] += 1
    return counts


def _repeated(draw: Callable[[int], Owners], samples: int, clients: int, min_samples: int) -> Parts:
    """The first draw in which each client has that many; each try has a seed address of its own."""
    key = "data.min_samples"
    if clients * min_samples > samples:
        want = f"at most {samples // clients}: there are {samples:,} samples for {clients} clients"
        raise ConfigError(key, min_samples, want, f"{key}={samples // clients}")
    best = 0
    for attempt in range(TRIES):
        owners = draw(attempt)
        smallest = int(np.bincount(owners, minlength=clients).min())
        if smallest >= min_samples:
            return _parts(owners, clients)
        best = max(best, smallest)
    want = f"at most {best}: no more were in the smallest of {clients} clients in {TRIES:,} draws"
    raise ConfigError(key, min_samples, want, f"{key}={best}, a larger data.alpha or fewer clients")


def _parts(owners: Owners, clients: int) -> Parts:
    """The samples of each client, sorted."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=clients))
    return np.split(order, ends[:-1])
