"""Does a client's training depend on how many train at once, on which rank, in what order?"""

from __future__ import annotations

import pytest
import torch

from fedcore.algorithms import ALGORITHMS, resolve
from fedcore.clients.assign import kept_together
from fedcore.clients.state import ClientState
from fedcore.config_algorithm import AlgorithmConfig
from tests.toy import ToyData, toy_group, toy_order

SIZES = [20, 9, 13, 1]  # 5, 3, 4 and 1 batches; the last has a single sample


def run(name: str, width: int, clients: list[int], sizes: list[int] = SIZES) -> ClientState:
    group = toy_group(name, clients, ToyData(sizes), width=width)
    for round in range(2):
        group.train(toy_order(name, round, clients))
    return group.state


def differences(one: ClientState, other: ClientState) -> float:
    pairs = zip(one.model_tensors().values(), other.model_tensors().values(), strict=True)
    worst = max((a - b).abs().max().item() for a, b in pairs)
    return max(worst, (one.log_var - other.log_var).nan_to_num().abs().max().item())


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_lanes_agree(name: str) -> None:
    resolve(
        AlgorithmConfig.model_validate({"name": name})
    )  # what no run would take is no algorithm
    alone = run(name, 1, [0, 1, 2, 3])
    for width in (3, 4):
        together = run(name, width, [0, 1, 2, 3])
        assert torch.equal(alone.steps, together.steps)
        assert differences(alone, together) < 1e-12


def test_a_client_is_the_same_in_any_company() -> None:
    whole, part = run("v14", 1, [0, 1, 2, 3]), run("v14", 1, [2])
    assert differences(whole.take(torch.tensor([2])), part) == 0.0


def test_idle_clients_stay_as_they_are() -> None:
    group = toy_group("v14", [0, 1, 2], ToyData(SIZES), width=3)
    before = group.state.take(torch.arange(3))
    group.train(toy_order("v14", 0, [0, 2]))
    assert differences(before.take(torch.tensor([1])), group.state.take(torch.tensor([1]))) == 0.0
    assert differences(before, group.state) > 0
    assert group.state.steps.tolist() == [10, 0, 8]


def test_filling_rows_count_in_no_loss() -> None:
    """The same batch with other filling: same losses, as long as nothing normalises over rows."""
    from fedcore.clients.step import Lane, look

    group = toy_group("v14", [3], ToyData([1] * 4))
    order = toy_order("v14", 0, [3])
    batch = next(iter(group.data.epoch([3], 0, 0)))
    group.model.eval()  # running statistics: rows do not meet
    filled = batch.images.clone()
    filled[:, :, 1:] = 100.0
    params = {k: v[0] for k, v in group.state.params.items()}
    buffers = {k: v[0] for k, v in group.state.buffers.items()}
    lane = Lane(group.label_counts[0], order.targets.anchors)
    for term in group.algorithm.terms:
        values = []
        for images in (batch.images, filled):
            one = batch._replace(images=images[0], labels=batch.labels[0], weight=batch.weight[0])
            view = look(group.setup, params, buffers, one, lane, order.targets)
            values.append(term(view))
        assert torch.isfinite(values[0])
        torch.testing.assert_close(values[0], values[1])


def test_momentum_is_zero_at_each_round_unless_carried() -> None:
    kept, dropped = (
        toy_group("v14", [0], ToyData([20]), carry_momentum=carry) for carry in (True, False)
    )
    for group in (kept, dropped):
        group.train(toy_order("v14", 0, [0]))
    assert differences(kept.state, dropped.state) == 0.0
    assert kept.state.memory
    assert not dropped.state.memory
    for group in (kept, dropped):
        group.train(toy_order("v14", 1, [0]))
    assert differences(kept.state, dropped.state) > 1e-6


def test_training_follows_torch_sgd() -> None:
    """local_step against torch's own optimiser, clip and autograd on one client, for an epoch."""
    from fedcore.clients.step import Lane, look
    from fedcore.schedule import progress

    group, order = toy_group("v14", [0], ToyData([20])), toy_order("v14", 0, [0])
    params = {k: v[0].clone().requires_grad_() for k, v in group.state.params.items()}
    buffers = {k: v[0].clone() for k, v in group.state.buffers.items()}
    lane = Lane(group.label_counts[0], order.targets.anchors)
    log_var = group.state.log_var[0].clone().requires_grad_()
    optimiser = torch.optim.SGD(
        [{"params": list(params.values()), "lr": 0.05}, {"params": [log_var], "lr": 0.005}],
        momentum=0.9,
    )
    for epoch in range(2):
        at = progress(0, 2, epoch, 2, 1.0, like=log_var)
        for batch in group.data.epoch([0], 0, epoch):
            one = batch._replace(
                images=batch.images[0], labels=batch.labels[0], weight=batch.weight[0]
            )
            view = look(group.setup, params, buffers, one, lane, order.targets)
            base = sum(term(view) for term in group.algorithm.base)
            align = group.algorithm.align[0](view)
            lam = (log_var[0] - log_var[1]).exp().detach()
            s = group.algorithm.rule.factor(at)
            sigma = (
                0.5 * (-log_var[0]).exp() * base.detach()
                + 0.5 * (-log_var[1]).exp() * align.detach()
            )
            sigma = sigma + 0.5 * (log_var[0] + s * log_var[1])
            optimiser.zero_grad()
            (base + lam * align + sigma).backward()
            torch.nn.utils.clip_grad_norm_([*params.values(), log_var], 1.0)
            optimiser.step()
    group.train(order)
    for name, value in params.items():
        torch.testing.assert_close(group.state.params[name][0], value.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(group.state.log_var[0], log_var.detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [1, 4])
def test_every_sample_is_counted_once_an_epoch(width: int) -> None:
    counted: list[int] = []
    group = toy_group("v14", [0, 1, 2, 3], ToyData(SIZES), width=width)
    group.train(toy_order("v14", 0, [0, 1, 3]), counted.append)
    assert sum(counted) == 2 * (20 + 9 + 1)


def test_participants_fill_lanes_whichever_they_are() -> None:
    """Of 12 clients 4 take part: those of a group that one rank owns share lanes of two."""
    data = ToyData([8] * 12)
    groups = [
        toy_group("v14", of, data, width=kept_together(2, 12, 4), lane=2)
        for of in (range(12), range(6), range(6, 12))
    ]
    sizes: list[list[int]] = []
    for group in groups:
        sizes.append([])
        step = group.launch.adopt
        group.launch.adopt = lambda part, s=sizes[-1], step=step: (s.append(len(part)), step(part))[
            1
        ]
        group.train(toy_order("v14", 0, [1, 3, 4, 9]))
    assert sizes == [[2, 1, 1], [2, 1], [1]]
    whole = groups[0].state
    for group, rows in ((groups[1], range(6)), (groups[2], range(6, 12))):
        assert differences(whole.take(torch.tensor(rows)), group.state) == 0.0
