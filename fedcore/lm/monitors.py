"""What the theory of weight decay says of measured weights: readings, and the three alerts.

Somebody else measures RMS values on the device; here they are plain floats. The predicted RMS is a
null model (gradients without a mean): a line to hold against the measured one, no pass mark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.config_lm import LMConfig, OptimizerConfig
from fedcore.lm.memory import (
    Array,
    averaged_std,
    gradient_weights,
    inverse,
    kept,
    long_run_std,
    moments,
    per_part,
)
from fedcore.lm.scale import scaled
from fedcore.lm.schedules import Rates, main_lr

EXPLODED = 2.0  # RMS over its prediction
ENDING = 0.1  # eta over its peak, at or below which it counts as going to 0
FULL = 0.5  # eta over its peak, above which the weights are at their working size
COLLAPSED = 0.5  # RMS over that size
FORGOTTEN = 0.1  # weight of the first tenth of the run over its uniform share


@dataclass(frozen=True)
class Group:
    """Parameters that share their peaks of eta and lam."""

    name: str
    parameters: tuple[str, ...]
    std: float | None  # c (`memory.long_run_std`); None = sgdm, taken from the measured updates
    lr: float  # peak eta
    weight_decay: float  # peak lam

    @classmethod
    def of(
        cls,
        name: str,
        shapes: Mapping[str, Sequence[int]],
        optimizer: OptimizerConfig,
        *,
        lr: float,
        weight_decay: float,
    ) -> Group:
        """A group of the parameters with these shapes, with peaks `lr` and `weight_decay`.

        Under muon, all groups but the one named muon are AdamW's. c^2 is the mean over all
        elements, as R^2 is.
        """
        if optimizer.name == "muon" and name != "muon":
            optimizer = optimizer.model_copy(update={"name": "adamw"})
        stds = [long_run_std(optimizer, shape) for shape in shapes.values()]
        sizes = [math.prod(shape) for shape in shapes.values()]
        squares = [n * std**2 for n, std in zip(sizes, stds, strict=True) if std is not None]
        std = math.sqrt(sum(squares) / sum(sizes)) if len(squares) == len(sizes) else None
        return cls(name, tuple(shapes), std, lr, weight_decay)


@dataclass(frozen=True)
class Measured:
    """RMS values of each parameter after `step` optimiser steps."""

    step: int
    rms: Mapping[str, float]  # of the weights
    change: Mapping[str, float]  # of the last step's change of the weights
    numel: Mapping[str, int]


@dataclass(frozen=True)
class Reading:
    """The fields of an LMStepEvent that are about the weights, and what the operator is told."""

    weight_rms: dict[str, float]  # by group
    weight_rms_predicted: dict[str, float]
    ratio: dict[str, float]  # of the two; nothing for a group of which nothing is predicted
    update_ratio: dict[str, float]
    layer_rms: dict[str, float]  # by parameter
    memory_steps: dict[str, float]
    initialisation_left: float | None
    alerts: tuple[str, ...]  # each once in a run

    def fields(self) -> dict[str, Any]:
        """The fields that go into an LMStepEvent."""
        left_out = ("ratio", "alerts")
        return {k: v for k, v in vars(self).items() if k not in left_out}


class Monitor:
    """Turns measurements into readings; `state` is JSON and brings it back after a resume.

    The prediction goes on from the last measurement, so a measurement costs as many steps of a
    scalar recursion as there were steps in between.
    """

    def __init__(
        self,
        config: LMConfig,
        rates: Rates,
        groups: Sequence[Group],
        state: dict[str, Any] | None = None,
        *,
        predicts: bool = True,  # of an average over clients the theory says nothing
    ) -> None:
        self.config, self.rates, self.groups = config, rates, tuple(groups)
        self.predicts = predicts
        self.optimizer = scaled(config)
        # a controller's lam and an average over clients are not what the rates alone foretell
        self._by_rates = predicts and config.monitor.target_rms is None
        foretells = self._by_rates and not state
        self._foretold = dict(forgetting(config, rates)) if foretells else {}
        self.state: dict[str, Any] = state or {"step": 0, "left": 1.0, "groups": {}, "told": []}

    def read(self, measured: Measured) -> Reading:
        """The readings at a step; the first call sets where the predictions start from.

        Call it with step 0, before training: later, the first RMS is taken for the start.
        """
        self._advance(measured)
        rms = {g.name: _mean_square(g, measured.rms, measured.numel) ** 0.5 for g in self.groups}
        change = {
            g.name: _mean_square(g, measured.change, measured.numel) ** 0.5 for g in self.groups
        }
        predicted = {g.name: self._predicted(g) for g in self.groups if self.predicts}
        ratio = {n: rms[n] / p for n, p in predicted.items() if p > 0}
        alerts = self._alerts(rms, ratio)
        self._remember(rms, ratio)
        return Reading(
            weight_rms=rms,
            weight_rms_predicted=predicted,
            ratio=ratio,
            update_ratio={n: change[n] / r for n, r in rms.items() if r > 0},
            layer_rms=dict(measured.rms) if self.config.monitor.per_layer else {},
            memory_steps=self._memory_steps(measured.step),
            initialisation_left=self.state["left"] if self._by_rates else None,
            alerts=alerts,
        )

    def _predicted(self, group: Group) -> float:
        """The null model's RMS; the target where a controller holds the weights to one."""
        held = self.config.monitor.target_rms
        if held is not None and group.weight_decay > 0:
            return held
        return math.sqrt(self.state["groups"][group.name]["square"])

    def _advance(self, measured: Measured) -> None:
        """Predictions and the share of the initialisation, from the last measurement to this."""
        steps = range(self.state["step"], measured.step)
        for group in self.groups:
            known = self.state["groups"].get(group.name)
            if known is None:
                square = _mean_square(group, measured.rms, measured.numel)
                start = {"ratio": 1.0, "square": square, "rms": square**0.5, "working": square**0.5}
                self.state["groups"][group.name] = start
            else:
                std = self._std(group, measured)
                known["square"] = self._forward(group, std, known["square"], steps)
        for step in steps:
            self.state["left"] *= 1 - self._pull(step)
        self.state["step"] = measured.step

    def _forward(self, group: Group, std: float, square: float, steps: range) -> float:
        """R^2 <- (1 - lam eta)^2 R^2 + (eta c)^2 over the steps."""
        for step in steps:
            eta, lam = self._rates(group, step)
            square = (1 - lam * eta) ** 2 * square + (eta * std) ** 2
        return square

    def _std(self, group: Group, measured: Measured) -> float:
        """c; under sgdm from the last update, whose RMS is the gradient's over averaged_std."""
        if group.std is not None:
            return group.std
        eta, _ = self._rates(group, max(0, measured.step - 1))
        change = _mean_square(group, measured.change, measured.numel) ** 0.5
        return change / eta * averaged_std(self.optimizer.beta1) if eta > 0 else 0.0

    def _rates(self, group: Group, step: int) -> tuple[float, float]:
        """(eta, lam) of a group in a step; after the last step those of the last."""
        at = min(step, self.rates.eta_share.size - 1)
        return (
            group.lr * float(self.rates.eta_share[at]),
            group.weight_decay * float(self.rates.lam_share[at]),
        )

    def _pull(self, step: int) -> float:
        """lam eta of the main group."""
        at = min(step, self.rates.eta_share.size - 1)
        shares = float(self.rates.eta_share[at] * self.rates.lam_share[at])
        return main_lr(self.optimizer) * self.optimizer.weight_decay * shares

    def _memory_steps(self, step: int) -> dict[str, float]:
        """T1, T2 where there are such moments, and T3 of the main group in the last step."""
        named = zip(("T1", "T2"), moments(self.optimizer), strict=True)
        found = {name: 1 / (1 - beta) for name, beta in named if beta is not None}
        if self.config.monitor.target_rms is not None:  # each layer has a lam of its own
            return found
        return found | {"T3": inverse(self._pull(max(0, step - 1)))}

    def _remember(self, rms: Mapping[str, float], ratio: Mapping[str, float]) -> None:
        """What the next measurement is compared with."""
        full = self._eta_left() > FULL
        for name, known in self.state["groups"].items():
            known["rms"], known["ratio"] = rms[name], ratio.get(name, 1.0)
            known["working"] = rms[name] if full else known["working"]

    def _eta_left(self) -> float:
        """eta of the last step over its peak; 1 until the peak has been."""
        eta = self.rates.eta_share
        at = min(self.state["step"], eta.size) - 1
        return float(eta[at] / eta.max()) if at > int(eta.argmax()) else 1.0

    # -- alerts

    def _alerts(self, rms: Mapping[str, float], ratio: Mapping[str, float]) -> tuple[str, ...]:
        """What is found and was not told before; what the rates foretell comes first."""
        found, self._foretold = self._foretold, {}
        for name, known in self.state["groups"].items():
            found |= self._explosion(name, known, ratio.get(name, 1.0))
            found |= self._collapse(name, known, rms[name])
        fresh = {key: words for key, words in found.items() if key not in self.state["told"]}
        self.state["told"] += fresh
        return tuple(fresh.values())

    def _explosion(self, name: str, known: Mapping[str, Any], ratio: float) -> dict[str, str]:
        """RMS over its prediction past 2, and rising."""
        if self.state["step"] == 0 or not max(EXPLODED, known["ratio"]) < ratio:
            return {}
        return {
            f"explosion {name}": f"explosion: the RMS of group {name} is {ratio:.2f} times what "
            "gradients without a mean would make it, and rising: the loss keeps pulling one way. "
            "More weight_decay or a smaller lr holds it"
        }

    def _collapse(self, name: str, known: Mapping[str, Any], rms: float) -> dict[str, str]:
        """eta near 0, and the RMS falling and below half of what it was while eta was high."""
        eta = self._eta_left()
        if eta > ENDING * (1 + 1e-9) or rms >= min(known["rms"], COLLAPSED * known["working"]):
            return {}
        return {
            f"collapse {name}": f"collapse: eta is at {eta:.2g} of its peak and the RMS of group "
            f"{name} fell to {rms / known['working']:.2g} of its working size: weight decay acts, "
            "the updates no longer answer. Let lam fall with eta (lm.schedule.weight_decay: tied)"
        }


@np.errstate(over="ignore", invalid="ignore")  # rates far from sense must not spoil the screen
def _early_weight(eta: Array, lam: Array) -> float:
    """Weight of the first tenth of the run's gradients over its uniform share."""
    return float(per_part(gradient_weights(eta, lam))[0]) if eta.size >= 10 else 1.0


def forgetting(config: LMConfig, rates: Rates) -> Iterator[tuple[str, str]]:
    """(name, sentence) of each failure of memory that the rates of the main group foretell."""
    optimizer = scaled(config)
    eta = main_lr(optimizer) * rates.eta_share
    lam = optimizer.weight_decay * rates.lam_share
    pull = float(eta.max() * lam.max())
    with np.errstate(over="ignore", invalid="ignore"):
        x, left = pull * config.steps, float(kept(eta, lam)[0])
    early = _early_weight(eta, lam)
    if early < FORGOTTEN:
        yield (
            "forgotten",
            f"early data forgotten: x = lam eta_max T = {x:.3g}, so T3 = {inverse(pull):,.0f} "
            f"steps is short beside T = {config.steps:,}; the first tenth of the run has "
            f"{early:.2g} of its uniform share of the final weights. Less weight_decay, or an ema "
            "schedule",
        )
    if x < 1:
        yield (
            "start kept",
            f"the initialisation is never forgotten: x = lam eta_max T = {x:.3g} < 1, and "
            f"{left:.0%} of the initial weights is left at the end. More steps or weight_decay",
        )


def _mean_square(group: Group, rms: Mapping[str, float], numel: Mapping[str, int]) -> float:
    """Mean square over all numbers of a group."""
    sizes = np.array([numel[p] for p in group.parameters], dtype=np.float64)
    values = np.array([rms.get(p, math.nan) for p in group.parameters])
    return float((sizes * values**2).sum() / sizes.sum())
