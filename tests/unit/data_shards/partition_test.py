"""Is every sample dealt out exactly once, the same way every time, and as it is published?"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_shards.partition import (
    by_label,
    dirichlet,
    iid,
    natural,
    partition,
    quantity,
    with_validation,
)
from fedcore.batch import held_out_of
from fedcore.config import DataConfig
from fedcore.errors import ConfigError
from fedcore.seeds import EVERYONE, seed

labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array)
clients_of = st.integers(1, 12)
alphas = st.sampled_from([1e-6, 0.05, 0.5, 10.0, 1e4])
seeds = st.integers(0, 1000)
Parts = list[np.ndarray]


def covers(parts: Parts, samples: int, clients: int) -> bool:
    whole = np.concatenate(parts)
    ordered = all((np.diff(part) > 0).all() and part.dtype == np.int64 for part in parts)
    return len(parts) == clients and sorted(whole.tolist()) == list(range(samples)) and ordered


def equal(some: Parts, others: Parts) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def table(parts: Parts, labels: np.ndarray) -> np.ndarray:
    """Samples of each client and class [N, C]."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@settings(deadline=None, max_examples=60)
@given(labels_of, clients_of, alphas, seeds)
def test_dirichlet_uses_every_sample_once(labels, clients, alpha, seed) -> None:
    parts = dirichlet(labels, clients, alpha, seed)
    assert covers(parts, len(labels), clients)
    assert equal(parts, dirichlet(labels, clients, alpha, seed))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), clients_of, alphas, seeds)
def test_quantity_uses_every_sample_once(samples, clients, alpha, seed) -> None:
    parts = quantity(samples, clients, alpha, seed)
    assert covers(parts, samples, clients)
    assert equal(parts, quantity(samples, clients, alpha, seed))


@given(labels_of, clients_of, seeds)
def test_iid_parts_are_equal_in_size(labels, clients, seed) -> None:
    parts = iid(labels, clients, seed)
    assert covers(parts, len(labels), clients)
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
    assert covers(parts, len(labels), clients)
    assert all(len(np.unique(labels[p])) <= each for p in parts)


def published(labels: np.ndarray, clients: int, alpha: float, run: int, attempt: int = 0) -> Parts:
    """Yurochkin et al. 2019 as one would write it down, a sample at a time."""
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in sorted(set(labels.tolist())):
        draws = np.random.default_rng(seed(run, EVERYONE, attempt, "partition", label))
        left = draws.permutation([i for i, y in enumerate(labels) if y == label]).tolist()
        shares = draws.dirichlet([alpha] * clients).tolist()
        counts = [int(share * len(left)) for share in shares]
        for client in draws.choice(clients, len(left) - sum(counts), replace=False):
            counts[client] += 1
        for client, count in enumerate(counts):
            parts[client] += left[:count]
            left = left[count:]
    return [np.array(sorted(part), dtype=np.int64) for part in parts]


@settings(deadline=None, max_examples=40)
@given(labels_of, clients_of, st.sampled_from([0.05, 0.5, 10.0]), seeds)
def test_dirichlet_is_the_published_formula(labels, clients, alpha, run) -> None:
    assert equal(dirichlet(labels, clients, alpha, run), published(labels, clients, alpha, run))


def test_an_update_deals_as_before() -> None:
    """Shards are found by their settings: other parts under the same settings would not be seen."""
    labels = np.arange(1000) % 7
    found = {
        "iid": iid(labels, 6, 3),
        "by_label": by_label(labels, 6, 2, 3),
        "dirichlet": dirichlet(labels, 6, 0.1, 3),
    }
    digests = {
        name: hashlib.sha256(b"|".join(part.tobytes() for part in parts)).hexdigest()[:16]
        for name, parts in found.items()
    }
    assert digests == {
        "iid": "dc5955a4700fb62e",
        "by_label": "deaab8244690fea1",
        "dirichlet": "79174b76f988f496",
    }


def test_the_order_of_samples_does_not_move_the_counts() -> None:
    """Only how many there are of each class matters, and to some not even that."""
    labels = np.random.default_rng(0).integers(0, 5, 400)
    other = np.random.default_rng(1).permutation(labels)
    for deal in (lambda y: dirichlet(y, 6, 0.3, 2), lambda y: by_label(y, 6, 2, 2)):
        assert np.array_equal(table(deal(labels), labels), table(deal(other), other))
    assert equal(iid(labels, 6, 2), iid(other, 6, 2))
    for blind in ("quantity", "natural"):
        data, users = DataConfig(partition=blind), np.arange(400) % 9
        assert equal(
            partition(labels, data, 6, 2, users),
            partition(other, data, 6, 2, users),
        )


def test_small_alpha_concentrates_and_large_alpha_spreads() -> None:
    labels = np.repeat(np.arange(10), 100)

    def largest_share(alpha: float) -> float:
        return float((table(dirichlet(labels, 10, alpha, 0), labels).max(0) / 100).mean())

    assert largest_share(0.05) > 0.6
    assert largest_share(1000.0) < 0.15


def test_the_limits_of_alpha_are_a_single_owner_and_equal_shares() -> None:
    labels = np.repeat(np.arange(10), 100)
    assert set(table(dirichlet(labels, 5, 1e-6, 0), labels).flat) == {0, 100}
    assert set(table(dirichlet(labels, 5, 1e6, 0), labels).flat) <= {19, 20, 21}
    assert sorted(map(len, quantity(1000, 5, 1e-6, 0))) == [0, 0, 0, 0, 1000]
    assert all(199 <= len(part) <= 201 for part in quantity(1000, 5, 1e6, 0))


def test_sizes_of_quantity_are_dirichlet_and_labels_are_not_skewed() -> None:
    """Of Dir(alpha 1_N), a share has the variance (N - 1) / (N^2 (N alpha + 1))."""
    shares = np.array([[len(p) for p in quantity(2000, 5, 0.5, run)] for run in range(400)]) / 2000
    assert shares.var(0).mean() == pytest.approx(4 / (25 * 3.5), rel=0.1)
    labels = np.arange(2000) % 4
    parts = [p for p in quantity(2000, 5, 0.5, 0) if len(p) > 200]
    assert parts
    assert np.abs(table(parts, labels) / [[len(p)] for p in parts] - 0.25).max() < 0.1


@pytest.mark.parametrize("name", ["dirichlet", "quantity", "iid", "by_label"])
def test_another_seed_deals_otherwise(name: str) -> None:
    labels, data = np.repeat(np.arange(4), 50), DataConfig(partition=name, alpha=1.0)
    assert not equal(partition(labels, data, 4, 0), partition(labels, data, 4, 1))


# -- a smallest client


@settings(deadline=None, max_examples=60)
@given(labels_of, clients_of, st.integers(1, 6), seeds)
def test_min_samples_is_kept_or_refused_with_a_way_out(labels, clients, least, run) -> None:
    for deal in (
        lambda least: dirichlet(labels, clients, 1.0, run, least),
        lambda least: quantity(len(labels), clients, 1.0, run, least),
    ):
        try:
            parts = deal(least)
        except ConfigError as error:
            reached = int(error.try_.split("=")[1].split(",")[0])
            assert reached < least
            if clients * least > len(labels):
                assert reached == len(labels) // clients
            else:
                assert min(map(len, deal(reached))) >= reached
            continue
        assert covers(parts, len(labels), clients)
        assert min(map(len, parts)) >= least


def test_min_samples_takes_the_first_draw_that_has_them() -> None:
    """Each try is a whole published draw, at a seed address of its own."""
    labels = np.repeat(np.arange(3), 40)
    first = next(a for a in range(1000) if min(map(len, published(labels, 5, 0.2, 7, a))) >= 12)
    assert first > 1
    assert equal(dirichlet(labels, 5, 0.2, 7, 12), published(labels, 5, 0.2, 7, first))
    assert equal(dirichlet(labels, 5, 0.2, 7, 0), published(labels, 5, 0.2, 7, 0))


def test_a_minimum_out_of_reach_says_what_was_reached() -> None:
    labels = np.repeat(np.arange(2), 50)
    with pytest.raises(ConfigError, match=r"at most 10: there are 100 samples for 10 clients"):
        dirichlet(labels, 10, 0.1, 0, 11)
    with pytest.raises(ConfigError, match=r"at most 0: .* in 1,000 draws.*larger data\.alpha"):
        dirichlet(labels, 10, 0.01, 0, 10)
    with pytest.raises(ConfigError, match=r"data\.min_samples: got 10, want at most \d: "):
        quantity(100, 10, 0.01, 0, 10)


# -- users


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=200).map(np.array), clients_of)
def test_natural_keeps_users_whole(users, clients) -> None:
    data, labels = DataConfig(partition="natural"), np.zeros(len(users), dtype=np.int64)
    several = len(np.unique(users))
    if clients > several:
        with pytest.raises(ConfigError, match=rf"at most {several} clients"):
            partition(labels, data, clients, 0, users)
        return
    parts = partition(labels, data, clients, 0, users)
    assert covers(parts, len(users), clients)
    assert sum(len(np.unique(users[part])) for part in parts) == several
    assert all(map(len, parts))


def test_as_many_clients_as_users_are_the_users() -> None:
    users = np.array([4, 0, 2, 2, 0, 4, 4])
    assert [part.tolist() for part in natural(users, 3)] == [[1, 4], [2, 3], [0, 5, 6]]


def test_fewer_clients_than_users_hold_about_equally_much() -> None:
    users = np.repeat(np.arange(6), [1, 8, 5, 4, 3, 2])
    held = [sorted(set(users[part].tolist())) for part in natural(users, 3)]
    assert held == [[1], [0, 2, 5], [3, 4]]  # 8; 5 + 2 + 1; 4 + 3: by hand


def test_natural_without_users_is_an_error() -> None:
    data = DataConfig(partition="natural", source="mnist5k")
    with pytest.raises(ConfigError, match=r"data\.partition.* mnist5k .*data\.partition=dirichlet"):
        partition(np.arange(9), data, 3, 0)


# -- validation


@settings(deadline=None)
@given(labels_of, clients_of, st.floats(0, 0.999), seeds)
def test_validation_is_a_share_of_each_client_and_apart(labels, clients, share, run) -> None:
    parts = dirichlet(labels, clients, 0.5, run)
    split = with_validation(parts, share, run)
    for part, (trained, held) in zip(parts, split, strict=True):
        assert sorted([*trained, *held]) == part.tolist()
        assert trained.tolist() == sorted(trained)
        assert held.tolist() == sorted(held)
        assert len(held) == held_out_of(len(part), share)
        assert len(trained) > 0 or not len(part)
        assert len(part) > 1 or not len(held)


def test_what_a_client_validates_on_does_not_depend_on_the_others() -> None:
    parts = iid(np.zeros(100), 4, 0)
    whole = with_validation(parts, 0.3, 5)
    without = with_validation([parts[0], parts[1][:0], parts[2], parts[3][:7]], 0.3, 5)
    assert np.array_equal(whole[2][1], without[2][1])
    assert not np.array_equal(whole[2][1], with_validation(parts, 0.3, 6)[2][1])
