"""Are models that are added up as lanes finish averaged as they would be afterwards?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedcore.clients.group import ClientGroup
from fedcore.clients.layout import Tensors
from fedcore.clients.order import Upload
from fedcore.clients.readings import READINGS, excess
from fedcore.server.average import EXPLOSION, ModelFold, average_models
from fedcore.server.comm import LocalComm
from tests.toy import ToyData, toy_group, toy_order

SIZES = [20, 9, 13, 1]
EVERYONE = range(len(SIZES))
SHARES = {k: n / sum(SIZES) for k, n in enumerate(SIZES)}


def round_of(
    group: ClientGroup, name: str, round: int, weights: Tensors | None
) -> tuple[ModelFold, Upload]:
    """One round with a fold."""
    order = toy_order(name, round, EVERYONE, weights)
    start = group.start_of(order)
    assert start is not None
    group.fold = fold = ModelFold(start, SHARES)
    return fold, group.train(order)


def rounding(key: str) -> float:
    """What four clients may be off by: each 2^-52 of 64 times the largest parameter, here 4, or of
    2^16 for a batch statistic."""
    return len(SIZES) * 2.0**-52 * (2.0**16 if "running" in key else 64 * 4)


def made(name: str, clients: Sequence[int], keep: bool, width: int = 2) -> ClientGroup:
    return toy_group(name, clients, ToyData(SIZES), width=width, keep_models=keep, rounds=3)


@pytest.mark.parametrize("name", ["fedavg", "v7_fedavg", "scaffold"])
def test_a_fold_is_the_mean_of_the_models(name: str) -> None:
    group, weights = made(name, EVERYONE, True), None
    for round in range(3):
        fold, _ = round_of(group, name, round, weights)
        stacked = group.state.model_tensors()
        models = [({k: v[i] for k, v in stacked.items()}, SHARES[i]) for i in EVERYONE]
        wanted = average_models(LocalComm(), models, models[0][0])
        weights = fold.models_mean(fold.total, 1.0)
        for key, values in wanted.items():
            torch.testing.assert_close(weights[key], values, rtol=0, atol=rounding(key))


@pytest.mark.parametrize("name", ["fedavg", "v7_fedavg"])
def test_the_sum_does_not_depend_on_who_adds_what(name: str) -> None:
    """Lanes of one: the integers of two ranks together are those of one, bit for bit."""
    whole, _ = round_of(made(name, EVERYONE, True, 1), name, 0, None)
    parts = [round_of(made(name, of, True, 1), name, 0, None)[0] for of in ([3, 1], [2, 0])]
    assert torch.equal(whole.total, parts[0].total + parts[1].total)


@pytest.mark.parametrize("name", ["fedavg", "v7_fedavg", "fedprox", "scaffold", "aurora_fedavg"])
def test_models_that_are_not_kept_give_the_same_rounds(name: str) -> None:
    uploads: list[list[Tensor]] = []
    for keep in (True, False):
        group, weights = made(name, EVERYONE, keep), None
        for round in range(3):
            fold, upload = round_of(group, name, round, weights)
            weights = fold.models_mean(fold.total, 1.0)
        prototypes = upload.prototypes(torch.tensor(EVERYONE))
        uploads.append([prototypes, upload.label_counts, upload.readings, *weights.values()])
        assert bool(group.state.params) == keep
    for mine, theirs in zip(*uploads, strict=True):
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())


def test_clients_that_were_left_out_do_not_count() -> None:
    group = made("fedavg", [0, 1], True, 1)
    fold, _ = round_of(group, "fedavg", 0, None)
    share = SHARES[0] + SHARES[1]
    found = fold.models_mean(fold.total, share)
    stacked = group.state.model_tensors()
    models = [({k: v[i] for k, v in stacked.items()}, SHARES[i] / share) for i in (0, 1)]
    for key, values in average_models(LocalComm(), models, models[0][0]).items():
        torch.testing.assert_close(found[key], values, rtol=0, atol=rounding(key))


def test_a_model_that_outgrows_the_scale_is_reported_as_not_finite() -> None:
    """Its integers would run over; a thousandfold within a round is no training any more."""
    group = toy_group("fedavg", [0], ToyData([20]), lr=1e9, momentum=0.0)
    fold, upload = round_of(group, "fedavg", 0, None)
    assert group.state.weights.abs().max() > fold.limits[0]
    assert float(fold.limits[0]) == pytest.approx(EXPLOSION * 4, rel=0.9)
    assert upload.readings[0, READINGS.index("finite")] == 0


def test_a_batch_statistic_that_outgrows_its_scale_is_too() -> None:
    """Of a variance of 1e10 the integers would run over, and the mean have no meaning."""
    group = made("fedavg", EVERYONE, True, 1)
    start = group.start_of(toy_order("fedavg", 0, EVERYONE))
    assert start is not None
    part, limits = group.store.take(torch.arange(len(SIZES))), ModelFold(start, SHARES).limits
    assert excess(part, limits).max() < 1
    name = next(name for name in part.buffers if "running_var" in name)
    part.buffers[name][2, 0] = 1e10
    assert (excess(part, limits) > 1).tolist() == [False, False, True, False]
    assert (excess(part) <= 1).all(), "but without a sum it is only large"
    part.buffers[name][1, 0] = torch.nan
    assert excess(part).isnan().tolist() == [False, True, False, False]


def test_large_batch_statistics_do_not_blur_the_weights() -> None:
    group = made("fedavg", EVERYONE, True)
    start = group.start_of(toy_order("fedavg", 0, EVERYONE))
    assert start is not None
    for name, value in start.buffers.items():
        if "running_var" in name:
            value.fill_(1e6)
    fold = ModelFold(start, SHARES)
    part = group.store.take(torch.arange(len(SIZES)))
    part.take_model(start)
    fold.add(EVERYONE, part)
    found = fold.models_mean(fold.total, 1.0)
    for name, value in start.params.items():
        torch.testing.assert_close(found[name], value[0], rtol=0, atol=rounding(name))
