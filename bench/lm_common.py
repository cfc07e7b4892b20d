"""What the language-model benches share: our whole training step, rates of the machine, tables."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.figures import Spread as Spread
from bench.figures import keep as keep
from bench.figures import told as told
from data_shards.text.read import get_batch
from fedcore.config import RunConfig
from fedcore.lm.engine import Engine, Trained
from fedcore.lm.engines import build_engine
from fedcore.lm.measure import Window
from fedcore.lm.optim import build_optimizer
from fedcore.lm.rates import GroupRates
from fedcore.lm.schedules import rates
from fedcore.seeds import generator
from fedcore.server.comm import LocalComm
from launcher.lm_job import DTYPES, build_model
from launcher.rundir import environment
from launcher.world import Place, World
from launcher.world import join as join_world

Step = Callable[[int], object]
# dense bf16 peaks of the makers' data sheets, FLOP/s
CARDS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}


def synthetic(vocab: int, tokens: int = 2_000_000) -> np.ndarray:
    """Uniformly drawn token ids: uint16 [tokens] (no text, so that nothing is downloaded)."""
    return np.random.default_rng(0).integers(0, vocab, tokens).astype(np.uint16)


class OurStep:
    """A training step as `LMRun` makes it, but for lines, evaluations and checkpoints.

    Batches are those of `lm.data.order=random`.
    """

    def __init__(
        self,
        config: RunConfig,
        vocab: int,
        device: torch.device,
        *,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        assert config.lm is not None
        self.lm, self.device, self.window = config.lm, device, Window()
        self.own = config.lm.batch_size // ranks
        self.first = rank * self.own
        self.tokens = torch.from_numpy(synthetic(vocab))
        model = build_model(config, vocab).to(device, DTYPES[config.precision])
        self.parameters = sum(p.numel() for p in model.parameters())
        optimiser = build_optimizer(model, config.lm.optimizer)
        self.rates = GroupRates(config.lm, rates(config.lm), model, optimiser)
        self.engine: Engine = build_engine(Trained(config, model, optimiser, device, ranks, rank))

    def __call__(self, step: int) -> torch.Tensor:
        """One optimiser step; this rank's loss []."""
        self.rates.write(self.engine, step)
        draws = generator(0, 0, step, "windows")
        x, y = get_batch(self.tokens, self.lm.batch_size, self.lm.model.context, draws)
        rows = torch.cat([x, y[:, -1:]], dim=1)[self.first : self.first + self.own]
        loss = self.engine.gradients(rows.to(self.device, non_blocking=True))
        norm = self.engine.step()
        self.window.add(loss, norm, self.rates.at(step)[0])
        return loss


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Cost(NamedTuple):
    """Of one step, in seconds: by the clock, and of all this process's threads."""

    wall: float
    processor: float


def timed(step: Step, first: int, steps: int, device: torch.device) -> Cost:
    """What a step costs in a block of `steps`."""
    settle(device)
    start, spent = time.perf_counter(), time.process_time()
    for number in range(first, first + steps):
        step(number)
    settle(device)
    wall, processor = time.perf_counter() - start, time.process_time() - spent
    return Cost(wall / steps, processor / steps)


def matmul_rate(device: torch.device, dtype: torch.dtype, repeats: int = 7) -> list[float]:
    """FLOP/s of products of two big square matrices, one figure a product."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    found = []
    for _ in range(repeats + 2):
        settle(device)
        start = time.perf_counter()
        a @ b
        settle(device)
        found.append(2 * size**3 / (time.perf_counter() - start))
    return found[2:]


def card_peak() -> float | None:
    """FLOP/s in bf16 on the data sheet of this card, if it is one of `CARDS`."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((peak for card, peak in CARDS.items() if card in name), None)


class Ratio(NamedTuple):
    """Of costs measured one after the other; that of processor time is steadier under load."""

    wall: Spread
    processor: Spread

    @classmethod
    def of(cls, costs: Sequence[Cost], others: Sequence[Cost]) -> Ratio:
        pairs = list(zip(costs, others, strict=True))
        return cls(*(Spread.of([a[i] / b[i] for a, b in pairs]) for i in range(2)))

    def facts(self) -> dict[str, dict[str, float]]:
        """As JSON has it."""
        return {name: spread._asdict() for name, spread in self._asdict().items()}


def join(device: str, threads: int) -> World:
    """The world of this process: torchrun's, or a group of one, which DeepSpeed wants too."""
    lm = {"engine": "deepspeed"}
    config = RunConfig.of({"device": device, "threads": threads, "lm": lm})
    return join_world(config, lambda error: os._exit(1))


def facts(settings: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Machine, load, versions, commit and the settings of a bench."""
    here = environment(World(Place.of(os.environ), device, LocalComm()))
    return {
        **here,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in settings.items()},
    }
