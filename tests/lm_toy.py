"""A small language-model run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedcore.config import RunConfig
from fedcore.lm.train import LMRun
from fedcore.server.comm import LocalComm
from fedcore.telemetry.events import LMStepEvent, LMWarningEvent
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare_text
from launcher.lm_job import LanguageModel
from launcher.rundir import RunDir
from launcher.world import Place, World
from tests.kept import Kept


class LMKept(Kept):
    """A sink that keeps a language-model run's events."""

    @property
    def lines(self) -> list[LMStepEvent]:
        """The lines about steps."""
        return [e for e in self.events if isinstance(e, LMStepEvent)]

    @property
    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        return {e.step: e.loss for e in self.lines}

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


def built(config: RunConfig, folder: Path) -> tuple[LMRun, LMKept]:
    """The run on one rank with a run directory in `folder`, and what it tells."""
    run, kept, kind = RunDir(folder / "run"), LMKept(), LanguageModel(config)
    run.path.mkdir(parents=True, exist_ok=True)
    kind.open(prepare_text.ensure(config))
    place = Place(rank=0, size=1, local_rank=0, local_size=1, address="", port=0)
    here = World(place, torch.device("cpu"), LocalComm())
    return kind.build(here, Telemetry([kept]), run, {}), kept
