"""Fixed anchors a [C, D] with unit rows: functions of (C, D, seed), the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.errors import ConfigError
from fedcore.registry import Registry
from fedcore.seeds import EVERYONE, generator


@dataclass(frozen=True)
class AnchorRule:
    """Where the prototypes are drawn to: fixed points, or a path to them."""

    points: Callable[[int, int, int], Tensor]  # (C, D, seed) -> a [C, D]
    path: bool = False  # the target walks from the round's first P to a, by local epochs (V8)

    def target(self, points: Tensor, start: Tensor, local: Tensor) -> Tensor:
        """What the align loss sees: a, or (1 - p_local) P_start + p_local a. All [C, D].

        points: a; start: the prototypes at the start of the round; local: p_local [], in [0, 1].
        """
        return torch.lerp(start, points, local) if self.path else points


ANCHORS: Registry[AnchorRule] = Registry("algorithm.anchor")


def _helmert(classes: int) -> Tensor:
    """Orthonormal basis [C, C-1] of the complement of the all-ones vector, in closed form."""
    basis = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for j in range(1, classes):
        basis[:j, j - 1] = 1 / math.sqrt(j * (j + 1))
        basis[j, j - 1] = -j / math.sqrt(j * (j + 1))
    return basis


def etf(classes: int, width: int, seed: int) -> Tensor:
    """Simplex equiangular tight frame [C, D], float64: all pairwise cosines are -1/(C-1).

    The complement of the ones vector, scaled to unit rows, in a seeded rotation of R^D (Papyan et
    al. 2020). Raises `ConfigError` when D < C - 1, where no such frame exists.
    """
    if width < classes - 1:
        raise ConfigError(
            "model.feature_dim",
            width,
            f"at least classes - 1 = {classes - 1} for ETF anchors",
            f"model.feature_dim={classes - 1} (a projector to that D), or algorithm.anchor=spread",
        )
    gauss = torch.randn(
        width, classes - 1, generator=generator(seed, EVERYONE, 0, "anchors"), dtype=torch.float64
    )
    rotation, _ = torch.linalg.qr(gauss)  # [D, C-1], orthonormal columns
    anchors: Tensor = math.sqrt(classes / (classes - 1)) * _helmert(classes) @ rotation.T
    return anchors


def gaussian(classes: int, width: int, seed: int) -> Tensor:
    """Independent unit vectors [C, D], float64, uniform on the sphere."""
    draws = generator(seed, EVERYONE, 0, "anchors")
    return F.normalize(torch.randn(classes, width, generator=draws, dtype=torch.float64), dim=1)


def spread(classes: int, width: int, seed: int, steps: int = 1000) -> Tensor:
    """Unit vectors [C, D], float64, with a small largest pairwise cosine; for D < C - 1.

    Minimises a log-sum-exp of the cosines, sharpened in each of `steps` steps, from the `gaussian`
    start.
    """
    free = gaussian(classes, width, seed).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=0.02)
    off_diagonal = ~torch.eye(classes, dtype=torch.bool)
    for step in range(steps):
        sharpness = 10 * 20 ** (step / steps)
        unit = F.normalize(free, dim=1)
        loss = torch.logsumexp(sharpness * (unit @ unit.T)[off_diagonal], 0) / sharpness
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return F.normalize(free.detach(), dim=1)


ANCHORS.add("etf", AnchorRule(etf))
ANCHORS.add("gaussian", AnchorRule(gaussian))
ANCHORS.add("spread", AnchorRule(spread))
ANCHORS.add("consensus_path", AnchorRule(etf, path=True))
