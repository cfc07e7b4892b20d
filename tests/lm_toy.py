"""A small language-model run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedcore.config import RunConfig
from fedcore.lm.train import LMRun
from fedcore.server.comm import LocalComm
from fedcore.telemetry.events import Event, LMStepEvent, LMWarningEvent
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare_text
from launcher.lm_job import LanguageModel
from launcher.rundir import RunDir
from launcher.world import Place, World


class Kept:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: Sequence[Event]) -> None:
        self.events += events

    def close(self) -> None:
        """Nothing is open."""

    @property
    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        return {e.step: e.loss for e in self.events if isinstance(e, LMStepEvent)}

    @property
    def warnings(self) -> list[str]:
        """What was warned of."""
        return [e.message for e in self.events if isinstance(e, LMWarningEvent)]


def config_of(folder: Path, **lm: Any) -> RunConfig:
    """Twelve steps of one small layer; `lm` overrides sections as a whole."""
    usual = {
        "steps": 12,
        "batch_size": 4,
        "log_every": 1,
        "data": {"limit": 30_000},
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
        "optimizer": {"lr": 0.01},
        "monitor": {"every": 4},
    }
    every = {"every": 4}
    values = {"lm": usual | lm, "data": {"store": str(folder / "store")}}
    return RunConfig.of(values | {"evaluate": every, "checkpoint": every})


def built(config: RunConfig, folder: Path) -> tuple[LMRun, Kept]:
    """The run on one rank with a run directory in `folder`, and what it tells."""
    run, kept, kind = RunDir(folder / "run"), Kept(), LanguageModel(config)
    run.path.mkdir(parents=True, exist_ok=True)
    kind.open(prepare_text.ensure(config))
    place = Place(rank=0, size=1, local_rank=0, local_size=1, address="", port=0)
    here = World(place, torch.device("cpu"), LocalComm())
    return kind.build(here, Telemetry([kept]), run, {}), kept
