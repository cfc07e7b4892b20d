"""A small federation in memory: real code everywhere but the disk, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedcore.algorithms import ALGORITHMS
from fedcore.batch import Batch
from fedcore.clients.assign import form_lanes
from fedcore.clients.group import ClientGroup
from fedcore.clients.layout import Layout
from fedcore.clients.optim import Hyper
from fedcore.clients.order import Order
from fedcore.clients.state import ClientState
from fedcore.clients.step import Targets
from fedcore.clients.store import Store, on_device
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.anchors import ANCHORS
from fedcore.schedule import Constant
from fedcore.seeds import generator

CLASSES, WIDTH, SHAPE = 4, 6, (1, 6, 6)

HYPER = Hyper(
    lr=0.05,
    lr_schedule=Constant(),
    lr_log_var=0.005,
    momentum=0.9,
    weight_decay=0.0,
    max_norm=1.0,
    carry_momentum=False,
)


class ToyData:
    """Class-dependent noise images; client k holds sizes[k] samples. Follows `TrainData`."""

    def __init__(self, sizes: Sequence[int], batch: int = 4, views: int = 2) -> None:
        self.sizes, self.batch, self.views = list(sizes), batch, views
        centres = torch.randn(
            CLASSES, *SHAPE, generator=generator(7, -1, 0, "centres"), dtype=torch.float64
        )
        self.labels = [
            torch.randint(CLASSES, (n,), generator=generator(7, k, 0, "labels"))
            for k, n in enumerate(sizes)
        ]
        self.images = [
            centres[y]
            + 0.5
            * torch.randn(len(y), *SHAPE, generator=generator(7, k, 0, "x"), dtype=torch.float64)
            for k, y in enumerate(self.labels)
        ]

    def samples(self, client: int) -> int:
        return self.sizes[client]

    def trained(self, client: int) -> int:
        return self.sizes[client]

    def label_counts(self, client: int) -> Tensor:
        return torch.bincount(self.labels[client], minlength=CLASSES)

    def steps(self, client: int) -> int:
        return -(-self.sizes[client] // self.batch)

    def epoch(
        self, clients: Sequence[int], round: int, epoch: int, first: int = 0
    ) -> Iterator[Batch]:
        steps = [self.steps(k) for k in clients]
        assert steps == sorted(steps, reverse=True)
        for step in range(first, max(steps)):
            parts = [self._one(k, round, epoch, step) for k in clients if step < self.steps(k)]
            yield Batch(*(torch.stack(column) for column in zip(*parts, strict=True)))

    def ahead(self, clients: Sequence[int], round: int, epoch: int) -> None:
        return None

    def held_out(self, clients: Sequence[int], round: int, epoch: int, step: int) -> Batch:
        parts = [self._one(k, round, epoch + 100, step % self.steps(k)) for k in clients]
        return Batch(*(torch.stack(column) for column in zip(*parts, strict=True)))

    def _one(self, client: int, round: int, epoch: int, step: int) -> Batch:
        n = self.sizes[client]
        order = torch.randperm(n, generator=generator(0, client, round, "shuffle", epoch))
        at = torch.arange(step * self.batch, (step + 1) * self.batch)
        index = order[at % n]
        noise = torch.randn(
            self.views,
            self.batch,
            *SHAPE,
            generator=generator(0, client, round, f"view{epoch}", step),
            dtype=torch.float64,
        )
        return Batch(
            self.images[client][index] + 0.1 * noise,
            self.labels[client][index],
            (at < n).to(torch.float64),
        )


def toy_model() -> ProtoHead:
    """Convolution, batch norm, prototypes; float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        encoder = nn.Sequential(
            nn.Conv2d(1, 5, 3, bias=False),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(20, WIDTH),
        )
        return ProtoHead(encoder, CLASSES, WIDTH).double()


def toy_group(
    name: str,
    clients: Sequence[int],
    data: ToyData,
    *,
    width: int = 1,
    rounds: int = 2,
    store: Callable[[ClientState, torch.device], Store] = on_device,
    keep_models: bool = True,
    lane: int | None = None,
    **hyper: float,
) -> ClientGroup:
    """A client group of that algorithm."""
    sizes = [n if k in clients else 0 for k, n in enumerate(data.sizes)]
    model, algorithm = toy_model(), ALGORITHMS.get(name)
    if algorithm.classifier == "anchors":
        model.prototypes.data.copy_(toy_anchors(name))
    return ClientGroup(
        form_lanes(sizes, width),
        data,
        model,
        algorithm,
        replace(HYPER, **hyper),
        rounds=rounds,
        epochs=2,
        store=store,
        keep_models=keep_models,
        width=lane,
    )


def toy_anchors(name: str) -> Tensor:
    """The anchors of that algorithm, or zeros."""
    chosen = ALGORITHMS.get(name).anchor
    if chosen is None:
        return torch.zeros(CLASSES, WIDTH, dtype=torch.float64)
    return ANCHORS.get(chosen).points(CLASSES, WIDTH, 0)


def toy_order(
    name: str, round: int, clients: Sequence[int], weights: dict[str, Tensor] | None = None
) -> Order:
    """An order as the server would give it."""
    anchors = toy_anchors(name)
    start = {k: v.detach().clone() for k, v in toy_model().named_parameters()}
    control = torch.zeros(Layout(start).size, dtype=torch.float64)
    return Order(
        round,
        0.0,
        1.0,
        1.0,
        Targets(
            anchors,
            torch.zeros_like(anchors),
            weights or start,
            control if ALGORITHMS.get(name).control_variates else control[:0],
        ),
        weights,
        frozenset(clients),
    )
