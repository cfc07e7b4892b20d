"""Can made-up images be learned from as far as they say, and are they the same each time?"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_shards import augment
from data_shards.sources import SOURCES, Split, loaded
from data_shards.sources.synthetic import Synthetic, _draws, _normal
from fedcore.config_data import DataConfig
from fedcore.errors import ConfigError


def made(split: Split = Split.TRAIN, **chosen: object) -> Synthetic:
    data = DataConfig(source="synthetic", synthetic=chosen)
    return loaded(SOURCES.get("synthetic"), data, split)


def everything(samples: Synthetic) -> np.ndarray:
    return samples.pixels(np.arange(len(samples.labels)))


def accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, wanted: np.ndarray) -> float:
    """Of the nearest class mean."""
    flat = torch.as_tensor(train).flatten(1).float()
    means = [flat[torch.as_tensor(labels == label)].mean(0) for label in np.unique(labels)]
    nearest = torch.cdist(torch.as_tensor(test).flatten(1).float(), torch.stack(means)).argmin(1)
    return float((nearest.numpy() == wanted).mean())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 12])
@pytest.mark.parametrize(
    ("difficulty", "low", "high"), [(0.1, 0.99, 1), (1, 0.5, 0.9), (20, 0.07, 0.17)]
)
def test_difficulty_decides_how_much_can_be_learned(
    channels: int, size: int, difficulty: float, low: float, high: float
) -> None:
    chosen = {"samples": 4000, "test_samples": 1000, "channels": channels, "size": size}
    train, test = (made(split, difficulty=difficulty, **chosen) for split in Split)
    reached = accuracy(everything(train), train.labels, everything(test), test.labels)
    assert low <= reached <= high


def test_views_keep_the_class() -> None:
    train, test = (made(split, samples=4000, difficulty=0.1) for split in Split)
    generator = torch.Generator().manual_seed(0)
    views = []
    for samples in (train, test):
        images = torch.as_tensor(everything(samples)) / 255
        drawn = augment.draw(generator, len(images), "digits")
        views.append(augment.apply(images, drawn, "digits").numpy())
    assert accuracy(views[0], train.labels, views[1], test.labels) > 0.97


def test_without_difficulty_an_image_is_its_class() -> None:
    samples = made(samples=40, classes=4, difficulty=0)
    images = everything(samples)
    for label in range(4):
        (pattern,) = np.unique(images[samples.labels == label], axis=0)
    assert len(np.unique(images, axis=0)) == 4
    assert pattern.std() > 10


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=40),
    cut=st.integers(0, 40),
    channels=st.sampled_from([1, 3]),
    size=st.integers(4, 20),
)
def test_an_image_is_the_same_in_any_batch(rows, cut: int, channels: int, size: int) -> None:
    samples = made(samples=10, channels=channels, size=size)
    samples.__dict__["labels"] = Labels()
    at = np.array(rows)
    whole = samples.pixels(at)
    parts = np.concatenate([samples.pixels(at[:cut]), samples.pixels(at[cut:])])
    assert (whole == parts).all()
    assert (whole[0] == samples.pixels(at[:1])[0]).all()


class Labels:
    """Of a billion rows, none of them held."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return rows % 10


def test_images_are_cut_into_chunks_without_a_trace(monkeypatch) -> None:
    samples = made(samples=300)
    whole = everything(samples)
    monkeypatch.setattr("data_shards.sources.synthetic.CHUNK", 500)
    assert (everything(samples) == whole).all()


def test_splits_rows_and_settings_differ() -> None:
    train, test = (everything(made(split, samples=500, test_samples=500)) for split in Split)
    assert len(np.unique(np.concatenate([train, test]), axis=0)) == 1000
    assert (everything(made(samples=500)) == train).all()


def test_more_samples_hold_other_labels_but_all_classes_equally_often() -> None:
    for split in Split:
        labels = made(split, samples=1003, test_samples=1003, classes=10).labels
        assert sorted(np.bincount(labels)) == [100] * 7 + [101] * 3
        assert len(np.unique(labels[:50])) == 10  # not class by class


def test_noise_is_unit_normal_and_independent() -> None:
    drawn = _normal(_draws(1, np.arange(40_000), 9))
    assert abs(drawn.mean(0)).max() < 0.02
    assert abs(np.cov(drawn.T) - np.eye(9)).max() < 0.03
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.02
    assert np.mean(abs(drawn) < 1) == pytest.approx(0.683, abs=0.02)


def test_a_million_images_are_not_held() -> None:
    tracemalloc.start()
    samples = made(samples=1_000_000)
    for start in range(0, 1_000_000, 100_000):
        samples.pixels(np.arange(start, start + 2_000))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 12e6  # labels, of 8 bytes
    assert peak < 50e6


def test_fewer_samples_than_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.synthetic\.samples: got 9.*10 classes"):
        made(samples=9)
