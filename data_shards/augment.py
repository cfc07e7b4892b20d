"""Views of images: parameters drawn per row on the CPU, applied to all rows at once on the device.

digits: crop, shift, small rotation; no flip. natural: random resized crop (scale 0.2...1, ratio
3/4...4/3), horizontal flip, colour jitter (0.4, 0.4, 0.4, 0.1) with probability 0.8 in the fixed
order brightness, contrast, saturation, hue, grey with probability 0.2 (Chen et al. 2020). Colour
operations follow torchvision's definitions.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["digits", "natural"]

GREY = (0.2989, 0.587, 0.114)  # ITU-R 601-2, as torchvision


class View(NamedTuple):
    """What is done to each of R rows; the columns of a parameter table [R, 11]."""

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
    """Parameters [rows, 11] float32 on the CPU, all from that generator."""
    u = torch.rand(12, rows, generator=generator)
    return torch.stack(_digits(u) if kind == "digits" else _natural(u), dim=1)


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def _crop(area: Tensor, log_ratio: Tensor, where: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scale and centre of a crop of that area share and aspect ratio, inside the image."""
    ratio = log_ratio.exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    return width, height, (1 - width) * (2 * where[0] - 1), (1 - height) * (2 * where[1] - 1)


def _digits(u: Tensor) -> View:
    width, height, x, y = _crop(_between(u[0], 0.7, 1.0), _between(u[1], -0.1, 0.1), u[2:4])
    shift = _between(u[4:6], -0.1, 0.1)  # up to a twentieth of the image further
    return identity(u.shape[1])._replace(
        scale_x=width,
        scale_y=height,
        shift_x=x + shift[0],
        shift_y=y + shift[1],
        angle=_between(u[6], -math.pi / 18, math.pi / 18),
    )


def _natural(u: Tensor) -> View:
    limit = math.log(4 / 3)
    width, height, x, y = _crop(_between(u[0], 0.2, 1.0), _between(u[1], -limit, limit), u[2:4])
    return View(
        torch.where(u[4] < 0.5, -width, width),
        height,
        x,
        y,
        torch.zeros_like(x),
        _between(u[5], 0.6, 1.4),
        _between(u[6], 0.6, 1.4),
        _between(u[7], 0.6, 1.4),
        _between(u[8], -0.1, 0.1),
        (u[9] < 0.8).to(u.dtype),
        (u[10] < 0.2).to(u.dtype),
    )


def apply(images: Tensor, parameters: Tensor, kind: Kind) -> Tensor:
    """Views of images [R, channels, H, W] in 0...1, row by row; the same shape and range."""
    view = View(*parameters.unbind(1))
    images = _warp(images, view, kind)
    return _colour(images, view) if kind == "natural" and images.shape[1] == 3 else images


def _warp(images: Tensor, view: View, kind: Kind) -> Tensor:
    """Crop, flip, shift and rotation as one bilinear sampling.

    Outside a digit there is its black ground. A natural crop never leaves the image, but its
    outermost samples lie beyond the last pixel's centre: they repeat that pixel, as torchvision
    does, since mixing in black would darken the rim of every enlarged crop at an edge.
    """
    outside = "zeros" if kind == "digits" else "border"
    cos, sin = view.angle.cos(), view.angle.sin()
    first = torch.stack([view.scale_x * cos, -view.scale_y * sin, view.shift_x], 1)
    second = torch.stack([view.scale_x * sin, view.scale_y * cos, view.shift_y], 1)
    grid = F.affine_grid(torch.stack([first, second], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode=outside, align_corners=False)


def _grey(images: Tensor) -> Tensor:
    weights = images.new_tensor(GREY)[:, None, None]
    return (images * weights).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def _colour(images: Tensor, view: View) -> Tensor:
    jittered = _blend(images, torch.zeros_like(images), view.brightness)
    mean = _grey(jittered).mean((1, 2, 3), keepdim=True)
    jittered = _blend(jittered, mean, view.contrast)
    jittered = _blend(jittered, _grey(jittered), view.saturation)
    jittered = shift_hue(jittered, view.hue)
    images = torch.where(view.jitter[:, None, None, None] > 0, jittered, images)
    return torch.where(view.grey[:, None, None, None] > 0, _grey(images).expand_as(images), images)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of RGB images [R, 3, H, W] by `turns` [R], through HSV."""
    red, green, blue = images.unbind(1)
    high, low = images.amax(1), images.amin(1)
    chroma = high - low
    safe = chroma.clamp(min=1e-12)
    hue = torch.where(
        high == red,
        (green - blue) / safe,
        torch.where(high == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue / 6 + turns[:, None, None]) % 1.0
    # each channel is high minus chroma times a trapezoid of the hue (the HSV-to-RGB formula)
    channels = []
    for offset in (5.0, 3.0, 1.0):
        k = (offset + hue * 6) % 6
        channels.append(high - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)
