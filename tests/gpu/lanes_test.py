"""Lanes on a CUDA device: captured, fetched from elsewhere, and without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fedcore.batch import Batch
from fedcore.clients.group import ClientGroup
from fedcore.clients.state import ClientState
from fedcore.clients.store import Away, on_device
from fedcore.config import RunConfig
from launcher import width
from launcher.build import DTYPES, _group, build_objects

pytestmark = pytest.mark.gpu

CLIENTS, SHAPE, CLASSES = 8, (3, 32, 32), 10


def made(
    name: str, lanes: int, step: str, store: Any = on_device, precision: str = "fp32"
) -> tuple[ClientGroup, Callable[[int], None]]:
    """A group, and what trains a round of it."""
    config = RunConfig.of(
        {
            "tf32": False,
            "precision": precision,
            "clients": {"step": step, "width": lanes, "local_epochs": 1, "batch_size": 16},
            "algorithm": {"name": name},
        }
    )
    algorithm, model, anchors = build_objects(config, SHAPE, CLASSES)
    draws, device = torch.Generator().manual_seed(1), torch.device("cuda")
    dtype = DTYPES[config.precision]
    images = torch.randn(1, 2, 16, *SHAPE, generator=draws).to(device, dtype)
    labels = torch.randint(CLASSES, (1, 16), generator=draws).to(device)
    batch = Batch(images, labels, torch.ones(1, 16, dtype=dtype, device=device))
    forms = [list(range(i, i + lanes)) for i in range(0, CLIENTS, lanes)]
    data = width.Repeated(batch, CLASSES, 12)
    group = _group(config, forms, data, algorithm, model.to(device, dtype), store)
    order = width.order_of(group, anchors)
    return group, lambda round: void(group.train(order._replace(round=round)))


def void(value: object) -> None:
    return None


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def agree(one: ClientState, other: ClientState, tolerance: float) -> None:
    for key, values in one.tensors().items():
        torch.testing.assert_close(other.tensors()[key], values, rtol=0, atol=tolerance, msg=key)


@pytest.mark.parametrize("name", ["v14", "fedavg", "scaffold", "gradnorm"])
def test_captured_steps_are_the_eager_steps(name: str) -> None:
    groups = []
    for step in ("eager", "graph"):
        group, train = made(name, 4, step)
        for round in range(2):
            train(round)
        assert not group.room.notes, group.room.notes
        groups.append(group)
    agree(groups[0].state, groups[1].state, 1e-6)


@pytest.mark.parametrize("step", ["eager", "graph"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_round_does_not_wait_for_the_device(step: str, precision: str) -> None:
    group, train = made("v14", 4, step, precision=precision)
    train(0)  # chooses kernels, captures
    config = group.lanes
    with no_waiting():
        train(1)
    assert group.lanes is config


def test_clients_in_host_memory_are_the_same() -> None:
    def away(state: ClientState, device: torch.device) -> Away:
        return Away(state.each(lambda x: x.cpu().clone()), device)

    here, train_here = made("v14", 2, "graph")
    there, train_there = made("v14", 2, "graph", away)
    for round in range(3):
        train_here(round)
        train_there(round)
    on_cpu = here.state.each(lambda x: x.cpu())
    agree(on_cpu, there.state, 0.0)


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_lanes_agree_on_the_device(lanes: int) -> None:
    one, train_one = made("v14", 1, "eager", precision="fp64")
    other, train_other = made("v14", lanes, "eager", precision="fp64")
    train_one(0)
    train_other(0)
    agree(one.state, other.state, 1e-9)
