"""Whatever the dataset and the partition, is every training sample dealt out exactly once?

A source or a partition that is added to fedcore is tested here by being there.
"""

from __future__ import annotations

from functools import cache
from typing import get_args

import numpy as np
import pytest

from data_shards.partition import partition
from data_shards.sources import SOURCES, Split
from fedcore.config import DataConfig

BUNDLED = [name for name, source in SOURCES if source.bundled]
PARTITIONS = get_args(DataConfig.model_fields["partition"].annotation)


@cache
def labels_of(source: str) -> np.ndarray:
    return SOURCES.get(source).load(None, Split.TRAIN).labels


@pytest.mark.parametrize("source", BUNDLED)
@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("clients", [1, 7, 100])
def test_every_sample_has_one_owner(source: str, name: str, clients: int) -> None:
    labels = labels_of(source)
    each = 10 if clients == 1 else 2
    data = DataConfig(partition=name, labels_per_client=each, alpha=0.05)
    parts = partition(labels, data, clients, 3)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = partition(labels, data, clients, 3)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_more_clients_than_samples_leaves_some_without() -> None:
    parts = partition(np.arange(6) % 2, DataConfig(alpha=0.1), 50, 0)
    assert len(parts) == 50
    assert sum(map(len, parts)) == 6
    assert all(part.dtype == np.int64 for part in parts)
