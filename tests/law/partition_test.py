"""Whatever the dataset and the partition, is every training sample dealt out exactly once?

A source or a partition that is added to fedcore is tested here by being there.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import NamedTuple, get_args

import numpy as np
import pytest

from data_shards.partition import partition
from data_shards.sources import SOURCES, Split, loaded
from fedcore.config import DataConfig, RunConfig
from launcher.build import warnings

BUNDLED = [name for name, source in SOURCES if source.bundled]
PARTITIONS = get_args(DataConfig.model_fields["partition"].annotation)


class Held(NamedTuple):
    """What a manifest says of a client."""

    client: int
    samples: int
    label_counts: list[int]


@cache
def labels_of(source: str) -> np.ndarray:
    return loaded(SOURCES.get(source), DataConfig(), Split.TRAIN).labels


@pytest.mark.parametrize("source", BUNDLED)
@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("clients", [1, 7, 100])
def test_every_sample_has_one_owner(source: str, name: str, clients: int) -> None:
    labels = labels_of(source)
    classes = int(labels.max()) + 1
    each = min(classes, max(2, -(-classes // clients)))  # so that every class has a client
    data = DataConfig(partition=name, labels_per_client=each, alpha=0.05)
    users = np.arange(len(labels)) ** 2 % 211
    parts = partition(labels, data, clients, 3, users)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = partition(labels, data, clients, 3, users)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
def test_empty_clients_are_allowed_and_named(name: str) -> None:
    labels = np.arange(60) % 3
    data = DataConfig(partition=name, alpha=0.01)
    parts = partition(labels, data, 12, 0)
    empty = [k for k, part in enumerate(parts) if not len(part)]
    assert empty
    held = [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    clients = [Held(k, sum(counts), counts) for k, counts in enumerate(held)]
    manifest = SimpleNamespace(clients=clients, test=SimpleNamespace(label_counts=(1, 0, 1)))
    words = warnings(RunConfig(), manifest, ranks=1)
    assert "classes without test samples: 1" in words
    assert f"clients without samples, left out: {', '.join(map(str, empty[:10]))}" in words[0]


def test_more_clients_than_samples_leaves_some_without() -> None:
    parts = partition(np.arange(6) % 2, DataConfig(alpha=0.1), 50, 0)
    assert len(parts) == 50
    assert sum(map(len, parts)) == 6
    assert all(part.dtype == np.int64 for part in parts)
