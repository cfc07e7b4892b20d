"""Hugging Face accelerate over the launcher's process group. The only file that knows it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedcore.config import RunConfig
from fedcore.errors import CollectiveError, ConfigError
from fedcore.lm.engine import EngineState, load_state, split, state_of

MIXED = {"fp32": "no", "bf16": "bf16"}


class AccelerateEngine:
    """Data parallel by accelerate, which wraps the model and the optimiser."""

    replicated = True

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        optimiser: Optimizer,
        device: torch.device,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        if config.precision not in MIXED:
            raise ConfigError(
                "precision", config.precision, "fp32 or bf16 under accelerate", "lm.engine=plain"
            )
        from accelerate import Accelerator

        lm = config.lm
        assert lm is not None
        self.model, self.plain_optimiser, self.device, self.rank = model, optimiser, device, rank
        self.accumulate, self.max_norm = lm.accumulate, lm.max_norm
        # else accelerate chooses a number of threads on a CPU, over the configuration's
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        self.accelerator = Accelerator(
            cpu=device.type == "cpu", mixed_precision=MIXED[config.precision]
        )
        found = self.accelerator.num_processes
        if found != ranks:
            reason = f"accelerate sees {found} rank(s), and there are {ranks}"
            raise CollectiveError("accelerate", rank, reason)
        called = torch.compile(model) if lm.compile else model
        self.called: Any
        self.called, self.optimiser = self.accelerator.prepare(called, optimiser)

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.plain_optimiser.param_groups

    def gradients(self, rows: Tensor) -> Tensor:
        micro = rows.chunk(self.accumulate)
        losses = []
        for number, part in enumerate(micro, 1):
            with self._alone(number < len(micro)):
                loss = self.called(*split(part)) / len(micro)
                self.accelerator.backward(loss)
            losses.append(loss.detach().float())
        return torch.stack(losses).sum()

    def _alone(self, alone: bool) -> AbstractContextManager[Any]:
        """Without a sum over the ranks: only the last part of a step needs one."""
        return self.accelerator.no_sync(self.called) if alone else nullcontext()

    def step(self) -> Tensor:
        norm = self.accelerator.clip_grad_norm_(self.called.parameters(), self.max_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return torch.as_tensor(norm, device=self.device)

    def loss(self, rows: Tensor) -> Tensor:
        with torch.no_grad(), self.accelerator.autocast():
            mean: Tensor = self.model(*split(rows))
        return mean.float()

    def parts(self) -> list[Tensor]:
        return [p.detach() for p in self.model.parameters()]

    def state(self) -> EngineState | None:
        named = self.model.named_parameters()
        return None if self.rank else state_of(named, self.plain_optimiser)

    def load(self, state: EngineState) -> None:
        load_state(self.model.named_parameters(), self.plain_optimiser, state)

    def close(self) -> None:
        from accelerate.state import AcceleratorState

        self.accelerator.free_memory()
        AcceleratorState._reset_state(True)  # else the next run could not have another precision
        del self.called, self.optimiser, self.model
