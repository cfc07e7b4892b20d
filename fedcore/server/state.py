"""GlobalState: what the server knows between rounds, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcore.algorithms.server_rules import Moments
from fedcore.clients.layout import Layout, Tensors


@dataclass
class GlobalState:
    """The same on every rank, bit for bit."""

    prototypes: Tensor  # G [C, D] float64
    weights: Tensors | None = None  # the server's model, in averaged mode after a round
    moments: dict[str, Moments] = field(default_factory=dict)  # by parameter, of a server rule
    control: Tensor = field(default_factory=lambda: torch.zeros(0))  # SCAFFOLD's c [P]
    first_spread: float = 0.0  # inter-client prototype std of the first round
    prototype_std: float = 0.0  # of the last round

    def tensors(self, layout: Layout) -> Tensors:
        """What a checkpoint keeps, by name. layout: of the control's parameters."""
        held = {"prototypes": self.prototypes}
        held |= {f"weights/{name}": value for name, value in (self.weights or {}).items()}
        for name, moments in self.moments.items():
            held |= {f"moments/{name}/{moment}": value for moment, value in moments.items()}
        if len(self.control):
            views = layout.views(self.control[None])
            held |= {f"control/{name}": value[0] for name, value in views.items()}
        return held

    def fill(self, held: Mapping[str, Tensor], layout: Layout, device: torch.device) -> None:
        """Be what `tensors` gave; all but the prototypes go to `device`."""
        self.prototypes = held["prototypes"]
        self.weights = _below("weights/", held, device) or None
        self.moments = {}
        for key, value in _below("moments/", held, device).items():
            name, _, moment = key.rpartition("/")
            self.moments.setdefault(name, {})[moment] = value
        if control := _below("control/", held, device):
            self.control = layout.row(control)


def _below(prefix: str, held: Mapping[str, Tensor], device: torch.device) -> Tensors:
    """The tensors whose names begin so, without it."""
    return {k.removeprefix(prefix): v.to(device) for k, v in held.items() if k.startswith(prefix)}
