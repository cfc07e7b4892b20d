"""Views of images: parameters drawn per row on the CPU, applied to all rows at once on the device.

digits: crop, shift, small rotation; no flip. natural: random resized crop (scale 0.2...1, ratio
3/4...4/3), horizontal flip, colour jitter (0.4, 0.4, 0.4, 0.1) with probability 0.8 in the fixed
order brightness, contrast, saturation, hue, grey with probability 0.2 (Chen et al. 2020). Colour
operations follow torchvision's definitions.

A row's view does not depend on the others: every operation rounds alike wherever a row lies.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["digits", "natural"]

GREY = (0.2989, 0.587, 0.114)  # ITU-R 601-2, as torchvision
CHANCE = (0.0, 1.0)
RATIO = math.log(4 / 3)
# what uniform numbers stand for, from where to where: of a crop its area, log ratio and place
RANGES: dict[Kind, tuple[tuple[float, float], ...]] = {
    # shift further, up to a twentieth of the image; angle
    "digits": (
        *((0.7, 1.0), (-0.1, 0.1), (-1.0, 1.0), (-1.0, 1.0)),
        *((-0.1, 0.1), (-0.1, 0.1), (-math.pi / 18, math.pi / 18)),
    ),
    # flip; brightness, contrast, saturation, hue; jitter, grey
    "natural": (
        *((0.2, 1.0), (-RATIO, RATIO), (-1.0, 1.0), (-1.0, 1.0), CHANCE),
        *((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), CHANCE, CHANCE),
    ),
}


class View(NamedTuple):
    """What is done to each of R rows; every field is [R]."""

    scale_x: Tensor  # width of the crop over the image's, > 0; negative = flipped
    scale_y: Tensor
    shift_x: Tensor  # centre of the crop, in half image widths
    shift_y: Tensor
    angle: Tensor  # radians
    brightness: Tensor  # factor
    contrast: Tensor  # factor
    saturation: Tensor  # factor
    hue: Tensor  # turns, -0.5...0.5
    jitter: Tensor  # 1 = apply the four above
    grey: Tensor  # 1 = turn grey


def identity(rows: int) -> View:
    """The view that changes nothing."""
    one, zero = torch.ones(rows), torch.zeros(rows)
    return View(one, one, zero, zero, zero, one, one, one, zero, zero, zero)


def draw(generator: torch.Generator, rows: int, kind: Kind) -> Tensor:
    """Parameters [rows, 11], float32 on the CPU, drawn from that generator."""
    return table(uniform(generator, 1, rows, kind)[0], kind)


def uniform(generator: torch.Generator, steps: int, rows: int, kind: Kind) -> Tensor:
    """What the views of `rows` rows in each of `steps` steps are made of: [steps, rows, n].

    Step by step: a generator gives the same numbers for a step in one call and in several.
    """
    return torch.rand(steps, rows, len(RANGES[kind]), generator=generator)


def table(numbers: Tensor, kind: Kind) -> Tensor:
    """Parameters [R, 11] float32 on the CPU of uniform numbers [R, n]."""
    return parameters(view_of(numbers, kind))


def view_of(numbers: Tensor, kind: Kind) -> View:
    """What uniform numbers [R, n] say is done to each row."""
    low, high = torch.tensor(RANGES[kind])[:, :, None].unbind(1)
    values = torch.addcmul(low, high - low, numbers.T.contiguous()).unbind(0)
    return _digits(*values) if kind == "digits" else _natural(*values)


def parameters(view: View) -> Tensor:
    """The view as `apply` takes it, [R, 11]: an affine map of the plane, and five of colour.

    Contrast and saturation become shares of grey. A row without jitter has numbers that change
    nothing: whether it has some is not asked for on the device.
    """
    cos, sin, jitter = view.angle.cos(), view.angle.sin(), view.jitter > 0
    colour = [
        torch.where(jitter, view.brightness, 1),
        *(torch.where(jitter, 1 - x, 0) for x in (view.contrast, view.saturation)),
        torch.where(jitter, view.hue, 0),
        view.grey,
    ]
    plane = [
        *(view.scale_x * cos, -view.scale_y * sin, view.shift_x),
        *(view.scale_x * sin, view.scale_y * cos, view.shift_y),
    ]
    return torch.stack([*plane, *colour], 1)


def _crop(area: Tensor, log_ratio: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """Scale and centre of a crop of that area share and aspect ratio, inside the image."""
    ratio = log_ratio.exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    return [width, height, (1 - width) * x, (1 - height) * y]


def _digits(
    area: Tensor, ratio: Tensor, x: Tensor, y: Tensor, right: Tensor, down: Tensor, angle: Tensor
) -> View:
    width, height, x, y = _crop(area, ratio, x, y)
    return identity(len(area))._replace(
        scale_x=width, scale_y=height, shift_x=x + right, shift_y=y + down, angle=angle
    )


def _natural(
    area: Tensor, ratio: Tensor, x: Tensor, y: Tensor, flip: Tensor, *colour: Tensor
) -> View:
    width, height, x, y = _crop(area, ratio, x, y)
    brightness, contrast, saturation, hue, jitter, grey = colour
    return View(
        torch.where(flip < 0.5, -width, width),
        height,
        x,
        y,
        torch.zeros_like(x),
        brightness,
        contrast,
        saturation,
        hue,
        (jitter < 0.8).to(x.dtype),
        (grey < 0.2).to(x.dtype),
    )


def apply(images: Tensor, parameters: Tensor, kind: Kind) -> Tensor:
    """Views of images [R, channels, H, W] in 0...1, row by row; the same shape and range, new."""
    views = _warp(images, parameters[:, :6], kind)
    return (
        _colour(views, parameters[:, 6:]) if kind == "natural" and images.shape[1] == 3 else views
    )


def _warp(images: Tensor, maps: Tensor, kind: Kind) -> Tensor:
    """Crop, flip, shift and rotation as one bilinear sampling.

    Outside a digit there is its black ground. A natural crop never leaves the image, but its
    outermost samples lie beyond the last pixel's centre: they repeat that pixel, as torchvision
    does, since mixing in black would darken the rim of every enlarged crop at an edge.
    """
    outside = "zeros" if kind == "digits" else "border"
    x, y = (_centres(n, images.device, images.dtype) for n in (images.shape[3], images.shape[2]))
    by_x, by_y, shift = maps.view(-1, 2, 3, 1, 1).unbind(2)
    # `affine_grid` multiplies matrices of three columns, which takes longer than the sampling
    grid = torch.addcmul(torch.addcmul(shift, by_y, y[:, None]), by_x, x)
    grid = grid.permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, padding_mode=outside, align_corners=False)


@lru_cache(maxsize=16)
def _centres(pixels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Of pixels in a row, -1...1 from edge to edge."""
    first = 1 / pixels - 1
    return torch.linspace(first, -first, pixels, device=device, dtype=dtype)


def _grey(images: Tensor) -> Tensor:
    """Luminance [R, 1, H, W]."""
    red, green, blue = images.unbind(1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])[:, None]


def _colour(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast, saturation, hue and grey; the images given are used up.

    A blend f x + (1 - f) y is a `lerp` from x to y by 1 - f.
    """
    brightness, to_mean, to_grey, turns, grey = factors[:, :, None, None, None].unbind(1)
    images.mul_(brightness).clamp_(0, 1)
    images.lerp_(_grey(images.mean((2, 3), keepdim=True)), to_mean).clamp_(0, 1)
    images.lerp_(_grey(images), to_grey).clamp_(0, 1)
    images = shift_hue(images, turns.flatten())
    return images.lerp_(_grey(images), grey)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of RGB images [R, 3, H, W] by `turns` [R], through HSV.

    The hue is |h| = 1 + (green + blue - red - low) / chroma sixths of a turn from red, towards
    green where there is more of it than of blue: the usual formula without its cases, which
    would be chosen from pixel by pixel.
    """
    red, green, blue = images.unbind(1)
    high, low = (f(f(red, green), blue) for f in (torch.maximum, torch.minimum))
    chroma = high - low
    hue = (green + blue).sub_(red).sub_(low).div_(chroma.clamp(min=1e-12)).add_(1)
    hue = hue.copysign_(green - blue).div_(6).add_((turns % 1)[:, None, None])
    # each channel is high minus chroma times a trapezoid of the hue (the HSV-to-RGB formula)
    away = hue[:, None] + _offsets(images.device, images.dtype)
    slope = torch.rsub(away.frac_().sub_(1 / 3).abs_(), 2, alpha=6).clamp_(0, 1)
    return torch.addcmul(high[:, None], chroma[:, None], slope, value=-1)


@lru_cache(maxsize=16)
def _offsets(device: torch.device, dtype: torch.dtype) -> Tensor:
    """[3, 1, 1] turns of hue at which red, green and blue begin, and one more: none is below 0."""
    return torch.arange(11, 6, -2, device=device, dtype=dtype)[:, None, None].div_(6)
