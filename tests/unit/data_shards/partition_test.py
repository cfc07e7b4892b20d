"""Is every sample dealt out exactly once, the same way every time?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_shards.partition import by_label, dirichlet, iid
from fedcore.errors import ConfigError

labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array)
clients_of = st.integers(1, 12)
seeds = st.integers(0, 1000)


def covers(parts: list[np.ndarray], labels: np.ndarray, clients: int) -> bool:
    whole = np.concatenate(parts)
    ordered = all((np.diff(part) > 0).all() for part in parts)
    return len(parts) == clients and sorted(whole.tolist()) == list(range(len(labels))) and ordered


@settings(deadline=None, max_examples=60)
@given(labels_of, clients_of, st.sampled_from([1e-6, 0.05, 0.5, 10.0, 1e4]), seeds)
def test_dirichlet_uses_every_sample_once(labels, clients, alpha, seed) -> None:
    parts = dirichlet(labels, clients, alpha, seed)
    assert covers(parts, labels, clients)
    again = dirichlet(labels, clients, alpha, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(labels_of, clients_of, seeds)
def test_iid_parts_are_equal_in_size(labels, clients, seed) -> None:
    parts = iid(labels, clients, seed)
    assert covers(parts, labels, clients)
    sizes = [len(p) for p in parts]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(labels_of, clients_of, st.integers(1, 6), seeds)
def test_by_label_gives_each_client_its_number_of_classes(labels, clients, each, seed) -> None:
    classes = len(np.unique(labels))
    if each > classes or clients * each < classes:
        with pytest.raises(ConfigError, match=r"data\.labels_per_client"):
            by_label(labels, clients, each, seed)
        return
    parts = by_label(labels, clients, each, seed)
    assert covers(parts, labels, clients)
    assert all(len(np.unique(labels[p])) <= each for p in parts)


def test_dirichlet_follows_the_published_recipe() -> None:
    """A class's counts are the floored shares, the remainder one each to distinct clients."""
    from fedcore.seeds import EVERYONE, seed

    labels = np.repeat([0, 1], [100, 57])
    parts = dirichlet(labels, 7, 0.3, run_seed=4)
    for label, size in ((0, 100), (1, 57)):
        draws = np.random.default_rng(seed(4, EVERYONE, 0, "partition", label))
        draws.permutation(size)
        share = draws.dirichlet(np.full(7, 0.3))
        counts = np.array([(labels[p] == label).sum() for p in parts])
        extra = counts - np.floor(share * size)
        assert set(extra.tolist()) <= {0, 1}
        assert counts.sum() == size


def test_small_alpha_concentrates_and_large_alpha_spreads() -> None:
    labels = np.repeat(np.arange(10), 100)

    def largest_share(alpha: float) -> float:
        parts = dirichlet(labels, 10, alpha, 0)
        table = np.array([np.bincount(labels[p], minlength=10) for p in parts])
        return float((table.max(0) / 100).mean())

    assert largest_share(0.05) > 0.6
    assert largest_share(1000.0) < 0.15


def test_seeds_differ() -> None:
    labels = np.repeat(np.arange(4), 50)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(dirichlet(labels, 4, 1.0, 0), dirichlet(labels, 4, 1.0, 1), strict=True)
    )
