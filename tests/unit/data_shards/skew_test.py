"""Does a client see its domain, the same way however it is read?"""

from __future__ import annotations

import numpy as np
import pytest

from data_shards.partition import iid
from data_shards.samples import Arrays, Samples
from data_shards.skew import (
    domain_of,
    noisy,
    rotated,
    skewed_by_client,
    skewed_shape,
    skewed_test,
    tinted,
)
from fedcore.config import DataConfig
from fedcore.errors import ConfigError

DRAWS = np.random.default_rng(0)
KINDS = ["rotation", "colour", "noise"]


def images(n: int, channels: int = 3, high: int = 8, wide: int = 8) -> np.ndarray:
    return DRAWS.integers(0, 256, (n, channels, high, wide), dtype=np.uint8)


def samples(n: int = 60, channels: int = 3) -> Arrays:
    return Arrays(images(n, channels), np.arange(n) % 4, np.arange(n) % 7)


def trained(kind: str, plain: Samples, clients: int = 6, seed: int = 0) -> Samples:
    data = DataConfig(skew=kind, domains=5)
    return skewed_by_client(plain, iid(plain.labels, clients, 0), data, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_the_same_whatever_it_is_read_with(kind: str, channels: int) -> None:
    skewed = trained(kind, samples(channels=channels))
    rows = DRAWS.permutation(60)[:40]
    together = skewed.pixels(rows)
    assert together.dtype == np.uint8
    assert together.shape == (40, *skewed.shape)
    assert np.array_equal(
        together, np.concatenate([skewed.pixels(rows[i : i + 1]) for i in range(40)])
    )
    assert skewed.pixels(rows[:0]).shape == (0, *skewed.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_at_a_time_does_not_matter_either(kind: str, monkeypatch) -> None:
    skewed, rows = trained(kind, samples()), np.arange(60)
    whole = skewed.pixels(rows)
    monkeypatch.setattr("data_shards.skew.TOGETHER", 7)
    assert np.array_equal(skewed.pixels(rows), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_has_its_domain_and_domain_0_is_plain(kind: str) -> None:
    plain = samples()
    parts, skewed = iid(plain.labels, 6, 0), trained(kind, plain)
    for client, part in enumerate(parts):
        changed = not np.array_equal(skewed.pixels(part), plain.pixels(part))
        assert changed == (domain_of(client, 5) != 0)  # clients 0 and 5


@pytest.mark.parametrize("kind", KINDS)
def test_the_test_split_is_the_mixture(kind: str) -> None:
    plain, data = samples(), DataConfig(skew=kind, domains=5)
    skewed = skewed_test(plain, data, 0).pixels(np.arange(60))
    same = [np.array_equal(a, b) for a, b in zip(skewed, plain.images, strict=True)]
    assert [i for i, equal in enumerate(same) if equal] == list(range(0, 60, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_all_but_the_pixels_stays(kind: str) -> None:
    plain = samples(channels=1)
    skewed = trained(kind, plain)
    assert skewed.labels is plain.labels
    assert skewed.users is plain.users
    assert skewed.file(0) is None
    assert skewed.shape == skewed_shape(plain.shape, DataConfig(skew=kind))


def test_without_a_skew_nothing_is_wrapped() -> None:
    plain = samples()
    assert trained("none", plain) is plain
    assert skewed_test(plain, DataConfig(), 0) is plain


# -- rotation


def test_quarter_turns_are_exact_and_come_round() -> None:
    plain = images(3)
    assert np.array_equal(rotated(plain, 1, 4), np.rot90(plain, axes=(2, 3)))
    assert np.array_equal(rotated(plain, 3, 6), plain[:, :, ::-1, ::-1])
    turned = plain
    for _ in range(4):
        turned = rotated(turned, 2, 8)
    assert np.array_equal(turned, plain)


def test_the_bilinear_turn_agrees_with_the_exact_one() -> None:
    """Both turn the same way: 1 degree off a quarter turn is nearly a quarter turn."""
    smooth = np.add.outer(np.arange(32) * 4, np.arange(32) * 3).astype(np.uint8)[None, None]
    exact, near = rotated(smooth, 90, 360), rotated(smooth, 89, 360)
    inside = (..., slice(4, -4), slice(4, -4))
    assert np.abs(exact[inside].astype(int) - near[inside]).max() <= 4


def test_an_image_that_is_not_square_keeps_its_shape() -> None:
    wide = np.full((1, 1, 8, 16), 200, dtype=np.uint8)
    assert np.array_equal(rotated(wide, 1, 2), wide)
    quarter = rotated(wide, 1, 4)
    assert quarter.shape == wide.shape
    assert (quarter[0, 0, :, 4:12] == 200).all()  # 8 of its 16 columns now stand upright
    assert (quarter[0, 0, :, :3] == 0).all()


# -- colour


def test_grey_gets_a_tint_of_its_brightness() -> None:
    grey = images(5, 1)
    by_domain = [tinted(grey, d / 3) for d in range(3)]
    for channel, image in enumerate(by_domain):  # red, green, blue
        assert np.array_equal(image[:, channel], grey[:, 0])
        assert not image[:, [c for c in range(3) if c != channel]].any()
    between = tinted(grey, 0.25)
    assert np.array_equal(between.max(1), grey[:, 0])
    assert len(np.unique(between[:, :, 0, 0] > 0, axis=0)) == 1


def test_a_third_of_the_circle_exchanges_the_channels() -> None:
    plain = images(5)
    assert np.array_equal(tinted(plain, 1 / 3), plain[:, [2, 0, 1]])
    assert np.array_equal(tinted(plain, 0.0), plain)


def test_four_channels_have_no_hue() -> None:
    with pytest.raises(ConfigError, match=r"data\.skew.*1 or 3 channels.* have 4"):
        trained("colour", samples(channels=4))


# -- noise


def test_noise_grows_with_the_domain_up_to_its_strength() -> None:
    grey = np.full((400, 1, 8, 8), 128, dtype=np.uint8)
    data = DataConfig(skew="noise", domains=4, strength=0.1)
    parts = [np.arange(k, 400, 4) for k in range(4)]
    skewed = skewed_by_client(Arrays(grey, np.arange(400) % 2), parts, data, 0)
    spread = [(skewed.pixels(part) / 255).std() for part in parts]
    assert spread == pytest.approx([0, 0.1 / 3, 0.2 / 3, 0.1], rel=0.03, abs=1e-9)


def test_noise_is_of_the_sample_the_split_and_the_seed() -> None:
    grey, rows = np.full((20, 1, 8, 8), 128, dtype=np.uint8), np.arange(20)
    one = noisy(grey, rows, 0.2, 1)
    assert len(np.unique(one, axis=0)) == 20
    assert not np.array_equal(one, noisy(grey, rows, 0.2, 2))
    data, plain = DataConfig(skew="noise", domains=2), Arrays(grey, rows % 2)
    train = skewed_by_client(plain, [rows[::2], rows[1::2]], data, 0).pixels(rows)
    assert not np.array_equal(train[1], skewed_test(plain, data, 0).pixels(rows)[1])


def test_noise_stays_within_uint8() -> None:
    ends = np.concatenate([np.zeros((1, 3, 8, 8)), np.full((1, 3, 8, 8), 255)]).astype(np.uint8)
    strong = noisy(ends, np.arange(2), 100.0, 0)
    assert np.isin(strong, (0, 255)).mean() > 0.95  # cut, not wrapped round
    assert 0.3 < (strong[0] == 0).mean() < 0.7
    assert 0.3 < (strong[1] == 255).mean() < 0.7


def test_original_files_cannot_be_skewed() -> None:
    with pytest.raises(ValueError, match="raw: the files would be kept"):
        DataConfig(skew="noise", encoding="original")
