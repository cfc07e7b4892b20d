"""The clients of one rank, which take turns on its one engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcore.batch import TokenData
from fedcore.config_lm import LMConfig
from fedcore.lm.engine import EngineState, PlainEngine, memory_of
from fedcore.lm.rates import GroupRates

Tensors = Mapping[str, Tensor]
SCALARS = "scalars/"  # stands before what an optimiser counts, in a checkpoint


class Turn(NamedTuple):
    """What one client made of a round; everything is still on the device."""

    client: int
    change: dict[str, Tensor]  # its weights minus the global ones
    losses: Tensor  # [H] of each step
    norms: Tensor  # [H] of each gradient before clipping
    drift: Tensor  # [] root mean square of `change`


class Turns:
    """Trains clients one after another; keeps each one's optimiser memory, on the device."""

    def __init__(
        self,
        config: LMConfig,
        engine: PlainEngine,
        rates: GroupRates,
        data: Mapping[int, TokenData],  # of this rank's clients
    ) -> None:
        assert config.federated is not None
        self.engine, self.rates, self.data = engine, rates, data
        self.size, self.carry = config.batch_size, config.federated.carry_optimizer
        self._memory: dict[int, Any] = {}

    def weights(self) -> dict[str, Tensor]:
        """A copy of the engine's weights."""
        return {k: v.detach().clone() for k, v in self.engine.model.named_parameters()}

    @torch.no_grad()
    def place(self, weights: Tensors) -> None:
        """Let the engine have these weights."""
        torch._foreach_copy_(self.engine.parts(), list(weights.values()))

    def train(self, client: int, weights: Tensors, steps: range, seen: int) -> Turn:
        """`steps` of the run from the global weights on, by a client that has `seen` so many."""
        self.place(weights)
        self.engine.optimiser.state = self._memory.get(client, defaultdict(dict))
        done = [self._step(client, step, seen + i) for i, step in enumerate(steps)]
        if self.carry:
            self._memory[client] = self.engine.optimiser.state
        losses, norms = (torch.stack(column).double() for column in zip(*done, strict=True))
        change = torch._foreach_sub(self.engine.parts(), list(weights.values()))
        numel = sum(c.numel() for c in change)
        squares = torch.stack(torch._foreach_norm(change)).double().square().sum()
        named = dict(zip(weights, change, strict=True))
        return Turn(client, named, losses, norms, (squares / numel).sqrt())

    def _step(self, client: int, step: int, number: int) -> tuple[Tensor, Tensor]:
        """Loss and gradient norm of a step: `step` of the run, `number` of the client's own."""
        self.rates.write(self.engine, step)
        rows = self.data[client].batch(number, self.size, range(self.size))
        loss = self.engine.gradients(rows.to(self.engine.of.device, non_blocking=True))
        return loss, self.engine.step()

    def memory(self) -> dict[str, Tensor] | None:
        """The clients' optimiser memories for a checkpoint, each [K, ...] in the order of `data`.

        A client that never trained has zeros, from which every optimiser begins.
        """
        if not self.carry:
            return None
        rows = {k: self._flat(v) for k, v in self._memory.items()}
        like = next(iter(rows.values()), {})
        empty = {name: torch.zeros_like(value) for name, value in like.items()}
        each = [rows.get(client, empty) for client in self.data]
        return {name: torch.stack([row[name] for row in each]) for name in like}

    def _flat(self, state: Any) -> dict[str, Tensor]:
        memory, scalars = memory_of(self.engine.model.named_parameters(), state)
        counts = {k: torch.tensor(v, dtype=torch.float64) for k, v in scalars.items()}
        return memory | {SCALARS + k: v for k, v in counts.items()}

    def load(self, memory: Tensors, weights: Tensors) -> None:
        """Take what `memory` gave, rows in the order of `data`."""
        for row, client in enumerate(self.data):
            own = {k: v[row] for k, v in memory.items()}
            counts = {
                k.removeprefix(SCALARS): v.item() for k, v in own.items() if k.startswith(SCALARS)
            }
            kept = {k: v for k, v in own.items() if not k.startswith(SCALARS)}
            self.engine.load(EngineState(dict(weights), kept, counts))
            self._memory[client] = self.engine.optimiser.state


def dealt(clients: Sequence[int], rank: int, ranks: int) -> list[int]:
    """The clients of a rank: in turn, since all take equally many steps. It may get none."""
    return list(clients[rank::ranks])
