"""A small federated language model in memory: real code everywhere but the text, on any ranks.

Ranks are threads of this process that exchange tensors through `ThreadComm`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedcore.checkpoint_writer import Checkpoints
from fedcore.config import RunConfig
from fedcore.lm.engine import PlainEngine, Trained
from fedcore.lm.federated import LMFederation
from fedcore.lm.ledger import Ledger
from fedcore.lm.model import TransformerLM
from fedcore.lm.monitors import Monitor
from fedcore.lm.optim import build_optimizer
from fedcore.lm.rates import GroupRates
from fedcore.lm.scale import scaled
from fedcore.lm.schedules import rates
from fedcore.lm.train import LMRun
from fedcore.lm.turns import Turns, dealt
from fedcore.seeds import generator
from fedcore.server.comm import Comm, LocalComm
from fedcore.server.pause import Pauses
from fedcore.telemetry.telemetry import Telemetry
from tests.kept import Kept

T = TypeVar("T")
VOCABULARY, CONTEXT = 11, 6
MODEL = {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "context": CONTEXT}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}


class ThreadComm(LocalComm):
    """One rank of `size` threads."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, table: list[Any]) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self._meeting, self._table = meeting, table

    def _all(self, value: Any) -> list[Any]:
        self._table[self.rank] = value
        self._meeting.wait(20)
        found = list(self._table)
        self._meeting.wait(20)
        return found

    def broadcast(self, values: Tensor) -> Tensor:
        return self._all(values.clone())[0].clone()

    def gather(self, rows: Tensor) -> Tensor:
        return torch.cat(self._all(rows.clone()))

    def sum(self, values: Tensor) -> Tensor:
        return torch.stack(self._all(values.clone())).sum(0)

    def max(self, values: Tensor) -> Tensor:
        return torch.stack(self._all(values.clone())).amax(0)

    def gather_json(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self._all(json.dumps(value))]

    def barrier(self) -> None:
        self._all(None)


def on_ranks(size: int, work: Callable[[Comm], T]) -> list[T]:
    """What `work` returns on each of `size` ranks."""
    meeting, table = threading.Barrier(size), [None] * size
    with ThreadPoolExecutor(size) as pool:
        comms = [ThreadComm(rank, size, meeting, table) for rank in range(size)]
        return list(pool.map(work, comms))


class ToyText:
    """Random tokens of some clients, whose batches stand one below the other. A `TokenData`."""

    vocab_size, tokens, bytes_per_token = VOCABULARY, 1000, 1.0

    def __init__(self, *clients: int) -> None:
        self.clients = clients
        self.asked: list[int] = []

    def batch(self, step: int, size: int, rows: range) -> Tensor:
        self.asked.append(step)
        share = size // len(self.clients)
        return torch.cat([self._of(k, step, share) for k in self.clients])[rows.start : rows.stop]

    def _of(self, client: int, step: int, size: int) -> Tensor:
        draws = generator(3, client, step, "toy text")
        return torch.randint(VOCABULARY, (size, CONTEXT + 1), generator=draws)

    def held_out(self) -> Tensor:
        return self._of(-1, 0, 8)


class Recorder(Kept):
    """A sink that gives the events by kind."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of a kind, without what depends on the clock."""
        clock = ("time", "tokens_per_second")
        found = [e.record() for e in self.events if e.kind == kind]
        return [{k: v for k, v in record.items() if k not in clock} for record in found]


def config_of(precision: str = "fp64", evaluate: int = 100, **lm: Any) -> RunConfig:
    """Defaults of the toy, and what a test has to say on them."""
    base = {"model": MODEL, "batch_size": 2, "log_every": 1, "max_norm": 1e6}
    every = {"checkpoint": {"every": 100}, "evaluate": {"every": evaluate}}
    return RunConfig.of({"precision": precision, "lm": base | lm} | every)


def build(
    config: RunConfig,
    folder: Path,
    comm: Comm | None = None,
    clients: int = 5,
    engine: type[PlainEngine] = PlainEngine,
) -> tuple[Any, Recorder]:
    """The federation on this rank, or the ordinary run on all clients' text; and its events."""
    lm, comm = config.lm, comm or LocalComm()
    assert lm is not None
    model = TransformerLM(lm.model, VOCABULARY, config.seed).to(DTYPES[config.precision])
    optimiser = build_optimizer(model, scaled(lm))
    group_rates = GroupRates(lm, rates(lm), model, optimiser)
    own = engine(Trained(config, model, optimiser, comm.device))
    monitor = Monitor(lm, group_rates.rates, group_rates.monitored(), predicts=False)
    checkpoints, sink = Checkpoints(folder, comm, 2, "step"), Recorder()
    text = ToyText(*range(clients))
    ledger = Ledger(config, comm, text, checkpoints, Telemetry([sink]), Pauses(), {})
    if lm.federated is None:
        return LMRun(own, text, group_rates, monitor, ledger), sink
    everyone = range(clients)
    data = {k: ToyText(k) for k in dealt(everyone, comm.rank, comm.size)}
    turns = Turns(lm, own, group_rates, data)
    return LMFederation(turns, everyone, monitor, ledger), sink
