"""Does a learned lambda go where the closed forms say? (docs/algorithms.md, section 2)"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedcore.algorithms import ALGORITHMS
from fedcore.objective.guards import Hinge, InverseVariance
from fedcore.objective.learners import Uncertainty
from fedcore.objective.weighting import FromEntropy, LambdaRule, Slot
from fedcore.schedule import Constant, progress

LEARNED = [name for name, algorithm in ALGORITHMS if algorithm.rule.has_sigma_loss]


def at(p: float):
    return progress(0, 1, 0, 1, 1.0, torch.zeros((), dtype=torch.float64))._replace(
        p=torch.tensor(p, dtype=torch.float64), by_round=torch.tensor(p, dtype=torch.float64)
    )


def descend(
    rule: LambdaRule, B: float, A: float, log_var: torch.Tensor, p: float, lr: float, steps: int
):
    """Plain gradient descent on the sigma loss with B and A held: path of log_var [steps, 2]."""
    base, align = torch.tensor(B, dtype=torch.float64), torch.tensor(A, dtype=torch.float64)
    path = []
    for _ in range(steps):
        leaf = log_var.detach().requires_grad_()
        (grad,) = torch.autograd.grad(rule.weigh(base, align, leaf, at(p)).loss, leaf)
        log_var = leaf.detach() - lr * grad
        path.append(log_var)
    return torch.stack(path)


def start(lam: float = 5.0, rule: LambdaRule | None = None) -> torch.Tensor:
    lam0 = torch.tensor(lam, dtype=torch.float64)
    return (rule or LambdaRule()).form.start(lam0)


def raw_of(rule: LambdaRule, numbers: torch.Tensor) -> torch.Tensor:
    local, align = rule.form.log_variances(numbers).unbind(-1)
    return torch.exp(local - align)


def equilibrium(rule: LambdaRule, B: float, A: float, p: float) -> float:
    B, A = torch.tensor(B, dtype=torch.float64), torch.tensor(A, dtype=torch.float64)
    nothing = torch.full_like(B, torch.nan)
    return rule.equilibrium(B, A, nothing, nothing, at(p)).item()


def rest(rule: LambdaRule, B: float, A: float, p: float) -> float:
    """Raw lambda where the sigma loss has its minimum, found by a method that needs no step size:
    however slowly descent with a small s(p) gets there."""
    base, align = torch.tensor(B, dtype=torch.float64), torch.tensor(A, dtype=torch.float64)
    numbers = start(5.0, rule).requires_grad_()
    exact = {"tolerance_grad": 1e-14, "tolerance_change": 0.0}
    optimiser = torch.optim.LBFGS([numbers], max_iter=2000, line_search_fn="strong_wolfe", **exact)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        log_variances = rule.form.log_variances(numbers).unbind(-1)
        value = rule.sigma_loss(base, align, *log_variances, rule.factor(at(p)))
        value.backward()
        return value

    optimiser.step(loss)
    return raw_of(rule, numbers.detach()).item()


@pytest.mark.parametrize(("B", "A"), [(3.0, 0.2), (30.0, 0.2)], ids=["below", "above lambda_max"])
@pytest.mark.parametrize("p", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", LEARNED)
def test_sigma_step_rests_at_the_equilibrium(name: str, p: float, B: float, A: float) -> None:
    """Else: a guard whose `rest` is not where its `penalty` lets lambda rest, or a form's."""
    rule = ALGORITHMS.get(name).rule
    assert rest(rule, B, A, p) == pytest.approx(equilibrium(rule, B, A, p), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "raw", "effective"),
    [
        ("v10", 15.0, 15.0),  # B/A
        ("v11_linear", 30.0, 15.0),  # B/(sA), times s: the annealing is cancelled
        ("v12", 30.0, 30.0),  # B/(sA)
        ("v12_log", 7.5, 7.5),  # sB/A
        ("v13", 3.0 / (0.1 + 2e-5), 3.0 / (0.1 + 2e-5)),
        ("v14", 7.5, 7.5),
    ],
)
def test_equilibria_on_paper(name: str, raw: float, effective: float) -> None:
    """B = 3, A = 0.2, s = 1/2."""
    rule = ALGORITHMS.get(name).rule
    B, A = torch.tensor(3.0, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)
    end = descend(rule, 3.0, 0.2, start(), 0.5, lr=1.0, steps=1200)[-1]
    weighted = rule.weigh(B, A, end, at(0.5))
    assert weighted.raw.item() == pytest.approx(raw, rel=1e-6)
    assert weighted.effective.item() == pytest.approx(effective, rel=1e-6)


@pytest.mark.parametrize(
    ("B", "A", "gamma", "lr"),
    [
        (3.0, 0.2, 1e-3, 0.02),  # below lambda_max
        (3.0, 0.05, 1e-3, 0.02),  # 60 without the guard: held at the kink
        (6.0, 0.01, 1e-3, 0.02),  # 600 without the guard: rests above it
        (6.0, 0.01, 0.05, 0.002),  # a strong guard: held at the kink
    ],
)
def test_hinge_rests_at_its_closed_form_on_both_sides_of_lambda_max(
    B: float, A: float, gamma: float, lr: float
) -> None:
    rule = LambdaRule(start=FromEntropy(0.1, 20), learner=Uncertainty(), guard=Hinge(gamma, 50.0))
    path = descend(rule, B, A, start(), 0.0, lr=lr, steps=6000)
    raw = torch.exp(path[-200:, 0] - path[-200:, 1]).mean()  # at the kink descent hovers around it
    assert raw.item() == pytest.approx(equilibrium(rule, B, A, 0.0), rel=1e-2)


@pytest.mark.parametrize("name", ["v10", "v12", "v12_log", "v13"])
def test_gradient_flow_follows_its_closed_form(name: str) -> None:
    """u(t) = B + (u0 - B) e^(-t/2), v(t) = v* + (v0 - v*) e^(-kt/2), v* = (dA + 2 gamma)/k."""
    rule, B, A, p, lr, steps = ALGORITHMS.get(name).rule, 3.0, 0.2, 0.4, 2e-3, 2000
    path = descend(rule, B, A, start(), p, lr, steps).exp()
    s = float(rule.factor(at(p)))
    d = s if Slot.ALIGN in rule.slots else 1.0
    k = s if Slot.LOG in rule.slots else 1.0
    gamma = rule.guard.gamma if isinstance(rule.guard, InverseVariance) else 0.0
    rest = (d * A + 2 * gamma) / k
    t = lr * torch.arange(1, steps + 1, dtype=torch.float64)
    torch.testing.assert_close(path[:, 0], B + (5 - B) * torch.exp(-t / 2), rtol=4e-3, atol=0)
    torch.testing.assert_close(
        path[:, 1], rest + (1 - rest) * torch.exp(-k * t / 2), rtol=4e-3, atol=0
    )


def test_v12_lambda_grows_as_exp_half_t_when_annealing_ends() -> None:
    rule, lr, steps = ALGORITHMS.get("v12").rule, 2e-3, 4000
    B = 5.0  # l at rest, so that only sigma_align moves
    path = descend(rule, B, 0.2, start(lam=B), 1.0, lr, steps)
    raw = torch.exp(path[:, 0] - path[:, 1])
    t = lr * steps
    assert raw[-1].item() == pytest.approx(5.0 * math.exp(t / 2), rel=1e-3)


def test_v12_log_variance_grows_linearly_when_its_log_term_is_annealed_away() -> None:
    rule, lr, steps = ALGORITHMS.get("v12_log").rule, 2e-3, 2000
    v = descend(rule, 5.0, 0.2, start(lam=5.0), 1.0, lr, steps)[-1, 1].exp()
    assert v.item() == pytest.approx(1.0 + 0.2 * lr * steps / 2, rel=1e-3)  # v0 + A t/2


@pytest.mark.parametrize("name", ["v11_linear", "v11_cosine"])
def test_v11_effective_lambda_does_not_move_with_annealing(name: str) -> None:
    rule = ALGORITHMS.get(name).rule
    B, A = torch.tensor(3.0, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)
    effective, raw = [], []
    for p in (0.0, 0.5, 0.9):
        end = descend(rule, 3.0, 0.2, start(), p, lr=1.0, steps=1200)[-1]
        weighted = rule.weigh(B, A, end, at(p))
        effective.append(weighted.effective.item())
        raw.append(weighted.raw.item())
    assert effective == pytest.approx([15.0] * 3, rel=1e-6)
    assert raw[2] > 9 * raw[0]


def test_log_variance_of_a_loss_that_is_zero_stays_in_range() -> None:
    from fedcore.clients.optim import sgd
    from fedcore.clients.state import ClientState
    from tests.toy import HYPER

    rule = ALGORITHMS.get("v10").rule
    state = ClientState.start({}, {}, torch.zeros(1, 2, dtype=torch.float64))
    state.forget_momentum()
    for _ in range(3000):
        leaf = state.log_var.clone().requires_grad_()
        loss = rule.weigh(torch.ones(1), torch.zeros(1), leaf, at(0.0)).loss.sum()
        (grad,) = torch.autograd.grad(loss, leaf)
        sgd(state, state.weights.clone(), grad, replace(HYPER, lr_log_var=0.1), at(0.0))
    weighted = rule.weigh(torch.ones(1), torch.zeros(1), state.log_var, at(0.0))
    assert torch.isfinite(weighted.raw).all()
    assert torch.isfinite(weighted.raw.float()).all()


def test_gradients_are_routed_apart() -> None:
    """The weight loss does not move lambda; the sigma loss does not move B and A."""
    rule = ALGORITHMS.get("v14").rule
    B, A = torch.tensor(3.0, requires_grad=True), torch.tensor(0.2, requires_grad=True)
    log_var = torch.tensor([math.log(5.0), 0.0], requires_grad=True)
    weighted = rule.weigh(B, A, log_var, at(0.0))
    dB, dA, dl = torch.autograd.grad(weighted.loss, [B, A, log_var])
    assert dB.item() == 1.0
    assert dA.item() == pytest.approx(5.0)
    assert dl.tolist() == pytest.approx([-0.5 * 3 / 5 + 0.5, -0.5 * 0.2 + 0.5])


def test_logged_lambda_is_the_used_lambda() -> None:
    """d loss / d A is the effective lambda, whatever the rule."""
    for _, algorithm in ALGORITHMS:
        A = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        log_var = algorithm.rule.first_log_var(torch.tensor([5, 3, 0, 0]))
        weighted = algorithm.rule.weigh(torch.tensor(1.0), A, log_var, at(0.3))
        (used,) = torch.autograd.grad(weighted.loss, A)
        assert used.item() == pytest.approx(weighted.effective.item(), abs=1e-12)


def test_lambda_from_entropy() -> None:
    rule = FromEntropy(0.1, 20.0)
    counts = torch.tensor([[5, 5, 5, 5], [9, 0, 0, 0], [4, 4, 0, 0], [0, 0, 0, 0]])
    assert rule(counts).tolist() == pytest.approx([20.0, 0.1, 0.1 + 19.9 / 2, 0.1])


def test_slots_of_the_sigma_loss_need_a_learned_lambda() -> None:
    from fedcore.errors import ConfigError

    with pytest.raises(ConfigError, match=r"algorithm\.rule\.slots"):
        LambdaRule(anneal=Constant(), slots=Slot.LOG)
