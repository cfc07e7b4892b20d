"""Hugging Face accelerate over the launcher's process group. The only file that knows it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedcore.errors import CollectiveError, ConfigError
from fedcore.lm.engine import Trained, WholeModel, in_parts, split

MIXED = {"fp32": "no", "bf16": "bf16"}


class AccelerateEngine(WholeModel):
    """Data parallel by accelerate, which wraps the model and the optimiser."""

    def __init__(self, of: Trained) -> None:
        super().__init__(of)
        precision, threads = of.config.precision, torch.get_num_threads()
        if precision not in MIXED:
            want = "fp32 or bf16 under accelerate"
            raise ConfigError("precision", precision, want, "lm.engine=plain")
        from accelerate import Accelerator

        # else accelerate chooses a number of threads on a CPU, over the configuration's
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        self.accelerator = Accelerator(
            cpu=of.device.type == "cpu", mixed_precision=MIXED[precision]
        )
        found = self.accelerator.num_processes
        if found != of.ranks:
            reason = f"accelerate sees {found} rank(s), and there are {of.ranks}"
            raise CollectiveError("accelerate", of.rank, reason)
        called = torch.compile(of.model) if of.lm.compile else of.model
        self._called: Any
        self._called, self._stepping = self.accelerator.prepare(called, of.optimiser)

    def gradients(self, rows: Tensor) -> Tensor:
        return in_parts(rows, self.of.lm.accumulate, self._one)

    def _one(self, rows: Tensor, last: bool) -> Tensor:
        with self._alone(not last):
            loss: Tensor = self._called(*split(rows)).float()
            self.accelerator.backward(loss / self.of.lm.accumulate)
        return loss

    def _alone(self, alone: bool) -> AbstractContextManager[Any]:
        """Without a sum over the ranks: only the last part of a step needs one."""
        return self.accelerator.no_sync(self._called) if alone else nullcontext()

    def step(self) -> Tensor:
        norm = self.accelerator.clip_grad_norm_(self._called.parameters(), self.of.lm.max_norm)
        self._stepping.step()
        self._stepping.zero_grad()
        return torch.as_tensor(norm, device=self.of.device)

    def loss(self, rows: Tensor) -> Tensor:
        with torch.no_grad(), self.accelerator.autocast():
            mean: Tensor = self.model(*split(rows))
        return mean.float()

    def close(self) -> None:
        from accelerate.state import AcceleratorState

        self.accelerator.free_memory()
        AcceleratorState._reset_state(True)  # else the next run could not have another precision
        del self._called, self._stepping
