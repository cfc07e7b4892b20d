"""Does the server step from the clients' mean as the papers say, and every rule as a run needs it?

The rules of a file of your own, too: `pytest tests/law --extension mine.py`.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedcore.algorithms import ALGORITHMS, Algorithm, resolve
from fedcore.algorithms.server_rules import (
    SERVER_RULES,
    Adagrad,
    Adam,
    Moments,
    Momentum,
    ServerRule,
    Yogi,
    stepped,
)
from fedcore.clients.layout import Layout
from fedcore.config_algorithm import AlgorithmConfig
from fedcore.errors import ConfigError
from fedcore.seeds import generator
from fedcore.server.collective import ServerCollective
from fedcore.server.comm import LocalComm
from fedcore.server.state import GlobalState

ROUNDS = 5


def draw(purpose: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(3, 0, 0, purpose), dtype=torch.float64).to(dtype)


def driven(rule: ServerRule, changes: list[Tensor]) -> list[Tensor]:
    """Where a parameter that starts at 0 is after each round, if the clients go these ways."""
    w, moments, found = torch.zeros_like(changes[0]), dict[str, Moments](), []
    for change in changes:
        model, moments = stepped(rule, {"w": w}, {"w": w + change}, moments)
        w = model["w"]
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        (Momentum(0.5, 0.5), [1, 2], [0.5, 0.5 + 0.5 * (0.5 + 2)]),
        (Momentum(0.5, 0.5, True), [1, 2], [0.5 * 1.5, 0.75 + 0.5 * (2 + 0.5 * 2.5)]),
        # v: 9, 9 + 16 = 25, 25 + 144 = 169
        (Adagrad(2.0, 0.0, 3.0), [4, 12], [2 * 4 / (5 + 3), 1 + 2 * 12 / (13 + 3)]),
        # v: 1, (1 + 49) / 2 = 25, (25 + 25) / 2; m: 3.5, (3.5 + 5) / 2
        (Adam(6.0, 0.5, 0.5, 1.0), [7, 5], [3.5, 3.5 + 4.25]),
        # v: 1, 1 + 16 / 2 = 9, 9 - 4 / 2 = 7; m: 2, (2 + 2) / 2
        (Yogi(1.0, 0.5, 0.5, 1.0), [4, 2], [2 / 4, 0.5 + 2 / (math.sqrt(7) + 1)]),
    ],
)
def test_two_rounds_on_paper(rule: ServerRule, changes: list[int], wanted: list[float]) -> None:
    found = driven(rule, [torch.tensor([float(c)], dtype=torch.float64) for c in changes])
    assert [float(w) for w in found] == pytest.approx(wanted, rel=1e-14)


class UncorrectedAdam(torch.optim.Adam):
    """torch's Adam from v = tau^2, with what it does against the start of m and v undone."""

    def __init__(self, parameter: Tensor, rule: Adam) -> None:
        self.rule, self.round = rule, 0
        super().__init__([parameter], betas=(rule.beta1, rule.beta2))
        self.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.full_like(parameter, rule.tau**2),
        }

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.round += 1
        first, second = (1 - beta**self.round for beta in (self.rule.beta1, self.rule.beta2))
        now = self.param_groups[0]
        now["lr"] = self.rule.lr * first / math.sqrt(second)
        now["eps"] = self.rule.tau / math.sqrt(second)
        super().step()


@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        (Momentum(0.3, 0.8), lambda p: torch.optim.SGD([p], lr=0.3, momentum=0.8)),
        (
            Momentum(0.3, 0.8, nesterov=True),
            lambda p: torch.optim.SGD([p], lr=0.3, momentum=0.8, nesterov=True),
        ),
        (
            Adagrad(0.3, 0.0, 0.01),
            lambda p: torch.optim.Adagrad([p], 0.3, initial_accumulator_value=1e-4, eps=0.01),
        ),
        (Adam(0.3, 0.9, 0.99, 0.01), lambda p: UncorrectedAdam(p, Adam(0.3, 0.9, 0.99, 0.01))),
    ],
    ids=["momentum", "nesterov", "adagrad", "adam"],
)
def test_a_rule_agrees_with_torch_driven_by_minus_the_change(rule, twin) -> None:
    changes = [draw(f"change{i}", 4, 3) for i in range(ROUNDS)]
    parameter = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimiser = twin(parameter)
    for change, found in zip(changes, driven(rule, changes), strict=True):
        parameter.grad = -change
        optimiser.step()
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lr_1_without_momentum_is_fedavg_bit_for_bit(dtype: torch.dtype) -> None:
    """Of numbers of all sizes: start + (mean - start) would be rounded twice."""
    model: dict[str, Tensor] = {"w": draw("start", 500, dtype=dtype)}
    moments: dict[str, Moments] = {}
    rounded = 0
    for i in range(ROUNDS):
        mean = {"w": draw(f"mean{i}", 500, dtype=dtype) * 10.0 ** draw(f"size{i}", 500).to(dtype)}
        rounded += int((model["w"] + (mean["w"] - model["w"]) != mean["w"]).sum())
        model, moments = stepped(Momentum(1.0, 0.0), model, mean, moments)
        assert torch.equal(model["w"], mean["w"])
    assert rounded > 100


@pytest.mark.parametrize("name", SERVER_RULES.names())
def test_a_rule_is_elementwise_and_changes_nothing_it_was_given(name: str) -> None:
    """Else: bits would depend on how a parameter lies in memory, or a checkpoint on its writing."""
    rule, like = SERVER_RULES.get(name)(), draw("like", 6, 5, dtype=torch.float32)
    moments = {k: v + draw(k, 6, 5).abs().float() for k, v in rule.start(like).items()}
    kept = {k: v.clone() for k, v in moments.items()}
    change = draw("change", 6, 5, dtype=torch.float32)
    update, after = rule.step(change, moments)
    assert all(torch.equal(moments[k], v) for k, v in kept.items())
    strided = {k: v.T.contiguous().T for k, v in moments.items()}
    for row in range(6):
        one = rule.step(change[row], {k: v[row] for k, v in moments.items()})
        other = rule.step(change.T.contiguous().T, strided)
        for alone, turned, whole in zip(
            (one[0], *one[1].values()),
            (other[0], *other[1].values()),
            (update, *after.values()),
            strict=True,
        ):
            assert whole.dtype == torch.float32
            assert torch.equal(alone, whole[row])
            assert torch.equal(turned, whole)


@pytest.mark.parametrize("name", SERVER_RULES.names())
def test_where_no_client_went_anywhere_nothing_moves(name: str) -> None:
    still = torch.zeros(3, dtype=torch.float64)
    assert all(w.tolist() == [0, 0, 0] for w in driven(SERVER_RULES.get(name)(), [still] * 3))


def server_of(algorithm: Algorithm, start: dict[str, Tensor]) -> ServerCollective:
    return ServerCollective(
        LocalComm(),
        algorithm,
        start["prototypes"].double(),
        clients=[0],
        rounds=3,
        per_round=None,
        seed=0,
        start=start,
    )


def test_batch_statistics_and_counters_are_those_of_the_mean() -> None:
    """Parameters go 0.9 of the last way on; what the optimiser has no say in is taken."""
    server = server_of(ALGORITHMS.get("fedavgm"), {"prototypes": torch.zeros(2, 2)})
    for round in (1, 2):
        mean = {
            "prototypes": torch.full((2, 2), float(round)),
            "running_var": torch.full((2,), 10.0 * round),
            "batches": torch.tensor(round),
        }
        server.take(mean)
        assert server.state.weights is not None
        assert torch.equal(server.state.weights["running_var"], mean["running_var"])
        assert torch.equal(server.state.weights["batches"], mean["batches"])
    torch.testing.assert_close(server.state.weights["prototypes"], torch.full((2, 2), 2.9))
    assert list(server.state.moments) == ["prototypes"]


def test_a_checkpoint_brings_the_moments_back() -> None:
    start = {"prototypes": draw("p", 3, 2), "encoder.0.weight": draw("e", 4)}
    before, after = (server_of(ALGORITHMS.get("fedadam"), start) for _ in range(2))
    means = [{k: v + draw(f"{k}{i}", *v.shape) for k, v in start.items()} for i in range(2)]
    before.take(means[0])
    held, layout = before.state.tensors(Layout(start)), Layout(start)
    assert {k for k in held if k.startswith("moments/")} == {
        f"moments/{name}/{moment}" for name in start for moment in ("m", "v")
    }
    after.state.fill(dict(sorted(held.items())), layout, torch.device("cpu"))
    for server in (before, after):
        server.take(means[1])
    for name in start:
        assert torch.equal(before.state.weights[name], after.state.weights[name])


def test_a_checkpoint_without_a_rule_is_as_it_was() -> None:
    server = server_of(ALGORITHMS.get("fedavg"), {"prototypes": draw("p", 3, 2)})
    server.take({"prototypes": draw("q", 3, 2)})
    held = server.state.tensors(Layout({}))
    assert set(held) == {"prototypes", "weights/prototypes"}
    state = GlobalState(torch.zeros(3, 2))
    state.fill(held, Layout({}), torch.device("cpu"))
    assert state.moments == {}


def test_settings_that_are_not_given_stay_as_declared() -> None:
    def rule_of(**said) -> ServerRule | None:
        return resolve(AlgorithmConfig.model_validate(said)).server

    assert rule_of(name="fedadam", server={"adam": {"tau": 0.1}}) == Adam(tau=0.1)
    assert rule_of(name="fedadam", server="yogi") == Yogi()
    assert rule_of(name="fedadam", server={}) is None
    assert rule_of(name="fedadam") == Adam()
    assert rule_of(name="aurora_fedavg", server="adagrad") == Adagrad()
    given = {"momentum": {"momentum": 0, "nesterov": True}}
    assert rule_of(name="scaffold", server=given) == Momentum(1.0, 0.0, True)


def test_a_declaration_out_of_range_names_the_setting() -> None:
    for kind, setting in ((Momentum, "momentum"), (Adam, "beta2"), (Adagrad, "beta1")):
        with pytest.raises(ConfigError, match=rf"algorithm\.server\..*{setting}.*below 1"):
            kind(**{setting: 1.0})
    with pytest.raises(ConfigError, match=r"algorithm\.server\.yogi\.tau: got 0"):
        Yogi(tau=0)
