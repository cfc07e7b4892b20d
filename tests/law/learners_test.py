"""Do the learners of lambda move it as their papers say?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedcore.algorithms import ALGORITHMS, resolve
from fedcore.clients import learn
from fedcore.clients.optim import clip_each, sgd
from fedcore.clients.state import ClientState
from fedcore.clients.step import Lane, local_step, losses
from fedcore.config import RunConfig
from fedcore.config_algorithm import AlgorithmConfig
from fedcore.errors import ConfigError
from fedcore.objective.guards import Bounded, Hinge, InverseVariance
from fedcore.objective.learners import GradNorm, Hypergradient, Uncertainty
from fedcore.objective.weighting import (
    LOG_VAR_LIMIT,
    Fixed,
    FromEntropy,
    LambdaRule,
    Slot,
    Weighted,
)
from fedcore.schedule import Linear, Progress, progress
from launcher.build import _windows_too_long
from tests.toy import HYPER, ToyData, toy_group, toy_order


def at(p: float, dtype: torch.dtype = torch.float64) -> Progress:
    share = torch.tensor(p, dtype=dtype)
    zero = progress(0, 1, 0, 1, 1.0, torch.zeros((), dtype=dtype))
    return zero._replace(p=share, by_round=share)


# -- hypergradient


def held_out_loss(group, state: ClientState, batch, lane: Lane, order) -> Tensor:
    """E [K]: the base loss on that batch, in train mode, batch statistics untouched."""
    buffers = {k: v.clone() for k, v in state.buffers.items()}
    base = group.algorithm.base
    found = losses(group.setup, base, state.params, buffers, batch, lane, order.targets)
    return found.sum(1).detach()


def after_window(group, lam: Tensor, horizon: int, held):
    """A window of `horizon` steps from the start with log lambda [K] given: state, lane, order."""
    order, state = toy_order("hypergradient", 0, group.clients), group.state
    state = state.take(torch.arange(len(state)))
    state.forget_momentum()
    state.log_var = torch.stack([lam, torch.zeros_like(lam)], 1)
    learn.begin_window(state)
    anchors = order.targets.anchors.expand(len(state), *order.targets.anchors.shape)
    lane = Lane(group.label_counts, anchors)
    batches = list(group.data.epoch(group.clients, 0, 0))[:horizon]
    for number, batch in enumerate(batches):
        last = number + 1 == horizon
        local_step(group.setup, state, batch, lane, order.targets, at(0.2), held if last else None)
    return state, lane, order


@pytest.mark.parametrize("slots", [Slot.NONE, Slot.WEIGHTS])
@pytest.mark.parametrize("horizon", [1, 3])
def test_hypergradient_is_the_derivative_of_the_held_out_loss(horizon: int, slots: Slot) -> None:
    """Against central differences of E after the window, momentum and weight decay included."""
    group = toy_group(
        "hypergradient", [0, 1], ToyData([20, 16]), width=2, max_norm=1e9, weight_decay=0.01
    )
    rule = replace(
        group.algorithm.rule,
        learner=Hypergradient(horizon, rate=1.0),
        anneal=Linear(),
        slots=slots,
    )
    group.setup = group.setup._replace(algorithm=replace(group.algorithm, rule=rule))
    held = group.data.held_out(group.clients, 0, 0, 0)
    start = torch.tensor([1.0, 2.0], dtype=torch.float64)  # log lambda
    moved, lane, order = after_window(group, start, horizon, held)
    got = start - moved.log_var[:, 0]  # rate 1: the gradient itself
    step, sides = 1e-5, []
    for sign in (1, -1):
        state, _, _ = after_window(group, start + sign * step, horizon, None)
        sides.append(held_out_loss(group, state, held, lane, order))
    wanted = (sides[0] - sides[1]) / (2 * step)
    assert wanted.abs().min() > 1e-7
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-9)


def test_samples_held_out_are_never_trained_on() -> None:
    from data_shards.order import kept_back

    for n, held in ((10, 2), (2, 1), (1, 0)):
        out, kept = kept_back(n, 0.2, seed=3, client=0)
        assert len(kept) == n - held
        if held:
            assert len(out) == held
            assert sorted([*out.tolist(), *kept.tolist()]) == list(range(n))
        else:  # a client of one sample has nothing to spare
            assert out.tolist() == kept.tolist() == [0]
    assert kept_back(1, 0.0, seed=3, client=0)[1].tolist() == [0]


def test_a_horizon_longer_than_an_epoch_is_told() -> None:
    rule = {"learned": {"hypergradient": {"horizon": 4}}}
    algorithm = {"name": "hypergradient", "rule": rule}
    config = RunConfig.of({"clients": {"batch_size": 10}, "algorithm": algorithm})
    (words,) = _windows_too_long(config, [100, 30, 0, 50])
    assert words.endswith("stays where it starts: 1")  # 24 of 30 samples: 3 steps; of 50: 4


# -- gradnorm


def quadratic_norms(P: Tensor) -> tuple[Tensor, Tensor]:
    """Losses with |grad B| = 3 and |grad A| = 0.5 at P [1, 2, 2], wherever P is."""
    return 1.5 * P.flatten(1).sum(1), 0.25 * P.flatten(1).sum(1)


@pytest.mark.parametrize(("asymmetry", "wanted"), [(0.0, 6.0), (1.5, None)])
def test_gradnorm_rests_where_the_norms_are_in_balance(
    asymmetry: float, wanted: float | None
) -> None:
    """G_A = mean(G) r^alpha; on paper lambda* = |grad B| r^a / (|grad A| (2 - r^a))."""
    learner, P = GradNorm(asymmetry), torch.ones(1, 2, 2, dtype=torch.float64)
    first = torch.tensor([[6.0, 4.0]], dtype=torch.float64)  # B and A at the first step
    kept = first.clone()
    log_lam = torch.tensor([0.0], dtype=torch.float64)
    for _ in range(4000):
        leaf = P.clone().requires_grad_()
        base, align = quadratic_norms(leaf)  # 6 and 1: r_A = 0.25 / 0.625
        used = Weighted(base, log_lam.exp(), log_lam.exp())
        slope, rest = learn.gradnorm(learner, base, align, leaf, used, kept)
        log_lam = log_lam - 1e-3 * slope[:, 0]
    pull = (0.25 / 0.625) ** asymmetry
    paper = 3.0 * pull / (0.5 * (2 - pull))
    assert rest.item() == pytest.approx(wanted or paper, rel=1e-12)
    assert log_lam.exp().item() == pytest.approx(rest.item(), rel=1e-2)
    assert torch.equal(kept, first)
    unset = torch.zeros_like(first)
    learn.gradnorm(learner, base, align, leaf, used, unset)
    assert unset.tolist() == [[6.0, 1.0]]


def test_gradnorm_in_training_moves_lambda_towards_its_balance() -> None:
    group = toy_group("gradnorm", [0, 1, 2], ToyData([24, 20, 16]), lr_log_var=0.5)
    before = torch.exp(group.state.log_var[:, 0])
    upload = group.train(toy_order("gradnorm", 0, [0, 1, 2]))
    after = torch.exp(group.state.log_var[:, 0])
    rest = upload.readings[:, 7]
    assert torch.isfinite(rest).all()
    assert ((rest - before).sign() == (after - before).sign()).all()
    assert (group.state.kept["first_losses"] > 0).all()


# -- bounded, and guards under stress


def test_bounded_starts_at_lambda0_and_rests_below_its_bound() -> None:
    form = Bounded(50.0)
    lam = torch.tensor([0.1, 5.0, 49.0], dtype=torch.float64)
    local, align = form.log_variances(form.start(lam)).unbind(-1)
    torch.testing.assert_close(torch.exp(local - align), lam)
    torch.testing.assert_close(align, torch.zeros_like(align), atol=1e-12, rtol=0)
    far = torch.tensor([0.0, 30.0], dtype=torch.float32)
    local, align = form.log_variances(far).unbind(-1)
    assert torch.exp(local - align) <= 50.0 * (1 + 1e-6)


def test_a_bound_must_lie_above_every_start() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.rule\.bound"):
        resolve(AlgorithmConfig.model_validate({"name": "v14", "rule": {"guard": {}, "bound": 15}}))


@pytest.mark.parametrize(
    "start", [Fixed(0.0), Fixed(1e30), FromEntropy(0.0, 20.0), FromEntropy(1.0, 1e9)]
)
def test_a_learned_lambda_cannot_start_where_it_could_not_leave(start) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.rule\.start"):
        LambdaRule(start=start, learner=Uncertainty())
    assert LambdaRule(start=start).start == start


def test_a_bound_and_a_guard_exclude_each_other() -> None:
    rule = {"bound": 40}
    with pytest.raises(ConfigError, match=r"guard: \{\}"):
        resolve(AlgorithmConfig.model_validate({"name": "v14", "rule": rule}))
    found = resolve(AlgorithmConfig.model_validate({"name": "v14", "rule": {**rule, "guard": {}}}))
    assert found.rule.form == Bounded(40.0)


@pytest.mark.long
def test_guards_hold_under_stress() -> None:
    """1e5 sgd steps through annealing in float32, clipped as usual; losses from 1e-12 to 1e12 and
    exact zeros. 64 clients, each with its own pair of losses that changes every 5,000 steps."""
    rules = [ALGORITHMS.get(name).rule for name in ("v13", "v13_log", "v14", "bounded")]
    hyper, steps, n = replace(HYPER, lr_log_var=0.005), 100_000, 64
    draws = torch.Generator().manual_seed(0)
    first = [rule.first_log_var(torch.full((n, 4), 5)).float() for rule in rules]
    state = ClientState.start({}, {}, torch.cat(first))  # all rules side by side
    state.forget_momentum()
    for step in range(steps):
        if step % 5000 == 0:
            exponents = 24 * torch.rand(2, n, generator=draws) - 12
            zeros = torch.rand(2, n, generator=draws) < 0.1
            B, A = torch.where(zeros, 0.0, 10.0**exponents)
        if step % 500 == 0:
            now = at(step / steps, torch.float32)
            factors = [rule.factor(now) for rule in rules]
        leaf = state.log_var.clone().requires_grad_()
        total = torch.zeros(())
        for rule, part, s in zip(rules, leaf.split(n), factors, strict=True):
            local, align = rule.form.log_variances(part).unbind(-1)
            total = total + rule.sigma_loss(B, A, local, align, s).sum()
        (grad,) = torch.autograd.grad(total, leaf)
        with torch.no_grad():
            nothing = state.weights.clone()
            clip_each(nothing, grad, 1.0)
            sgd(state, nothing, grad, hyper, now)
        if step % 1000 == 999:
            parts = zip(rules, state.log_var.split(n), strict=True)
            used = [rule.weigh(B, A, part, now) for rule, part in parts]
            assert all(torch.isfinite(u.raw).all() for u in used)
            assert torch.isfinite(state.log_var).all()
            assert state.log_var.abs().max() <= LOG_VAR_LIMIT
            assert used[3].raw.max() <= 50.0 * (1 + 1e-5)


# -- what a configuration may say


@pytest.mark.parametrize(
    ("rule", "learner", "guard"),
    [
        ({"learned": True}, Uncertainty(), None),
        ({"learned": "gradnorm"}, GradNorm(0.0), None),
        ({"learned": {"gradnorm": {"asymmetry": 1.5}}}, GradNorm(1.5), None),
        ({"learned": {"hypergradient": {"horizon": 3}}}, Hypergradient(3, 10.0, 0.2), None),
        ({"learned": False}, None, None),
        ({"guard": {"hinge": {"gamma": 1e-3}}, "learned": True}, Uncertainty(), Hinge(1e-3, 50.0)),
        (
            {"learned": True, "guard": {"inverse_variance": 1e-4}},
            Uncertainty(),
            InverseVariance(1e-4),
        ),
    ],
)
def test_rules_from_words(rule: dict, learner: object, guard: object) -> None:
    found = resolve(AlgorithmConfig.model_validate({"name": "v9", "rule": rule})).rule
    assert found.learner == learner
    assert guard is None or found.guard == guard


@pytest.mark.parametrize("start", [{"fixed": 3.0}, {"entropy": {"low": 1, "high": 4}}])
@pytest.mark.parametrize("slots", [[], ["weights"], ["align"], ["log"], ["weights", "align"]])
@pytest.mark.parametrize("anneal", ["constant", "linear", "cosine", "consensus"])
@pytest.mark.parametrize(
    "guard", [{}, {"inverse_variance": 1e-4}, {"hinge": {"gamma": 1e-3, "lambda_max": 30}}]
)
@pytest.mark.parametrize("anchor", ["etf", "gaussian", "spread", "consensus_path"])
def test_every_combination_is_expressible_and_has_a_finite_loss(
    start: dict, slots: list[str], anneal: str, guard: dict, anchor: str
) -> None:
    for clock in ("epoch", "round"):
        rule = {"start": start, "slots": slots, "anneal": anneal, "guard": guard}
        rule["clock"] = clock
        config = {"name": "v14", "anchor": anchor, "rule": rule}
        found = resolve(AlgorithmConfig.model_validate(config))
        numbers = found.rule.first_log_var(torch.tensor([[5, 3, 0, 0]]))
        ones = torch.ones(1, dtype=torch.float64)
        assert torch.isfinite(found.rule.weigh(ones, ones, numbers, at(0.5)).loss).all()
        raw = torch.exp(numbers[:, 0] - numbers[:, 1])
        rest = found.rule.equilibrium(ones, ones, raw, raw, at(0.5))
        assert torch.isfinite(rest).all()
        assert found.anchor == anchor


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("slots", {"slots": Slot.LOG}),
        ("guard", {"guard": Hinge(1e-5, 50.0)}),
        ("bound", {"form": Bounded(50.0)}),
    ],
)
@pytest.mark.parametrize("learner", [None, GradNorm(), Hypergradient()])
def test_what_only_the_sigma_loss_has_is_refused_without_it(
    key: str, changes: dict, learner: object
) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm\.rule\.{key}"):
        LambdaRule(start=Fixed(1.0), learner=learner, **changes)


# -- anchors on a path (V8)


def test_consensus_path_walks_from_the_first_prototypes_to_the_anchors() -> None:
    """(1 - p_local) P_start + p_local a, p_local the share of the round's local epochs done."""
    group = toy_group("v8", [0, 1], ToyData([12, 8]), width=2)
    order, start = toy_order("v8", 0, [0, 1]), group.state.take(torch.arange(2))
    P, a = start.params["prototypes"], order.targets.anchors
    for epoch, share in ((0, 0.0), (1, 0.5)):
        now = progress(0, 2, epoch, 2, 1.0, like=start.log_var)
        lane = group._fixed([0, 1], order, now)
        torch.testing.assert_close(lane.anchors, (1 - share) * P + share * a)
    assert math.isclose(float(progress(0, 2, 1, 2, 1.0, like=P).local), 0.5)
