"""View: what a loss term sees of one client's batch. No client axis: vmap adds it outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class View(NamedTuple):
    """One client's batch after the forward pass; R = V·B rows, view by view."""

    features: Tensor  # z [R, D], unit length
    logits: Tensor  # z P^T [R, C]
    prototypes: Tensor  # P [C, D], learnable, not normalised
    anchors: Tensor  # a [C, D], unit length, fixed
    global_prototypes: Tensor  # G [C, D] of the last aggregation (zeros before the first)
    labels: Tensor  # y [R] int64
    weight: Tensor  # [R] 1 for a sample, 0 for filling
    label_counts: Tensor  # n [C], the client's own label histogram
    params: Mapping[str, Tensor]  # w, all parameters by name, prototypes included
    global_params: Mapping[str, Tensor]  # of the last averaged model, or of the common start

    @property
    def present(self) -> Tensor:
        """Classes with a sample in the batch, as 0/1 [C]."""
        classes = torch.arange(self.prototypes.shape[0], device=self.labels.device)
        hits = (self.labels[:, None] == classes).to(self.weight.dtype) * self.weight[:, None]
        return hits.amax(0)

    def mean(self, rows: Tensor) -> Tensor:
        """Mean [] of `rows` [R] over the samples; 0 for an idle client, whose weights are all 0."""
        return (rows * self.weight).sum() / self.weight.sum().clamp(min=1)
