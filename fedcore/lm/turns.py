"""The clients of one rank, which take turns on its one engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """What one client returns from a round; everything is still on the device."""

    client: int
    change: dict[str, Tensor]  # its weights minus the global ones
    losses: Tensor  # [H] of each step
    norms: Tensor  # [H] of each gradient before clipping
    drift: Tensor  # [] root mean square of `change`


@dataclass
class Half:
    """A client's turn that paused before one of its steps."""

    weights: Tensors
    state: Any  # of the optimiser
    steps: list[tuple[Tensor, Tensor]]  # loss and gradient norm of each step so far


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
        self._halves: dict[int, Half] = {}

    def weights(self) -> dict[str, Tensor]:
        """A copy of the engine's weights."""
        return {k: v.detach().clone() for k, v in self.engine.model.named_parameters()}

    @torch.no_grad()
    def place(self, weights: Tensors) -> None:
        """Load these weights into the engine."""
        torch._foreach_copy_(self.engine.parts(), list(weights.values()))

    def train(
        self,
        client: int,
        weights: Tensors,
        steps: range,
        seen: int,
        pause: Callable[[], bool] = lambda: False,
    ) -> Turn | None:
        """`steps` of the run from the global weights on, by a client that has `seen` so many.

        pause: asked before each step; once it says so, None is returned, and the next call goes on.
        """
        fresh = Half(weights, self._memory.get(client, defaultdict(dict)), [])
        half = self._halves.pop(client, fresh)
        self.place(half.weights)
        self.engine.optimiser.state = half.state
        for i in range(len(half.steps), len(steps)):
            if pause():
                self._halves[client] = Half(self.weights(), half.state, half.steps)
                return None
            half.steps.append(self._step(client, steps[i], seen + i))
        if self.carry:
            self._memory[client] = self.engine.optimiser.state
        losses, norms = (torch.stack(column).double() for column in zip(*half.steps, strict=True))
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

    def memory(self) -> tuple[list[int], dict[str, Tensor]]:
        """The clients that have an optimiser memory, and it, each [k, ...]; for a checkpoint.

        A client that has not trained yet has none, and gets none back.
        """
        kept = {k: self._flat(v) for k, v in self._memory.items() if v}
        names = next(iter(kept.values()), {})
        return [*kept], {name: torch.stack([row[name] for row in kept.values()]) for name in names}

    def _flat(self, state: Any) -> dict[str, Tensor]:
        memory, scalars = memory_of(self.engine.model.named_parameters(), state)
        counts = {k: torch.tensor(v, dtype=torch.float64) for k, v in scalars.items()}
        return memory | {SCALARS + k: v for k, v in counts.items()}

    def load(self, clients: Sequence[int], memory: Tensors, weights: Tensors) -> None:
        """Take over the memory of these clients, as `memory` returned it."""
        for row, client in enumerate(clients):
            own = {k: v[row] for k, v in memory.items()}
            self._memory[client] = self._state_of(own, weights)

    def _state_of(self, flat: Tensors, weights: Tensors) -> Any:
        """An optimiser's state from what `_flat` made of one."""
        counts = {
            k.removeprefix(SCALARS): v.item() for k, v in flat.items() if k.startswith(SCALARS)
        }
        kept = {k: v for k, v in flat.items() if not k.startswith(SCALARS)}
        self.engine.load(EngineState(dict(weights), kept, counts))
        return self.engine.optimiser.state

    @property
    def has_begun(self) -> bool:
        """Whether a paused turn has made a step."""
        return any(half.steps for half in self._halves.values())

    def halves(self, length: int) -> tuple[list[int], dict[str, Tensor]]:
        """Turns that paused, of so many steps each: their clients, and tensors each [k, ...]."""
        begun = {k: half for k, half in self._halves.items() if half.steps}
        rows = [self._row_of(half, length) for half in begun.values()]
        return list(begun), {
            n: torch.stack([row[n] for row in rows]) for n in rows[0]
        } if rows else {}

    def _row_of(self, half: Half, length: int) -> dict[str, Tensor]:
        curve = torch.full((2, length), torch.nan, dtype=torch.float64)
        for row, column in zip(curve, zip(*half.steps, strict=True), strict=True):
            row[: len(column)] = torch.stack(column).double().cpu()
        named = {f"weights/{k}": v.detach() for k, v in half.weights.items()}
        memory = {f"memory/{k}": v for k, v in self._flat(half.state).items()}
        return named | memory | {"curve": curve, "count": torch.tensor(len(half.steps))}

    def load_halves(self, clients: Sequence[int], tensors: Tensors, like: Tensors) -> None:
        """Take what `halves` gave. like: the global weights, in their order."""
        for row, client in enumerate(clients):
            own = {k: v[row] for k, v in tensors.items()}
            weights = {k: own[f"weights/{k}"].to(v) for k, v in like.items()}
            memory = {
                k.removeprefix("memory/"): v for k, v in own.items() if k.startswith("memory/")
            }
            curve = own["curve"][:, : int(own["count"])].to(self.engine.of.device)
            steps = list(zip(*curve, strict=True))
            self._halves[client] = Half(weights, self._state_of(memory, weights), steps)


def dealt(clients: Sequence[int], rank: int, ranks: int) -> list[int]:
    """The clients of a rank, dealt in turn: all take equally many steps. There may be none."""
    return list(clients[rank::ranks])
