"""Do views do what torchvision's own operations do, row by row?"""

from __future__ import annotations

import math

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from data_shards.augment import (
    Kind,
    View,
    apply,
    draw,
    identity,
    parameters,
    table,
    uniform,
    view_of,
)

IMAGES = torch.rand(5, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def changed(**columns: float) -> torch.Tensor:
    """Parameters of the identity view with some columns changed."""
    view = identity(5)
    return parameters(view._replace(**{k: torch.full((5,), v) for k, v in columns.items()}))


def close(found: torch.Tensor, wanted: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def test_the_identity_changes_nothing() -> None:
    close(apply(IMAGES, changed(), "natural"), IMAGES)


def test_a_flip_mirrors_the_width() -> None:
    close(apply(IMAGES, changed(scale_x=-1.0), "natural"), IMAGES.flip(3))


def test_crop_is_torchvisions_resized_crop() -> None:
    """The centre third of 9 pixels, back to 9x9."""
    found = apply(IMAGES, changed(scale_x=1 / 3, scale_y=1 / 3), "natural")
    wanted = tv.resized_crop(IMAGES, 3, 3, 3, 3, [9, 9], antialias=False)
    # torchvision repeats the border of the crop; here the pixels beside it are seen
    close(found[..., 2:-2, 2:-2], wanted[..., 2:-2, 2:-2])


def test_a_natural_crop_at_the_edge_is_not_darkened() -> None:
    """The upper left third: its outer rim repeats the image's, as in torchvision."""
    corner = {"scale_x": 1 / 3, "scale_y": 1 / 3, "shift_x": -2 / 3, "shift_y": -2 / 3}
    found = apply(IMAGES, changed(**corner), "natural")
    wanted = tv.resized_crop(IMAGES, 0, 0, 3, 3, [9, 9], antialias=False)
    close(found[..., :-2, :-2], wanted[..., :-2, :-2])


def test_beside_a_digit_there_is_black_ground() -> None:
    ones = torch.ones(5, 1, 9, 9)
    assert (apply(ones, changed(shift_x=1.0), "digits")[..., -4:] == 0).all()


def test_a_quarter_turn_is_torchs() -> None:
    close(apply(IMAGES, changed(angle=math.pi / 2), "digits"), IMAGES.rot90(1, (2, 3)), 1e-4)


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("operation", ["brightness", "contrast", "saturation"])
def test_colour_operations_are_torchvisions(operation: str, factor: float) -> None:
    found = apply(IMAGES, changed(jitter=1.0, **{operation: factor}), "natural")
    close(found, getattr(tv, f"adjust_{operation}")(IMAGES, factor), 1e-4)


@pytest.mark.parametrize("turns", [-0.1, 0.05, 0.3])
def test_hue_is_torchvisions(turns: float) -> None:
    found = apply(IMAGES, changed(jitter=1.0, hue=turns), "natural")
    close(found, tv.adjust_hue(IMAGES, turns), 1e-4)


def test_grey_is_torchvisions() -> None:
    found = apply(IMAGES, changed(grey=1.0), "natural")
    close(found, tv.rgb_to_grayscale(IMAGES, num_output_channels=3), 1e-4)


@pytest.mark.parametrize("kind", ["digits", "natural"])
def test_rows_are_independent_and_drawn_by_seed(kind) -> None:
    parameters = draw(torch.Generator().manual_seed(1), 5, kind)
    assert torch.equal(parameters, draw(torch.Generator().manual_seed(1), 5, kind))
    whole = apply(IMAGES, parameters, kind)
    assert torch.equal(apply(IMAGES[2:4], parameters[2:4], kind), whole[2:4])
    assert whole.min() >= 0
    assert whole.max() <= 1 + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["digits", "natural"])
def test_a_row_has_the_same_bits_wherever_it_lies(kind: Kind, dtype: torch.dtype) -> None:
    """Vectors of numbers begin and end elsewhere; so do the shares of threads."""
    images = torch.rand(37, 3, 33, 31, dtype=dtype, generator=torch.Generator().manual_seed(0))
    own = draw(torch.Generator().manual_seed(1), 37, kind).to(dtype)
    whole = apply(images, own, kind)
    for start, stop in ((0, 1), (1, 2), (2, 5), (5, 36), (36, 37)):
        found = apply(images[start:stop], own[start:stop], kind)
        assert torch.equal(found, whole[start:stop])


def drawn(kind: Kind) -> View:
    """4000 rows."""
    return view_of(uniform(torch.Generator().manual_seed(2), 1, 4000, kind)[0], kind)


@pytest.mark.parametrize("kind", ["digits", "natural"])
def test_numbers_are_the_same_drawn_at_once_or_step_by_step(kind: Kind) -> None:
    one, other = (torch.Generator().manual_seed(3) for _ in range(2))
    whole = uniform(one, 20, 7, kind)
    assert torch.equal(whole, torch.cat([uniform(other, n, 7, kind) for n in (1, 4, 0, 15)]))
    bits = table(whole.flatten(0, 1), kind)
    assert torch.equal(bits, torch.cat([table(step, kind) for step in whole]))


def test_draws_stay_in_their_ranges() -> None:
    natural = drawn("natural")
    area = natural.scale_x.abs() * natural.scale_y
    assert area.min() > 0.19
    assert area.max() <= 1
    assert abs((natural.scale_x < 0).float().mean() - 0.5) < 0.05
    assert abs(natural.jitter.mean() - 0.8) < 0.05
    assert abs(natural.grey.mean() - 0.2) < 0.05
    # the crop lies inside the image
    assert (natural.shift_x.abs() + natural.scale_x.abs() <= 1 + 1e-5).all()
    digits = drawn("digits")
    assert (digits.scale_x > 0).all()  # never a mirrored digit
    assert digits.angle.abs().max() <= math.pi / 18
    assert digits.jitter.max() == 0


def test_grey_images_have_no_colour_to_change() -> None:
    images = IMAGES[:, :1]
    close(apply(images, changed(jitter=1.0, saturation=0.5, grey=1.0), "natural"), images)
