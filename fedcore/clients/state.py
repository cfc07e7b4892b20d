"""ClientState: everything that persists of K clients; every tensor has the client axis first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedcore.batch import sent
from fedcore.clients.layout import Layout, Tensors


def _copied(values: Tensor, rows: list[int]) -> Tensor:
    """Those rows; one by one, which on a CPU is several times faster than to index them."""
    out = values.new_empty(len(rows), *values.shape[1:])
    for mine, row in zip(out, rows, strict=True):
        mine.copy_(values[row])
    return out


MEMORY = "memory"
LOG_VAR_MEMORY = "log_var_memory"


@dataclass
class ClientState:
    """The state of K clients: parameters, and all that is like them, as rows of flat buffers."""

    layout: Layout
    weights: Tensor  # [K, P] encoder and prototypes, as the layout says; [K, 0] if not kept
    buffers: Tensors  # each [K, ...]; batch-norm statistics
    log_var: Tensor  # [K, 2] log sigma^2 of (local, align)
    steps: Tensor  # [K] int64, optimiser steps done since the start of the run
    flat: Tensors = field(default_factory=dict)  # each [K, P]: optimiser memory, control variates
    kept: Tensors = field(default_factory=dict)  # each [K, ...]; what only some algorithms keep

    @classmethod
    def start(
        cls,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        log_var: Tensor,
        channels_last: bool = False,
    ) -> ClientState:
        """K = len(log_var) copies of one model; no optimiser memory before the first round."""
        clients, layout = len(log_var), Layout(params, channels_last)
        row = layout.row(params).to(log_var.device)
        return cls(
            layout,
            row.expand(clients, -1).clone(),
            {k: v.detach().expand(clients, *v.shape).clone() for k, v in buffers.items()},
            log_var.clone(),
            torch.zeros(clients, dtype=torch.int64, device=log_var.device),
        )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def params(self) -> Tensors:
        """Views of the parameters, each [K, ...]; none if they are not kept."""
        return self.layout.views(self.weights) if self.weights.shape[1] else {}

    @property
    def memory(self) -> Tensors:
        """Views of the optimiser memory, keyed like `params` plus "log_var"; empty without one."""
        if MEMORY not in self.flat:
            return {}
        own = self.layout.views(self.flat[MEMORY])
        if LOG_VAR_MEMORY in self.kept:
            own["log_var"] = self.kept[LOG_VAR_MEMORY]
        return own

    def forget_momentum(self) -> None:
        """Start the optimiser memory at zero."""
        self.keep(MEMORY)
        self.kept[LOG_VAR_MEMORY] = torch.zeros_like(self.log_var)

    def model_tensors(self) -> Tensors:
        """What makes a client's model: parameters and buffers, in a fixed order."""
        return self.params | self.buffers

    def keep(self, name: str) -> None:
        """Keep a number for each parameter under that name; zero at first."""
        self.flat[name] = self.log_var.new_zeros(len(self), self.layout.size)

    def kept_under(self, name: str) -> Tensors:
        """Views of what is kept like parameters under that name, each [K, ...]."""
        return self.layout.views(self.flat[name]) if name in self.flat else {}

    def drop(self, prefix: str) -> None:
        """Forget what is kept like parameters under `prefix/`."""
        self.flat = {k: v for k, v in self.flat.items() if not k.startswith(prefix + "/")}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite every client's model with `weights` (each [...], no client axis)."""
        for name, value in self.model_tensors().items():
            value.copy_(weights[name].expand_as(value))

    def without_model(self) -> ClientState:
        """The same clients, of whom no model is kept."""
        return replace(self, weights=self.weights[:, :0], buffers={})

    def take_model(self, one: ClientState) -> None:
        """Copy the model of a single client into all of these."""
        clients = len(self)
        self.weights = one.weights.expand(clients, -1).clone()
        self.buffers = {k: v.expand(clients, *v.shape[1:]).clone() for k, v in one.buffers.items()}

    def repeated(self, clients: int) -> ClientState:
        """A single client so many times over, sharing memory."""
        return self.each(lambda x: x.expand(clients, *x.shape[1:]))

    def take(self, rows: Tensor, model: bool = True) -> ClientState:
        """The clients at rows [K], copied; model: with their models."""
        if not model:
            return self.without_model().take(rows)
        if self.log_var.device.type == "cpu":
            return self.each(lambda x: _copied(x, rows.tolist()))
        here = sent(rows, self.log_var.device)
        return self.each(lambda x: x.index_select(0, here))

    def first(self, clients: int) -> ClientState:
        """The first `clients` clients, sharing memory."""
        return self if clients == len(self) else self.each(lambda x: x[:clients])

    def put(self, rows: Tensor, part: ClientState) -> None:
        """Write clients `part` back to rows [K], as far as this state keeps the same of them."""
        theirs, here = part.leaves(), sent(rows, self.log_var.device)
        for name, mine in self.leaves().items():
            if name not in theirs or mine.shape[1:] != theirs[name].shape[1:]:
                continue
            if mine.device.type == "cpu":
                for row, values in zip(rows.tolist(), theirs[name], strict=True):
                    mine[row].copy_(values)
            else:
                mine.index_copy_(0, here, theirs[name])

    def leaves(self) -> Tensors:
        """All tensors that the state is made of, by name."""
        flat = {f"flat/{k}": v for k, v in self.flat.items()}
        kept = {f"kept/{k}": v for k, v in self.kept.items()}
        buffers = {f"buffers/{k}": v for k, v in self.buffers.items()}
        own = {"weights": self.weights, "log_var": self.log_var, "steps": self.steps}
        return own | buffers | flat | kept

    def each(self, function: Callable[[Tensor], Tensor]) -> ClientState:
        """The state with `function` applied to each tensor."""

        def of(tensors: Tensors) -> Tensors:
            return {k: function(v) for k, v in tensors.items()}

        return ClientState(
            self.layout,
            function(self.weights),
            of(self.buffers),
            function(self.log_var),
            function(self.steps),
            of(self.flat),
            of(self.kept),
        )

    def tensors(self) -> Tensors:
        """All of it by name, each [K, ...]: `params/...`, `log_var` and so on."""
        groups = {"params": self.params, "buffers": self.buffers, MEMORY: self.memory}
        groups |= {f"kept/{name}": self.kept_under(name) for name in self.flat if name != MEMORY}
        groups["kept"] = {k: v for k, v in self.kept.items() if k != LOG_VAR_MEMORY}
        named = {f"{group}/{k}": v for group, part in groups.items() for k, v in part.items()}
        return {"log_var": self.log_var, "steps": self.steps} | named

    def fill(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Write `values` [len(rows), ...] at rows of the tensor of that name in `tensors`."""
        target = self._held(name, values)
        target[rows.to(target.device)] = values.to(target)

    def _held(self, name: str, like: Tensor) -> Tensor:
        """The tensor that `tensors` calls so; made if only some algorithms hold it."""
        if name in ("log_var", "steps"):
            return self.log_var if name == "log_var" else self.steps
        group, _, key = name.partition("/")
        if group == "params":
            return self.params[key]
        if group == "buffers":
            return self.buffers[key]
        if group == MEMORY:
            if MEMORY not in self.flat:
                self.forget_momentum()
            return self.memory[key]
        return self._held_beside(key, like)

    def _held_beside(self, key: str, like: Tensor) -> Tensor:
        prefix, _, parameter = key.rpartition("/")
        if prefix:
            if prefix not in self.flat:
                self.keep(prefix)
            return self.kept_under(prefix)[parameter]
        if key not in self.kept:
            zeros = like.new_zeros(len(self), *like.shape[1:])
            self.kept[key] = zeros.to(self.log_var.device)
        return self.kept[key]

    def blank(self, clients: int) -> ClientState:
        """Room for so many clients of the same kind."""
        return self.each(lambda x: x.new_zeros(clients, *x.shape[1:]))

    @classmethod
    def of(cls, tensors: Tensors, like: ClientState) -> ClientState:
        """The state whose `tensors` these are, laid out as `like`."""
        count = len(tensors["steps"])
        state = like.blank(count)
        state.flat, state.kept = {}, {}
        for name, values in tensors.items():
            state.fill(name, torch.arange(count), values)
        return state
