"""Combining prototypes, exact sums, assigning clients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcore.clients.assign import balance, form_lanes
from fedcore.errors import ConfigError, Diverged, ShardError, from_json
from fedcore.server.average import average_models
from fedcore.server.combine import COMBINES, Held
from fedcore.server.comm import LocalComm
from fedcore.server.consensus import (
    Spread,
    global_prototype_std,
    model_variance,
    square_distances,
)
from fedcore.server.exact import ExactSum
from fedcore.server.participants import participants

P = torch.tensor(
    [[[1.0, 1.0], [2.0, 0.0]], [[3.0, 1.0], [9.0, 9.0]]], dtype=torch.float64
)  # N=2 C=2
COUNTS = torch.tensor([[1, 4], [3, 0]])
BEFORE = torch.full((2, 2), -7.0, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mean_of_present", [[2.0, 1.0], [2.0, 0.0]]),
        ("mean", [[2.0, 1.0], [5.5, 4.5]]),
        ("by_samples", [[2.5, 1.0], [2.0, 0.0]]),
    ],
)
def test_combine_on_paper(name: str, wanted: list[list[float]]) -> None:
    assert COMBINES.get(name)([Held(P, COUNTS)], BEFORE, BEFORE).tolist() == wanted


@pytest.mark.parametrize("name", ["mean_of_present", "by_samples"])
def test_a_class_nobody_holds_keeps_its_prototype(name: str) -> None:
    got = COMBINES.get(name)([Held(P, torch.tensor([[1, 0], [3, 0]]))], BEFORE, BEFORE)
    assert got[1].tolist() == [-7.0, -7.0]


def test_server_optimised_is_drawn_to_anchors_and_to_the_clients() -> None:
    """gamma to infinity: G = anchors. gamma = 0: each held prototype is nearest its own G."""
    draws = torch.Generator().manual_seed(2)
    protos = torch.randn(5, 4, 8, generator=draws, dtype=torch.float64)
    counts = torch.randint(0, 3, (5, 4), generator=draws)
    counts[:, 0] = 1
    anchors = torch.eye(4, 8, dtype=torch.float64)
    before = torch.zeros(4, 8, dtype=torch.float64)
    combine, clients = COMBINES.get("server_optimised"), [Held(protos, counts)]
    drawn = combine(clients, before, anchors, steps=3000, gamma=1e6)
    torch.testing.assert_close(drawn, anchors, rtol=0, atol=1e-3)
    free = combine(clients, before, anchors, steps=500, lr=0.05, gamma=0.0)
    held = counts > 0
    right = (protos @ free.T).argmax(2) == torch.arange(4)
    assert right[held].all()

    def loss(G: torch.Tensor) -> float:
        wanted = torch.arange(4).expand(5, -1)[held]
        return torch.nn.functional.cross_entropy((protos @ G.T)[held], wanted).item()

    start = COMBINES.get("mean_of_present")(clients, before, anchors)
    assert loss(free) < 0.1 * loss(start)
    assert torch.equal(combine(clients, before, anchors, steps=0), start)


@pytest.mark.parametrize("name", COMBINES.names())
def test_combining_does_not_depend_on_the_pieces(name: str) -> None:
    draws = torch.Generator().manual_seed(4)
    protos = torch.randn(7, 3, 4, generator=draws, dtype=torch.float64)
    counts = torch.randint(0, 3, (7, 3), generator=draws)
    before = torch.randn(3, 4, generator=draws, dtype=torch.float64)
    pieces = [Held(protos[a:b], counts[a:b]) for a, b in ((0, 3), (3, 4), (4, 7))]
    whole = COMBINES.get(name)([Held(protos, counts)], before, before)
    assert torch.equal(COMBINES.get(name)(iter(pieces), before, before), whole)


def spread_of(values: Tensor, held: Tensor | None = None, least: int = 1) -> float:
    found = Spread(least)
    found.add(values.double(), torch.ones(values.shape[:2]) > 0 if held is None else held)
    return found.value()


def test_spread_of_prototypes_on_paper() -> None:
    assert spread_of(P) == pytest.approx((1.0 + 0.0 + 3.5 + 4.5) / 4)
    assert spread_of(P[:1]) == 0.0
    assert Spread().value() == 0.0


def test_spread_looks_at_shared_classes_and_their_holders() -> None:
    """Class 0: directions (1, 0) and (0, 1) of the two holders, std 1/2 in both columns."""
    protos = torch.tensor([[[1.0, 0.0], [7.0, 1.0]], [[0.0, 1.0], [1.0, 9.0]], [[5.0, 5.0]] * 2])
    held = torch.tensor([[4, 1], [2, 0], [0, 0]]) > 0
    assert spread_of(protos, held, 2) == pytest.approx(0.5)
    assert spread_of(protos, torch.zeros(3, 2) > 0, 2) == 0.0


@pytest.mark.parametrize("off", [0.0, 1e8])
def test_spread_by_pieces_is_that_of_all(off: float) -> None:
    """Also where the clients differ by little of what they have: nothing cancels."""
    draws = torch.Generator().manual_seed(5)
    values = off + torch.randn(40, 3, 4, generator=draws, dtype=torch.float64)
    held, found = torch.rand(40, 3, generator=draws) < 0.6, Spread()
    held[:7, 0] = False  # nobody of the first piece
    for rows in torch.arange(40).split([7, 1, 20, 12]):
        found.add(values[rows], held[rows])
    each = [values[held[:, c], c].std(0, unbiased=False).mean() for c in range(3)]
    assert found.value() == pytest.approx(float(sum(each) / 3), rel=1e-7 if off else 1e-12)


def test_global_prototype_std_on_paper() -> None:
    G = torch.tensor([[1.0, 4.0], [3.0, 4.0]], dtype=torch.float64)
    assert global_prototype_std(G) == pytest.approx((1.0 + 0.0) / 2)


def test_model_variance_is_the_weighted_mean_square_distance() -> None:
    a, b = {"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([5.0, 3.0])}
    mean = average_models(LocalComm(), [(a, 0.25), (b, 0.75)], a)
    both = {"w": torch.stack([a["w"], b["w"]]), "running_mean": torch.tensor([[7.0], [8.0]])}
    averaged = mean | {"running_mean": torch.zeros(1)}
    distances = square_distances(both, averaged, ["w"])
    assert distances.tolist() == pytest.approx([9 / 2, 1 / 2])
    found = model_variance(distances.tolist(), [0.25, 0.75])
    assert found == pytest.approx((0.25 * 9 + 0.75 * 1) / 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_exact_sum_does_not_depend_on_order_or_grouping(seed: int, groups: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    values = torch.randn(12, 5, generator=draws, dtype=torch.float32) * 100
    weights = torch.rand(12, generator=draws, dtype=torch.float64)
    weights = weights / weights.sum()
    bound = float(values.abs().max())
    order = torch.randperm(12, generator=draws).tolist()
    parts = [ExactSum(5, bound, torch.device("cpu")) for _ in range(groups)]
    for at, client in enumerate(order):
        parts[at % groups].add(values[client], float(weights[client]))
    one = ExactSum(5, bound, torch.device("cpu"))
    for client in range(12):
        one.add(values[client], float(weights[client]))
    assert torch.equal(sum(p.total for p in parts), one.total)
    wanted = (values.double() * weights[:, None]).sum(0)
    torch.testing.assert_close(one.value(one.total), wanted, rtol=1e-12, atol=1e-12 * bound)


def test_average_of_models_on_paper() -> None:
    models = [
        ({"w": torch.tensor([1.0, -2.0]), "n": torch.tensor(4)}, 0.25),
        ({"w": torch.tensor([5.0, 6.0]), "n": torch.tensor(8)}, 0.75),
    ]
    got = average_models(LocalComm(), models, models[0][0])
    assert got["w"].tolist() == [4.0, 4.0]
    assert got["n"].item() == 7
    assert got["n"].dtype == torch.int64


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=40), st.integers(1, 10), st.integers(1, 5)
)
def test_every_client_with_samples_is_in_one_lane_of_one_rank(
    samples: list[int], ranks: int, width: int
) -> None:
    lanes = form_lanes(samples, width)
    owned = balance(lanes, samples, ranks)
    assert len(owned) == ranks
    assert sorted(map(sorted, (lane for part in owned for lane in part))) == sorted(
        map(sorted, lanes)
    )
    working = [k for k, n in enumerate(samples) if n]
    assert sorted(k for lane in lanes for k in lane) == working
    load = [sum(samples[k] for lane in part for k in lane) for part in owned]
    heaviest = max((sum(samples[k] for k in lane) for lane in lanes), default=0)
    assert max(load) - min(load) <= heaviest  # what largest-first guarantees


def test_participants_are_drawn_anew_each_round_by_seed() -> None:
    clients = list(range(20))
    rounds = [participants(clients, 5, 0, r) for r in range(4)]
    assert all(len(set(r)) == 5 and r == sorted(r) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1
    assert rounds == [participants(clients, 5, 0, r) for r in range(4)]
    assert participants(clients, None, 0, 0) == clients


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("a.b", 3, "something", "else"),
        ShardError("client_00001/00000.tar", "missing", "again"),
        Diverged(3, 7, 1.5, 2.0, 0.1),
    ],
)
def test_an_error_travels_to_other_ranks_unchanged(error: Exception) -> None:
    again = from_json(error.to_json())
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.exit_code == error.exit_code
