"""Layout: how the parameters of a model lie in one flat row, and the views that give them back."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

ALIGN = 16
"""Every parameter begins at a multiple of so many numbers: kernels load aligned blocks."""


class Layout:
    """Names, shapes and places of parameters in a row of `size` numbers.

    channels_last: the weights of 2-D convolutions lie with their input channels innermost.
    """

    def __init__(self, like: Mapping[str, Tensor], channels_last: bool = False) -> None:
        self.shapes = {name: tuple(value.shape) for name, value in like.items()}
        self.channels_last = channels_last
        self._lengths: list[int] = []  # of what a row splits into: a parameter, or filling
        self._at: dict[str, int] = {}  # the number of each parameter's piece
        for name, shape in self.shapes.items():
            length = math.prod(shape)
            self._at[name] = len(self._lengths)
            self._lengths.append(length)
            if filling := -length % ALIGN:
                self._lengths.append(filling)
        self.size = sum(self._lengths)

    def views(self, rows: Tensor) -> Tensors:
        """The parameters [K, ...] in flat rows [K, P], without a copy; differentiable."""
        if not self.shapes:
            return {}
        pieces = torch.split(rows, self._lengths, dim=1)
        return {k: self._shaped(pieces[self._at[k]], shape) for k, shape in self.shapes.items()}

    def _shaped(self, piece: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.channels_last and len(shape) == 4:
            o, i, h, w = shape
            return piece.view(-1, o, h, w, i).permute(0, 1, 4, 2, 3)
        return piece.view(-1, *shape)

    def rows(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Flat rows [K, P] with copies of parameters [K, ...]; filling is 0."""
        first = next(iter(tensors.values()))
        rows = first.new_zeros(len(first), self.size)
        for name, view in self.views(rows).items():
            view.copy_(tensors[name].detach())
        return rows

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat row [P] of one model's parameters."""
        if not self.shapes:
            return torch.zeros(0)
        return self.rows({k: tensors[k][None] for k in self.shapes})[0]
