"""DeepSpeed: ZeRO 0...3 over the process group that the launcher made. The only file that knows it.

DeepSpeed's own checkpoints are pickles, belong to one number of ranks (a universal one to one ZeRO
stage) and know Adam's memory only. Here the shards are assembled instead, parameter by parameter,
into the one form of `EngineState`: no pickle, and any number of ranks, stage or engine goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.lm.engine import (
    EngineState,
    Trained,
    in_parts,
    load_state,
    memory_by_name,
    scalars_of,
    share,
    split,
    state_of,
)

OFFLOADED = {
    "none": (),
    "optimizer": ("offload_optimizer",),
    "all": ("offload_optimizer", "offload_param"),
}
CPU_BUCKET = 2_000_000
"""Numbers in one sum of gradients on CPUs. DeepSpeed's own, 250 times that, is a buffer taken anew
from the system each step: bench/lm_engines.py."""


def to_deepspeed(config: RunConfig, ranks: int, cuda: bool) -> dict[str, Any]:
    """DeepSpeed's configuration; the optimiser and its rates stay ours."""
    lm = config.lm
    assert lm is not None
    bf16 = config.precision == "bf16"
    zero: dict[str, Any] = {"stage": lm.zero_stage}
    if lm.zero_stage:
        zero |= {"overlap_comm": cuda, "contiguous_gradients": True}
        zero |= {} if cuda else {"reduce_bucket_size": CPU_BUCKET}
        zero |= {part: {"device": "cpu", "pin_memory": cuda} for part in OFFLOADED[lm.offload]}
    return {
        "train_batch_size": lm.batch_size,
        "train_micro_batch_size_per_gpu": lm.batch_size // (ranks * lm.accumulate),
        "gradient_accumulation_steps": lm.accumulate,
        "gradient_clipping": lm.max_norm,
        # without shards there is nothing to gain from bf16 weights: as the plain engine does
        "bf16": {"enabled": bf16 and lm.zero_stage > 0},
        "torch_autocast": {"enabled": bf16 and lm.zero_stage == 0, "dtype": "bfloat16"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": sys.maxsize,
        "wall_clock_breakdown": False,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What DeepSpeed prints on import and start goes to stderr, and only from warnings on."""
    with contextlib.redirect_stdout(sys.stderr):
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        yield
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


class DeepSpeedEngine:
    """ZeRO 0 (plain data parallel), 1 (optimiser), 2 (and gradients) or 3 (and weights sharded)."""

    def __init__(self, of: Trained) -> None:
        if of.config.precision == "fp64":
            want = "fp32 or bf16 under deepspeed"
            raise ConfigError("precision", "fp64", want, "lm.engine=plain")
        self.of, self.stage, self.device = of, of.lm.zero_stage, of.device
        if of.device.type == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"  # read on import
        # at each step, of names that torch 2.14 changed and DeepSpeed 0.19 uses
        renamed = r"`torch\.distributed\..*` is deprecated"
        warnings.filterwarnings("ignore", renamed, FutureWarning)
        with _quiet():
            import deepspeed

            # a shared-memory kernel for CPUs that would be compiled for minutes at first use
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
            self.engine, self.optimiser, _, _ = deepspeed.initialize(
                model=of.model,
                optimizer=of.optimiser,
                config=to_deepspeed(of.config, of.ranks, of.device.type == "cuda"),
                dist_init_required=False,
            )
            if of.lm.compile:
                self.engine.compile()
        self.model = of.model
        self.replicated = self.stage == 0

    @property
    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optimiser.param_groups
        return groups

    def gradients(self, rows: Tensor) -> Tensor:
        return in_parts(rows, self.of.lm.accumulate, self._one)

    def _one(self, rows: Tensor, last: bool) -> Tensor:
        loss: Tensor = self.engine(*split(rows))
        self.engine.backward(loss)  # divides by the number of parts itself
        if not last:
            self.engine.step()
        return loss.float()

    def step(self) -> Tensor:
        # stage 0 in fp32 clips without telling the norm
        before = self._norm() if self.stage == 0 else None
        self.engine.step()
        norm = before if before is not None else self.engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float32, device=self.device)

    def _norm(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return nn.utils.get_total_norm(grads)

    def loss(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            mean: Tensor = self.engine(*split(rows))
        return mean.float()

    def parts(self) -> list[Tensor]:
        if self.stage == 0:
            return [p.detach() for p in self.model.parameters()]
        empty = torch.zeros(0, device=self.device)
        found = [self._part(p) for p in self.model.parameters()]
        return [empty if part is None else part.detach() for part in found]

    def _part(self, parameter: Tensor) -> Tensor | None:
        from deepspeed.utils import safe_get_local_fp32_param

        part: Tensor | None = None
        if self.stage == 3:
            part = safe_get_local_fp32_param(parameter)
        elif parameter._hp_mapping is not None:  # type: ignore[attr-defined]
            part = parameter._hp_mapping.get_hp_fragment()  # type: ignore[attr-defined]
        return part

    @property
    def _inner(self) -> Optimizer:
        """The optimiser we made, which DeepSpeed's drives."""
        inner: Optimizer = getattr(self.optimiser, "optimizer", self.optimiser)
        return inner

    def state(self) -> EngineState:
        own = share(self.model, self.of)
        if self.stage == 0:
            return state_of(own, self._inner)
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        keys, scalars = self._memory_keys()
        self._link()
        found, mine = EngineState({}, {}, scalars), {name for name, _ in own}
        for name, parameter in self.model.named_parameters():
            whole = safe_get_full_fp32_param(parameter)  # collective: no rank may skip it
            if name in mine:
                found.weights[name] = whole.to("cpu", torch.float32, copy=True)
            for key in keys:
                whole = safe_get_full_optimizer_state(parameter, key)
                if name in mine:
                    found.memory[f"{key}/{name}"] = whole.to("cpu", torch.float32, copy=True)
        return found

    def load(self, state: EngineState) -> None:
        if self.stage == 0:
            load_state(self.model.named_parameters(), self._inner, state)
            return
        self._make_memory(state)
        self._link()
        memory = memory_by_name(state)
        for name, parameter in self.model.named_parameters():
            self._fill(parameter, state.weights[name])
            for key, value in memory.get(name, {}).items():
                self._fill(parameter, value, key)
        self._spread()

    def _fill(self, parameter: Tensor, whole: Tensor, key: str | None = None) -> None:
        """Put this rank's part of `whole` into the fp32 weight, or into the memory `key` of it."""
        from deepspeed import utils as ds

        if self.stage < 3:
            whole = whole.to(self.device)
            if key is None:
                ds.safe_set_full_fp32_param(parameter, whole)
            else:
                ds.safe_set_full_optimizer_state(parameter, whole, key)
            return
        size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        padded = torch.zeros(size * self.of.ranks)  # the last rank's part may end beyond the tensor
        padded[: whole.numel()] = whole.flatten()
        part = padded[size * self.of.rank :][:size].to(self.device)
        if key is None:
            ds.safe_set_local_fp32_param(parameter, part)
        else:
            ds.safe_set_local_optimizer_state(parameter, part, key)

    def _flat(self) -> list[Tensor]:
        """This rank's flat fp32 partitions, over which the inner optimiser runs."""
        name = (
            "fp32_partitioned_groups_flat" if self.stage == 3 else "single_partition_of_fp32_groups"
        )
        return list(getattr(self.optimiser, name))

    def _memory_keys(self) -> tuple[list[str], dict[str, float]]:
        keys: dict[str, None] = {}
        scalars: dict[str, float] = {}
        for flat in self._flat():
            for key, value in self._inner.state.get(flat, {}).items():
                if isinstance(value, Tensor) and value.shape == flat.shape:
                    keys[key] = None
                else:
                    scalars[key] = float(value)
        return list(keys), scalars

    def _make_memory(self, state: EngineState) -> None:
        """Memory as after a first step: before it there is none that could be filled."""
        keys = dict.fromkeys(path.partition("/")[0] for path in state.memory)
        for flat in self._flat():
            empty = {k: torch.zeros_like(flat) for k in keys}
            self._inner.state[flat] = empty | scalars_of(state)

    def _link(self) -> None:
        """Show DeepSpeed where each parameter's memory lies; it looks once, before there is any."""
        if self.stage == 3:
            return
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        for group, flat in zip(self.optimiser.bit16_groups, self._flat(), strict=True):
            lazy_init_hp_params_optimizer_state(group, flat, self._inner.state)

    def _spread(self) -> None:
        """The weights that the forward pass reads, from the fp32 partitions just filled."""
        optimiser = self.optimiser
        if self.stage < 3:
            optimiser.update_lp_params()
            return
        for low, high in zip(optimiser.fp16_partitioned_groups_flat, self._flat(), strict=True):
            low.data.copy_(high.data)
        kept_whole = optimiser.persistent_parameters
        if kept_whole:
            kept_whole[0].all_gather(kept_whole)

    def close(self) -> None:
        self.engine.destroy()
        del self.engine, self.optimiser, self.model
