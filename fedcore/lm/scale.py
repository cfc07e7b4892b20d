"""eta and lam at another batch size, and a weight decay that holds a layer's RMS at a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcore.config_lm import LMConfig, OptimizerConfig

DAMPING = 4.0  # measurements in which an error of the RMS is to be gone (e-fold)
STRONGEST = 0.5  # lam eta summed between two measurements: more would empty the layer


def scaled(config: LMConfig) -> OptimizerConfig:
    """The optimiser with its peaks at this batch size: B / (lam eta) stays what it was tuned at.

    With k = batch_size / reference the product lam eta grows k-fold: by lam, by eta, or by sqrt k
    each.
    """
    scale = config.scale_for_batch
    if scale is None:
        return config.optimizer
    k = config.batch_size / scale.reference
    lr, decay = {"raise_decay": (1.0, k), "raise_lr": (k, 1.0), "both": (k**0.5, k**0.5)}[
        scale.rule
    ]
    own = config.optimizer
    peaks = {
        "lr": own.lr * lr,
        "muon_lr": own.muon_lr * lr,
        "weight_decay": own.weight_decay * decay,
    }
    return own.model_copy(update=peaks)


def resting_decay(target: float, std: float, eta: float) -> float:
    """lam = c^2 eta / (2 target^2), under which zero-mean gradients keep the RMS at `target`."""
    return std * std * eta / (2 * target * target)


def decay_for(
    rms: float, before: float, target: float, *, pulled: float, eta: float, steps: int
) -> float:
    """The lam that brings a layer's RMS to `target`, from how it moved under the last one.

    Between two measurements ln(rms / before) = steps (r - pulled), with r the growth that the
    updates make, of whatever origin; the next lam takes r away, and the distance to the target in
    `DAMPING` such intervals. pulled: mean of lam eta per step since `before` was measured.
    """
    growth = math.log(rms / before) / steps + pulled
    wanted = growth + math.log(rms / target) / (DAMPING * steps)
    return min(max(wanted, 0.0), STRONGEST / steps) / eta


@dataclass
class RMSController:
    """Weight decay by parameter that holds each one's RMS at `target`; state is JSON-able."""

    target: float
    std: Mapping[str, float]  # c by parameter, for the first value
    state: dict[str, Any] = field(default_factory=dict)  # step, eta, rms and decay by parameter

    def decays(
        self, step: int, rms: Mapping[str, float], eta: Mapping[str, float]
    ) -> dict[str, float]:
        """lam by parameter from now on; nothing before eta is first above 0.

        eta: rates of the coming step; rms: measured after `step` steps.
        """
        if min(eta.values(), default=0.0) <= 0 or step == self.state.get("step"):
            return dict(self.state.get("decay", {}))
        decay = {name: self._one(name, value, step, eta[name]) for name, value in rms.items()}
        self.state = {"step": step, "eta": dict(eta), "rms": dict(rms), "decay": decay}
        return decay

    def _one(self, name: str, rms: float, step: int, eta: float) -> float:
        before = self.state.get("rms", {}).get(name, 0.0)
        if before <= 0 or rms <= 0:
            return resting_decay(self.target, self.std[name], eta)
        # eta moves little between two measurements: its mean is that of the ends
        pulled = self.state["decay"][name] * (self.state["eta"][name] + eta) / 2
        steps = step - self.state["step"]
        return decay_for(rms, before, self.target, pulled=pulled, eta=eta, steps=steps)
