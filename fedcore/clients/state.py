"""ClientState: everything that persists of K clients; every tensor has the client axis first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
GROUPS = ("params", "buffers", "memory", "kept")


@dataclass
class ClientState:
    """K clients of one rank."""

    params: Tensors  # each [K, ...]; encoder and prototypes
    buffers: Tensors  # each [K, ...]; batch-norm statistics
    log_var: Tensor  # [K, 2] log sigma^2 of (local, align)
    memory: Tensors  # optimiser memory, keyed like params plus "log_var"; empty between rounds
    steps: Tensor  # [K] int64, optimiser steps done since the start of the run
    kept: Tensors = field(default_factory=dict)  # each [K, ...]; what only some algorithms keep

    @classmethod
    def start(
        cls, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], log_var: Tensor
    ) -> ClientState:
        """K = len(log_var) copies of one model; no optimiser memory before the first round."""
        clients = len(log_var)

        def stack(tensors: Mapping[str, Tensor]) -> Tensors:
            return {k: v.detach().expand(clients, *v.shape).clone() for k, v in tensors.items()}

        stacked = stack(params)
        steps = torch.zeros(clients, dtype=torch.int64, device=log_var.device)
        return cls(stacked, stack(buffers), log_var.clone(), {}, steps)

    def __len__(self) -> int:
        return len(self.steps)

    def forget_momentum(self) -> None:
        """Start the optimiser memory at zero."""
        self.memory = {k: torch.zeros_like(v) for k, v in self.moved_tensors().items()}

    def moved_tensors(self) -> Tensors:
        """What the optimiser moves: the parameters and `log_var`."""
        return self.params | {"log_var": self.log_var}

    def model_tensors(self) -> Tensors:
        """What makes a client's model: parameters and buffers, in a fixed order."""
        return self.params | self.buffers

    def keep(self, prefix: str, like: Tensors) -> None:
        """Keep a zero for each of the tensors `like`, under `prefix/name`."""
        self.kept |= {f"{prefix}/{k}": torch.zeros_like(v) for k, v in like.items()}

    def kept_under(self, prefix: str) -> Tensors:
        """The tensors kept under `prefix/`, by name."""
        start = prefix + "/"
        return {k.removeprefix(start): v for k, v in self.kept.items() if k.startswith(start)}

    def drop(self, prefix: str) -> None:
        """Forget what is kept under `prefix/`."""
        self.kept = {k: v for k, v in self.kept.items() if not k.startswith(prefix + "/")}

    def take(self, lane: Tensor) -> ClientState:
        """The clients at rows `lane`, copied."""
        return _each(lambda x: x[lane], self)

    def put(self, lane: Tensor, part: ClientState) -> None:
        """Write a lane's clients back."""

        def write(mine: Tensor, theirs: Tensor) -> Tensor:
            mine[lane] = theirs
            return mine

        _each(write, self, part)

    def tensors(self) -> Tensors:
        """All of it by name, each [K, ...]: `params/...`, `log_var` and so on."""
        flat = {"log_var": self.log_var, "steps": self.steps}
        for group in GROUPS:
            flat |= {f"{group}/{k}": v for k, v in getattr(self, group).items()}
        return flat

    @classmethod
    def of(cls, tensors: Tensors, like: ClientState) -> ClientState:
        """What `tensors` gave, in the order of `like`: a sum over parameters rounds by its order,
        and a file has them in another one."""
        place = {name: i for i, name in enumerate([*like.model_tensors(), "log_var"])}
        groups: dict[str, Tensors] = {group: {} for group in GROUPS}
        for name in sorted(tensors, key=lambda name: place.get(name.rpartition("/")[2], -1)):
            group, _, key = name.partition("/")
            if key:
                groups[group][key] = tensors[name]
        return cls(log_var=tensors["log_var"], steps=tensors["steps"], **groups)

    def fill(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Write `values` [len(rows), ...] of the tensor that `tensors` calls so; in place."""
        group, _, key = name.partition("/")
        if group == "memory" and not self.memory:
            self.forget_momentum()
        if group == "kept" and key not in self.kept:
            self.kept[key] = values.new_zeros(len(self), *values.shape[1:]).to(self.log_var.device)
        target = getattr(self, group)[key] if key else getattr(self, group)
        target[rows.to(target.device)] = values.to(target)

    def where(self, active: Tensor, other: ClientState) -> ClientState:
        """This state for clients that are active [K], `other` for the rest."""

        def choose(mine: Tensor, theirs: Tensor) -> Tensor:
            return torch.where(active.view(-1, *[1] * (mine.dim() - 1)), mine, theirs)

        return _each(choose, self, other)


def _each(function: Any, *states: ClientState) -> ClientState:
    """Apply `function` to the same tensor of every state."""
    parts: list[Any] = []
    for each in fields(ClientState):
        values = [getattr(state, each.name) for state in states]
        if isinstance(values[0], dict):
            parts.append({k: function(*(v[k] for v in values)) for k in values[0]})
        else:
            parts.append(function(*values))
    return ClientState(*parts)
