"""Engines: who multiplies, sums over the ranks and moves the weights. One protocol, three of them.

`lm/train.py` knows only what stands here. An engine's state is told and taken in one form, fp32
tensors under the model's own names, so that a run saved by any engine, ZeRO stage and number of
ranks goes on under any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fedcore.config import RunConfig
from fedcore.config_lm import LMConfig
from fedcore.lm.ops import clip_gradients


class EngineState(NamedTuple):
    """All that a run needs to go on exactly where it was."""

    weights: dict[str, Tensor]  # fp32, by the model's names
    memory: dict[str, Tensor]  # fp32, `exp_avg/<parameter>` and so on
    scalars: dict[str, float]  # what the optimiser keeps beside tensors: its count of steps


class Engine(Protocol):
    """One model under training on this rank. All methods but `parts` are collective."""

    model: nn.Module
    replicated: bool  # every rank has all of `parts`; else the ranks' parts make up the whole

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimiser's groups: write `lr` and `weight_decay` into each before a step."""

    def gradients(self, rows: Tensor) -> Tensor:
        """Mean loss [] of this rank's rows [b, T + 1]; the mean gradient is left for `step`."""

    def step(self) -> Tensor:
        """Clip, move the weights and drop the gradient; its global norm [] before clipping."""

    def loss(self, rows: Tensor) -> Tensor:
        """Mean loss [] of rows [b, T + 1], without a gradient."""

    def parts(self) -> list[Tensor]:
        """This rank's part of each parameter, in the model's order: live fp32 tensors."""

    def state(self) -> EngineState:
        """This rank's share of the whole state, copied: of the parameters that `share` names."""

    def load(self, state: EngineState) -> None:
        """Go on from a whole state: what `state` of any engine returned, of all ranks together."""

    def close(self) -> None:
        """Let go of the model; a process must not end while it still holds one."""


def autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which the forward pass runs in bf16, if `precision` says so."""
    if config.precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [b, T] and, for each, the token that follows it [b, T]; from rows [b, T + 1]."""
    return rows[:, :-1], rows[:, 1:]


class Trained(NamedTuple):
    """What an engine is built from; the model is on the device already."""

    config: RunConfig
    model: nn.Module
    optimiser: Optimizer
    device: torch.device
    ranks: int = 1  # that share each batch
    rank: int = 0

    @property
    def lm(self) -> LMConfig:
        """The section of a language-model run."""
        assert self.config.lm is not None
        return self.config.lm


def in_parts(rows: Tensor, parts: int, one: Callable[[Tensor, bool], Tensor]) -> Tensor:
    """Mean loss [] of a step that is cut into several forward passes.

    one: (rows, whether it is the last) -> mean loss of these rows, their gradient left behind.
    """
    micro = rows.chunk(parts)
    losses = [one(part, number == len(micro)) for number, part in enumerate(micro, 1)]
    return torch.stack([loss.detach() for loss in losses]).mean()


class WholeModel:
    """An engine whose ranks each hold all weights, under an optimiser of torch's ordinary kind."""

    replicated = True

    def __init__(self, of: Trained) -> None:
        self.of, self.model, self.optimiser = of, of.model, of.optimiser

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimiser's groups; after a load these are other objects."""
        return self.optimiser.param_groups

    def parts(self) -> list[Tensor]:
        """All weights, detached: every rank holds the whole model."""
        return [p.detach() for p in self.model.parameters()]

    def state(self) -> EngineState:
        """The state of the parameters that this rank stores, though it holds all of them."""
        return state_of(share(self.model, self.of), self.optimiser)

    def load(self, state: EngineState) -> None:
        """Load a whole state; every rank takes all of it."""
        load_state(self.model.named_parameters(), self.optimiser, state)


# the rotary table is a buffer, and the same everywhere; torch 2.14 renamed what says so
_SAID_BY = inspect.signature(DistributedDataParallel).parameters
BUFFERS_STAY: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SAID_BY else "broadcast_buffers": False
}


class PlainEngine(WholeModel):
    """Torch itself, with DDP on several ranks: the reference, on any device."""

    def __init__(self, of: Trained) -> None:
        super().__init__(of)
        called = torch.compile(of.model) if of.lm.compile else of.model
        self._ddp: DistributedDataParallel | None = None
        if of.ranks > 1:
            own = [of.device] if of.device.type == "cuda" else None
            self._ddp = DistributedDataParallel(called, device_ids=own, **BUFFERS_STAY)
        self._called: Any = self._ddp or called

    def gradients(self, rows: Tensor) -> Tensor:
        return in_parts(rows, self.of.lm.accumulate, self._one)

    def _one(self, rows: Tensor, last: bool) -> Tensor:
        with self._alone(not last):
            with autocast(self.of.config, self.of.device):
                loss: Tensor = self._called(*split(rows))
            (loss / self.of.lm.accumulate).backward()  # type: ignore[no-untyped-call]
        return loss

    def _alone(self, alone: bool) -> AbstractContextManager[Any]:
        """Without a sum over the ranks: only the last part of a step needs one."""
        return self._ddp.no_sync() if self._ddp and alone else nullcontext()

    def step(self) -> Tensor:
        norm = clip_gradients(self.model.parameters(), self.of.lm.max_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return norm

    def loss(self, rows: Tensor) -> Tensor:
        with torch.no_grad(), autocast(self.of.config, self.of.device):
            mean: Tensor = self.model(*split(rows))
        return mean.float()

    def close(self) -> None:
        self._called = self._ddp = None


def share(model: nn.Module, of: Trained) -> list[tuple[str, Tensor]]:
    """The parameters that this rank stores: about as many numbers as any other rank."""
    named = list(model.named_parameters())
    return [named[i] for i in shares([p.numel() for _, p in named], of.ranks)[of.rank]]


def shares(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Which of these tensors each rank stores, in order, by the middle of each of them."""
    found: list[list[int]] = [[] for _ in range(ranks)]
    total, before = max(sum(sizes), 1), 0
    for i, size in enumerate(sizes):
        found[min(ranks - 1, (2 * before + size) * ranks // (2 * total))].append(i)
        before += size
    return found


def state_of(named: Iterable[tuple[str, Tensor]], optimiser: Optimizer) -> EngineState:
    """The state of weights and an optimiser over just these tensors, copied where it is."""
    pairs = list(named)
    weights = {name: _copy(weight) for name, weight in pairs}
    return EngineState(weights, *memory_of(pairs, optimiser.state))


def memory_of(
    named: Iterable[tuple[str, Tensor]], state: Mapping[Tensor, Mapping[str, Any]]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """`memory` and `scalars` of an `EngineState` out of an optimiser's `state`, copied."""
    memory, scalars = {}, {}
    for name, weight in named:
        for key, value in state.get(weight, {}).items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.ndim:
                memory[f"{key}/{name}"] = _copy(value)
            else:
                scalars[key] = float(value)
    return memory, scalars


def _copy(value: Tensor) -> Tensor:
    """In fp32 at least; on the CPU if the device has no room for it."""
    wide = torch.promote_types(value.dtype, torch.float32)
    try:
        return value.detach().to(wide, copy=True)
    except torch.OutOfMemoryError:
        return value.detach().to("cpu", wide, copy=True)


def load_state(
    named: Iterable[tuple[str, Tensor]], optimiser: Optimizer, state: EngineState
) -> None:
    """Fill weights and the optimiser's memory; torch puts each tensor where the optimiser wants it.

    Raises `KeyError` for a parameter that the state lacks.
    """
    names = {}
    for name, weight in named:
        names[weight] = name
        with torch.no_grad():
            weight.copy_(state.weights[name])
    packed, memory = optimiser.state_dict(), memory_by_name(state)
    order = [p for group in optimiser.param_groups for p in group["params"]]
    packed["state"] = {
        i: memory[names[p]] | scalars_of(state) for i, p in enumerate(order) if names[p] in memory
    }
    optimiser.load_state_dict(packed)


def memory_by_name(state: EngineState) -> dict[str, dict[str, Tensor]]:
    """What the optimiser remembers of each parameter, by key."""
    found: dict[str, dict[str, Tensor]] = {}
    for path, value in state.memory.items():
        key, _, name = path.partition("/")
        found.setdefault(name, {})[key] = value
    return found


def scalars_of(state: EngineState) -> dict[str, Tensor]:
    """The scalars as tensors of their own: an optimiser counts in place, for each parameter."""
    return {k: torch.tensor(v) for k, v in state.scalars.items()}
