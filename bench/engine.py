"""All that these benches know of the inside of the engine: whole runs, lanes of clients, averages.

What they measure, they reach through a configuration; this is the one place to change when a part
of the engine is called another way.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bench.models  # noqa: F401  (its network gets a name)
from bench.lm_common import settle
from data_shards.manifest import Manifest
from fedcore.batch import Batch
from fedcore.checkpoint_writer import Checkpoints
from fedcore.clients.group import ClientGroup
from fedcore.clients.order import Order
from fedcore.clients.state import ClientState
from fedcore.clients.step import Targets
from fedcore.clients.store import on_device
from fedcore.config import RunConfig
from fedcore.federation import Federation
from fedcore.server.average import ModelFold
from fedcore.server.comm import Comm
from fedcore.telemetry.telemetry import Telemetry
from launcher import build, prepare
from launcher.reporting import federated_telemetry
from launcher.rundir import RunDir
from launcher.world import World
from launcher.world import join as join_world

NEVER = 1_000_000  # rounds


def join(config: RunConfig) -> World:
    """The world of this process, with its device set up as a run's; it ends when it is told to."""
    here = join_world(config, lambda error: os._exit(5))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return here


def stored(config: RunConfig, here: World) -> None:
    """Shards of the configuration, made by rank 0 unless they are there. Collective."""
    if here.comm.rank == 0:
        prepare.make(config)
    here.comm.barrier()


def federation(
    config: RunConfig, here: World, folder: Path, telemetry: Telemetry | None = None
) -> Federation:
    """A run that has not begun; without metrics and lines unless given. Collective."""
    checkpoints = Checkpoints(folder, here.comm, config.checkpoint.keep)
    store = prepare.store_dir(config)
    config = settled(config, here)
    return build.build(config, store, here, telemetry or Telemetry(), checkpoints, {})


def settled(config: RunConfig, here: World) -> RunConfig:
    """With a number for `clients.width=auto`, as the command line finds it. Collective."""
    if config.clients.width != "auto":
        return config
    manifest = Manifest.load(prepare.store_dir(config))
    choice = build.settle_width(config, manifest, here)
    clients = config.clients.model_copy(update={"width": choice.width})
    return config.model_copy(update={"clients": clients})


def watched(config: RunConfig, here: World, folder: Path) -> tuple[Federation, list[float]]:
    """The same with all that a run from the command line has: endpoint, lines, console. Beside it
    a list that gets the seconds of each call of telemetry and checkpoints that training waits for.
    """
    run = RunDir(folder)
    run.path.mkdir(parents=True, exist_ok=True)
    telemetry, spent = federated_telemetry(config, run, own=1, world=here), []
    made = federation(config, here, run.checkpoints, telemetry)
    for part, names in {
        telemetry: ("write", "trained", "phase", "traffic"),
        made.saving: ("start", "settle"),
    }.items():
        for name in names:
            setattr(part, name, _timed(getattr(part, name), spent))
    return made, spent


def _timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*words: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*words, **named)
        finally:
            spent.append(time.perf_counter() - began)

    return timed


def one_round(run: Federation, number: int) -> None:
    """Round `number`: order, training, collection; no checkpoint."""
    run._round(number)
    settle(run.group.model.prototypes.device)


def saved_round(run: Federation, number: int) -> None:
    """A round, and the checkpoint that a run from the command line starts after it."""
    one_round(run, number)
    run.saving.start(run._contents, number + 1)
    run.saving.settle(0)


def saved(run: Federation) -> None:
    """Once the last checkpoint is complete."""
    run.saving.settle()


def width(run: Federation) -> int:
    """Clients in the widest lane of this rank."""
    return max((len(lane) for lane in run.group.lanes), default=0)


class InMemory:
    """`TrainData` of equal clients whose normalised batches lie ready on the device.

    All clients share the tensors of a few batches, stacked ahead for each lane that asks for them.
    """

    def __init__(
        self,
        images: Tensor,  # [batches, V, B, channels, height, width]
        labels: Tensor,  # [batches, B]
        steps: int,  # of an epoch
        *,
        classes: int = 10,
        channels_last: bool = True,
    ) -> None:
        self.images, self.labels, self.count, self.classes = images, labels, steps, classes
        self.channels_last = channels_last
        self.batch_size = labels.shape[1]
        self._made: dict[tuple[int, int], Batch] = {}

    def samples(self, client: int) -> int:
        """Of any client."""
        return self.count * self.batch_size

    trained = samples

    def label_counts(self, client: int) -> Tensor:
        """Equal numbers of each class."""
        return torch.full((self.classes,), max(1, self.samples(client) // self.classes))

    def steps(self, client: int) -> int:
        """Batches of an epoch."""
        return self.count

    def epoch(
        self, clients: Sequence[int], round: int, epoch: int, first: int = 0
    ) -> Iterator[Batch]:
        """The same batches again and again."""
        for step in range(first, self.count):
            yield self._batch(len(clients), step % len(self.labels))

    def ahead(self, clients: Sequence[int], round: int, epoch: int) -> None:
        """Nothing takes long."""

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        """Any of them."""
        return self._batch(len(clients), step % len(self.labels))

    def _batch(self, clients: int, number: int) -> Batch:
        if (clients, number) not in self._made:
            images = self.images[number].expand(clients, *self.images.shape[1:])
            if self.channels_last:
                images = images.movedim(-3, -1).contiguous().movedim(-1, -3)
            else:
                images = images.contiguous()
            labels = self.labels[number].expand(clients, -1).contiguous()
            made = Batch(images, labels, images.new_ones(labels.shape))
            self._made[clients, number] = made
        return self._made[clients, number]


def trainer(
    config: RunConfig, data: InMemory, clients: int, width: int, device: torch.device
) -> tuple[ClientGroup, Callable[[int], None]]:
    """Clients in lanes of `width` over that data, and what trains them for a round."""
    shape: Any = tuple(data.images.shape[3:])
    algorithm, model, anchors = build.build_objects(config, shape, data.classes)
    model = model.to(device, build.DTYPES[config.precision])
    ids = list(range(clients))
    lanes = [ids[i : i + width] for i in range(0, clients, width)]
    group = build._group(config, lanes, data, algorithm, model, on_device)
    like = model.prototypes
    weights = {name: value.detach() for name, value in model.named_parameters()}
    targets: Any = (anchors.to(like), torch.zeros_like(like).detach(), weights, like.new_zeros(0))

    def train(round: int) -> None:
        group.train(Order(round, 0.0, 1.0, 1.0, Targets(*targets), None, frozenset(ids)))
        settle(device)

    return group, train


def averager(comm: Comm, clients: int, size: int) -> Callable[[], Tensor]:
    """What a round does with the models [size] of so many clients of each rank: each is added up
    exactly once it is through, then one integer sum over all ranks, turned back. Collective."""
    one = ClientState.start({"flat": torch.randn(size)}, {}, torch.zeros(1, 2))
    part, ids = one.take(torch.zeros(clients, dtype=torch.int64)), list(range(clients))

    def average() -> Tensor:
        fold = ModelFold(one, dict.fromkeys(ids, 1 / (clients * comm.size)))
        fold.add(ids, part)
        return fold.models_mean(comm.sum(fold.total), 1.0)["flat"]

    return average
