"""Who gets which eta and lam: the schedule's shares times each parameter group's own peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from fedcore.config_lm import LMConfig
from fedcore.lm.engine import Engine
from fedcore.lm.memory import long_run_std
from fedcore.lm.monitors import Group
from fedcore.lm.scale import RMSController, scaled
from fedcore.lm.schedules import Rates


class GroupRates:
    """Writes eta and lam into an engine's groups before each step.

    Made before an engine takes the optimiser over: what the engine keeps of its groups are places
    to write to. With `lm.monitor.target_rms` each decayed matrix is a group of its own, and its lam
    is the controller's.
    """

    def __init__(
        self, config: LMConfig, rates: Rates, model: nn.Module, optimiser: Optimizer
    ) -> None:
        self.rates = rates
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self.groups = [
            {k: v for k, v in g.items() if k != "params"} for g in optimiser.param_groups
        ]
        self.optimizer = scaled(config)
        self.controller: RMSController | None = None
        target = config.monitor.target_rms
        if target is not None:
            held = [n for g in self.groups if g["weight_decay"] > 0 for n in g["names"]]
            std = {n: long_run_std(self.optimizer, self.shapes[n]) or 1.0 for n in held}
            self.controller = RMSController(target, std)
        self._decays: dict[str, float] = {}

    @property
    def numel(self) -> dict[str, int]:
        """Number of elements of each parameter, in the model's order."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    def monitored(self) -> list[Group]:
        """The groups as monitors see them: groups of one name are merged."""
        members: dict[str, list[str]] = {}
        for g in self.groups:
            members.setdefault(g["name"], []).extend(g["names"])
        peaks = {g["name"]: (g["lr"], g["weight_decay"]) for g in self.groups}
        return [
            Group.of(
                name,
                {n: self.shapes[n] for n in names},
                self.optimizer,
                lr=peaks[name][0],
                weight_decay=peaks[name][1],
            )
            for name, names in members.items()
        ]

    def at(self, step: int) -> tuple[float, float]:
        """(eta, lam) of the main group in that step (from 0), as they are logged."""
        main = max(self.groups, key=lambda g: (g["name"] == "muon", g["weight_decay"], g["lr"]))
        return self._of(main, step)

    def write(self, engine: Engine, step: int) -> None:
        """Set eta and lam of every group of the engine for that step (from 0)."""
        for own, live in zip(self.groups, engine.groups, strict=True):
            live["lr"], live["weight_decay"] = self._of(own, step)

    def _of(self, group: Mapping[str, Any], step: int) -> tuple[float, float]:
        eta = group["lr"] * float(self.rates.eta_share[step])
        lam = group["weight_decay"] * float(self.rates.lam_share[step])
        return eta, self._decays.get(group["names"][0], lam) if self.controller else lam

    def control(self, step: int, rms: Mapping[str, float]) -> None:
        """Let the controller, if there is one, answer the RMS measured after `step` steps.

        rms: of each parameter, by name.
        """
        if self.controller is None or step >= len(self.rates.eta_share):
            return
        held = {name: rms[name] for name in self.controller.std}
        share = float(self.rates.eta_share[step])
        eta = {n: g["lr"] * share for g in self.groups for n in g["names"] if n in held}
        self._decays = self.controller.decays(step, held, eta)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of the controller, as JSON; empty without one."""
        return dict(self.controller.state) if self.controller else {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        if self.controller is not None:
            self.controller.state = state
            self._decays = dict(state.get("decay", {}))
