"""The server's step of a federated language model: pure, the same on every rank.

DiLoCo (arXiv 2311.08105): the mean of the clients' changes, turned round, is a gradient to an outer
optimiser, SGD with Nesterov momentum. With lr 1 and momentum 0 it is FedAvg.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import Tensor

from fedcore.config_lm import OuterConfig

Tensors = Mapping[str, Tensor]


class Outer(NamedTuple):
    """The server's optimiser, and what it keeps between rounds."""

    weights: dict[str, Tensor]  # theta
    momentum: dict[str, Tensor]  # m; empty without momentum, and before the first round

    def step(self, config: OuterConfig, gradient: Tensors, decayed: Collection[str]) -> Outer:
        """The server after a round; g = the global weights minus the clients' mean (`gradient`).

        m <- mu m + g; u = g + mu m (Nesterov) or m; theta <- (1 - eta lam) theta - eta u, with lam
        for the parameters `decayed` only.
        """
        moved, momentum = {}, {}
        for name, theta in self.weights.items():
            update = gradient[name]
            if config.momentum:
                momentum[name] = self._momentum(name, config.momentum, update)
                ahead = update + config.momentum * momentum[name]
                update = ahead if config.nesterov else momentum[name]
            shrink = 1 - config.lr * config.weight_decay if name in decayed else 1.0
            moved[name] = shrink * theta - config.lr * update
        return Outer(moved, momentum)

    def _momentum(self, name: str, share: float, gradient: Tensor) -> Tensor:
        before = self.momentum.get(name)
        return gradient if before is None else share * before + gradient
