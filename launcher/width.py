"""How many clients to train at once, where `clients.width` is auto: measured, and remembered.

A lane of K clients is K times the work in the same number of kernels: it wins where a step of one
leaves the device idle, and loses where kernels for one are better tuned. The answer depends on
the model, the batch, the device and the versions, so it is asked for once for all of these.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from data_shards.manifest import Manifest
from fedcore.batch import Batch
from fedcore.checkpoint import write_atomically
from fedcore.clients.group import ClientGroup
from fedcore.clients.order import Order
from fedcore.clients.room import is_out_of_memory
from fedcore.clients.step import Targets
from fedcore.config import RunConfig
from fedcore.files import read_json
from fedcore.server.comm import together
from launcher.world import World

WIDTHS = (1, 2, 4, 8, 16, 32)
MARGIN = 1.1  # how much faster a wider lane must be: noise alone must not choose it
SECONDS = 0.3  # of training for each width

Make = Callable[[list[list[int]], Any], ClientGroup]
"""(lanes, data) -> a group of the run's model and algorithm on this rank's device."""


class Choice(NamedTuple):
    """A width, and how it was found."""

    width: int
    rates: dict[int, float]  # steps of one client a second, by width; empty if it was remembered


class Repeated:
    """`TrainData` whose clients see one batch of noise again and again."""

    def __init__(self, batch: Batch, classes: int, steps: int) -> None:
        self.batch, self.classes, self.number = batch, classes, steps

    def samples(self, client: int) -> int:
        return self.number * self.batch.labels.shape[1]

    trained = samples

    def label_counts(self, client: int) -> Tensor:
        return torch.full((self.classes,), 1 + self.samples(client) // self.classes)

    def steps(self, client: int) -> int:
        return self.number

    def epoch(
        self, clients: Sequence[int], round: int, epoch: int, first: int = 0
    ) -> Iterator[Batch]:
        lane = Batch(*(repeated(x, len(clients)) for x in self.batch))
        return iter([lane] * (self.number - first))

    def ahead(self, clients: Sequence[int], round: int, epoch: int) -> None:
        return None

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        return next(self.epoch(clients, round, epoch))


def repeated(values: Tensor, clients: int) -> Tensor:
    """One client's values so many times, lying in memory as they do."""
    strides = values.stride()
    order = sorted(range(values.dim()), key=lambda d: (-strides[d], d))
    dense = values.permute(order).expand(clients, *(values.shape[d] for d in order[1:]))
    back = torch.argsort(torch.tensor(order)).tolist()
    return dense.contiguous().permute(back)


def noise(config: RunConfig, manifest: Manifest, world: World, dtype: torch.dtype) -> Batch:
    """A batch [1, V, B, ...] of the run's shape."""
    draws = torch.Generator().manual_seed(0)
    largest = max((part.samples for part in manifest.clients), default=1)
    size = max(1, min(config.clients.batch_size, largest))
    views = (1, config.clients.views, size, *manifest.shape)
    images = torch.randn(views, generator=draws).to(world.device, dtype)
    if config.model.channels_last:
        images = images.movedim(3, 5).contiguous().movedim(5, 3)
    labels = torch.randint(manifest.classes, (1, size), generator=draws).to(world.device)
    return Batch(images, labels, torch.ones(1, size, dtype=dtype, device=world.device))


def order_of(group: ClientGroup, anchors: Tensor) -> Order:
    """The first round's, for all of the group's clients."""
    like = group.model.prototypes
    placed = anchors.to(like)
    weights = {k: v.detach() for k, v in group.model.named_parameters()}
    control = like.new_zeros(group.layout.size if group.algorithm.control_variates else 0)
    targets = Targets(placed, torch.zeros_like(placed), weights, control)
    return Order(0, 0.0, 1.0, 1.0, targets, None, frozenset(group.clients))


def rate(make: Make, batch: Batch, anchors: Tensor, width: int) -> float:
    """Steps of one client a second, in lanes of `width`."""
    data = Repeated(batch, len(anchors), 8)
    group = make([list(range(width))], data)
    group.epochs = 1  # more of them only take longer
    order = order_of(group, anchors)

    def seconds() -> float:
        _wait(batch.images.device)
        began = time.perf_counter()
        group.train(order)
        _wait(batch.images.device)
        return time.perf_counter() - began

    data.number = max(8, min(200, int(8 * SECONDS / max(seconds(), 1e-6))))  # the first warms up
    steps = data.number * width
    return steps / min(seconds() for _ in range(3))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(make: Make, batch: Batch, anchors: Tensor, most: int) -> Choice:
    """The narrowest width that no other beats by the margin, as far as lanes fit into memory."""
    rates: dict[int, float] = {}
    for width in (w for w in WIDTHS if w <= max(most, 1)):
        try:
            rates[width] = rate(make, batch, anchors, width)
        except (RuntimeError, MemoryError) as error:
            if width == 1 or not is_out_of_memory(error):
                raise
            break
        if rates[width] < 0.9 * max(rates.values()):
            break
    best = max(rates.values())
    return Choice(next(w for w, r in rates.items() if r * MARGIN > best), rates)


def question(config: RunConfig, manifest: Manifest, world: World, most: int) -> dict[str, Any]:
    """All that the answer depends on."""
    clients = config.clients
    cuda = world.device.type == "cuda"
    return {
        "model": [config.model.model_dump(), list(manifest.shape), manifest.classes],
        "algorithm": config.algorithm.model_dump(mode="json"),
        "batch": [clients.batch_size, clients.views, max(p.samples for p in manifest.clients)],
        "step": [clients.step, config.precision, config.tf32, config.threads],
        "device": torch.cuda.get_device_name(world.device) if cuda else f"cpu x {os.cpu_count()}",
        "ranks": world.place.local_size,
        "most": min(most, WIDTHS[-1]),
        "torch": torch.__version__,
    }


def memory() -> Path:
    """The folder in which measured widths are remembered."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # as its specification wants
        cache = Path.home() / ".cache"
    return cache / "fedcore" / "widths"


def choose(
    config: RunConfig,
    manifest: Manifest,
    world: World,
    make: Make,
    anchors: Tensor,
    dtype: torch.dtype,
) -> Choice:
    """The width for this run, the same on every rank: rank 0's answer. Collective.

    All ranks measure at the same time, as they will train at the same time.
    """
    working = sum(part.samples > 0 for part in manifest.clients)
    most = -(-min(working, config.clients.per_round or working) // world.comm.size)
    asked = question(config, manifest, world, most)
    name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    file = memory() / f"{name}.json"
    known = world.comm.gather_json(_remembered(file))[0]
    if known is not None:
        return Choice(known, {})
    with together(world.comm):
        mine = measured(make, noise(config, manifest, world, dtype), anchors, most)
    width, rates = world.comm.gather_json([mine.width, sorted(mine.rates.items())])[0]
    if world.comm.rank == 0:
        _remember(file, asked, width, dict(rates))
    return Choice(width, {int(k): v for k, v in rates})


def _remembered(file: Path) -> int | None:
    try:
        width = read_json(file)["width"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return width if type(width) is int and width in WIDTHS else None


def _remember(file: Path, asked: dict[str, Any], width: int, rates: dict[int, float]) -> None:
    """A home that cannot be written costs a measurement each time, and nothing else."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"width": width, "rates": rates, "of": asked}, indent=1))
    except OSError:
        return
