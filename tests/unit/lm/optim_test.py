"""Does each optimiser agree with torch's, decay exactly, and go on from its saved state?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcore.config_lm import LMModelConfig, OptimizerConfig
from fedcore.lm.model import TransformerLM
from fedcore.lm.optim import build_optimizer, parameter_groups

NAMES = ("adamw", "sgdm", "rmsprop", "signsgdm", "muon")
STEPS = 20
Optimiser = torch.optim.Optimizer


def model_of(**switches: Any) -> TransformerLM:
    config = LMModelConfig(**{"layers": 1, "width": 16, "heads": 2, "context": 8, **switches})
    return TransformerLM(config, vocab_size=11, seed=0).double()


def config_of(name: str, **settings: Any) -> OptimizerConfig:
    return OptimizerConfig.model_validate({"name": name, "lr": 0.01, **settings})


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    """The same random gradients for the same step."""
    source = torch.Generator().manual_seed(step)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=source, dtype=torch.float64)


def trained(model: nn.Module, optimiser: Optimiser, steps: range) -> list[Tensor]:
    """The parameters after steps in which eta and lam change from step to step."""
    parameters = list(model.parameters())
    peaks = [(g["lr"], g["weight_decay"]) for g in optimiser.param_groups]
    for step in steps:
        give_gradients(parameters, step)
        for group, (lr, decay) in zip(optimiser.param_groups, peaks, strict=True):
            group["lr"], group["weight_decay"] = lr / (1 + step), decay * (1 + step % 3)
        optimiser.step()
    for group, (lr, decay) in zip(optimiser.param_groups, peaks, strict=True):
        group["lr"], group["weight_decay"] = lr, decay
    return [p.detach().clone() for p in parameters]


def assert_equal(got: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def plain_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    keys = ("params", "lr", "weight_decay")
    return [{k: g[k] for k in keys} for g in parameter_groups(model, config)]


class Decayed(Optimiser):
    """A torch optimiser without decay of its own, after theta <- (1 - eta lam) theta."""

    def __init__(
        self, kind: Callable[..., Optimiser], groups: list[dict[str, Any]], **settings: Any
    ) -> None:
        super().__init__(groups, {})
        bare = [{"params": g["params"], "lr": g["lr"]} for g in groups]
        self.inner = kind(bare, weight_decay=0.0, **settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            inner["lr"] = group["lr"]
        self.inner.step()


def test_adamw_agrees_with_torch_in_its_plainest_form() -> None:
    config, ours, theirs = config_of("adamw"), model_of(), model_of()
    settings = {"betas": (0.9, 0.95), "eps": 1e-8, "foreach": False, "fused": False}
    twin = torch.optim.AdamW(plain_groups(theirs, config), **settings)  # type: ignore[arg-type]
    got = trained(ours, build_optimizer(ours, config), range(STEPS))
    assert_equal(got, trained(theirs, twin, range(STEPS)))


def test_adamw_agrees_with_its_formula() -> None:
    config, model = config_of("adamw", decay_norms=True), model_of()
    lr, lam, (b1, b2) = config.lr, config.weight_decay, (config.beta1, config.beta2)
    theta = [p.detach().clone() for p in model.parameters()]
    m, v = [torch.zeros_like(p) for p in theta], [torch.zeros_like(p) for p in theta]
    optimiser = build_optimizer(model, config)
    for t in range(1, STEPS + 1):
        give_gradients(list(model.parameters()), t)
        for i, g in enumerate([p.grad.clone() for p in model.parameters() if p.grad is not None]):
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g**2
            unbiased = m[i] / (1 - b1**t), v[i] / (1 - b2**t)
            theta[i] = theta[i] - lr * lam * theta[i]
            theta[i] = theta[i] - lr * unbiased[0] / (unbiased[1].sqrt() + config.eps)
        optimiser.step()
    assert_equal([p.detach() for p in model.parameters()], theta)


def test_rmsprop_agrees_with_torch() -> None:
    config, ours, theirs = config_of("rmsprop"), model_of(), model_of()
    groups = plain_groups(theirs, config)
    twin = Decayed(torch.optim.RMSprop, groups, alpha=config.beta2, eps=config.eps)
    got = trained(ours, build_optimizer(ours, config), range(STEPS))
    assert_equal(got, trained(theirs, twin, range(STEPS)))


def test_sgdm_agrees_with_torch_after_a_first_step_without_gradient() -> None:
    """torch starts its memory at the first gradient itself; ours starts at zero."""
    config, ours, theirs = config_of("sgdm"), model_of(), model_of()
    groups = plain_groups(theirs, config)
    twin = Decayed(torch.optim.SGD, groups, momentum=config.beta1, dampening=config.beta1)
    for p in theirs.parameters():
        p.grad = torch.zeros_like(p)
    twin.inner.step()
    got = trained(ours, build_optimizer(ours, config), range(STEPS))
    assert_equal(got, trained(theirs, twin, range(STEPS)))


def test_signsgdm_goes_the_way_of_the_average_gradients_sign() -> None:
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    start = model.weight.detach().clone()
    optimiser = build_optimizer(model, config_of("signsgdm", lr=0.1, weight_decay=0.0))
    for grad in ([1.0, -2.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, 0.0, 1e-9]):
        model.weight.grad = torch.tensor([grad], dtype=torch.float64)
        optimiser.step()
    # averages at beta1 = 0.9, in hundredths: 10, -1, -10.9; -20, -8, -7.2; 0, 0, > 0
    way = torch.tensor([[1 - 1 - 1, -1 - 1 - 1, 0 + 0 + 1]], dtype=torch.float64)
    torch.testing.assert_close(model.weight.detach(), start - 0.1 * way)


def test_muon_agrees_with_torch_on_matrices_and_with_adamw_on_the_rest() -> None:
    config, ours, theirs = config_of("muon"), model_of(), model_of()
    muon, *rest = plain_groups(theirs, config)
    twins = [
        torch.optim.Muon([muon], momentum=config.beta1),
        torch.optim.AdamW(rest, betas=(config.beta1, config.beta2), eps=config.eps),
    ]
    optimiser = build_optimizer(ours, config)
    for step in range(STEPS):
        for model in (ours, theirs):
            give_gradients(list(model.parameters()), step)
        for one in (optimiser, *twins):
            one.step()
    got, expected = ([p.detach() for p in m.parameters()] for m in (ours, theirs))
    assert_equal(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_without_gradient_only_decay_is_left(name: str) -> None:
    model = model_of(bias=True, norm="layernorm")
    optimiser = build_optimizer(model, config_of(name, weight_decay=0.5))
    start = {k: p.detach().clone() for k, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(7):
        optimiser.step()
    now = dict(model.named_parameters())
    for group in optimiser.param_groups:
        for key in group["names"]:
            left = (1 - group["lr"] * group["weight_decay"]) ** 7
            torch.testing.assert_close(now[key].detach(), start[key] * left, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_was_saved_goes_on_exactly(name: str) -> None:
    model, config = model_of(), config_of(name)
    optimiser = build_optimizer(model, config)
    trained(model, optimiser, range(5))
    saved = copy.deepcopy((model.state_dict(), optimiser.state_dict()))
    expected = trained(model, optimiser, range(5, 12))
    again = model_of()
    again.load_state_dict(saved[0])
    resumed = build_optimizer(again, config)
    resumed.load_state_dict(saved[1])
    for a, b in zip(trained(again, resumed, range(5, 12)), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "muon"])
def test_flat_partitions_of_parameters_train_as_the_whole(name: str) -> None:
    """What ZeRO does: each group's parameters become one vector."""
    model, config = model_of(), config_of(name)
    optimiser = build_optimizer(model, config)
    flat = build_optimizer(model_of(), config)
    vectors = []
    for group in flat.param_groups:
        vectors.append(nn.Parameter(torch.cat([p.detach().flatten() for p in group["params"]])))
        group["params"] = [vectors[-1]]
    for step in range(STEPS):
        give_gradients(list(model.parameters()), step)
        for vector, group in zip(vectors, optimiser.param_groups, strict=True):
            vector.grad = torch.cat([p.grad.flatten() for p in group["params"]])
        optimiser.step()
        flat.step()
    for vector, group in zip(vectors, optimiser.param_groups, strict=True):
        whole = torch.cat([p.detach().flatten() for p in group["params"]])
        torch.testing.assert_close(vector.detach(), whole, rtol=1e-12, atol=1e-14)


def test_a_parameter_without_gradient_stays() -> None:
    for name in NAMES:
        model = model_of()
        optimiser = build_optimizer(model, config_of(name))
        before = model.layers[0].ffn.w1.weight.detach().clone()
        give_gradients([p for k, p in model.named_parameters() if "w1" not in k], 0)
        optimiser.step()
        assert torch.equal(model.layers[0].ffn.w1.weight, before), name


def members(config: OptimizerConfig, **switches: Any) -> dict[str, set[str]]:
    groups = parameter_groups(model_of(**switches), config)
    return {group["name"]: set(group["names"]) for group in groups}


def test_by_default_norms_and_biases_do_not_decay() -> None:
    groups = members(config_of("adamw"), norm="layernorm", bias=True, position="learned")
    norms = {"ln_final.weight", "layers.0.ln1.weight", "layers.0.ln2.weight"}
    assert groups["no_decay"] == norms | {n for n in groups["no_decay"] if n.endswith(".bias")}
    assert len(groups["no_decay"]) == 3 + 3 + 4 + 3
    assert {"token_embeddings.weight", "position_embeddings.weight"} < groups["decay"]
    assert {"lm_head.weight", "layers.0.attn.q_proj.weight"} < groups["decay"]


@pytest.mark.parametrize(
    ("setting", "moved"),
    [
        ({"decay_norms": True}, "layers.0.ln1.weight"),
        ({"decay_biases": True}, "layers.0.ln1.bias"),
        ({"decay_embeddings": False}, "token_embeddings.weight"),
    ],
)
def test_each_setting_moves_its_kind(setting: dict[str, bool], moved: str) -> None:
    switches: dict[str, Any] = {"norm": "layernorm", "bias": True}
    usual = members(config_of("adamw"), **switches)
    changed = members(config_of("adamw", **setting), **switches)
    before, after = ("decay", "no_decay") if "embedding" in moved else ("no_decay", "decay")
    assert moved in usual[before]
    assert moved in changed[after]


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_one_group_once(tied: bool) -> None:
    for name in NAMES:
        model = model_of(tied=tied)
        groups = parameter_groups(model, config_of(name))
        names = [n for g in groups for n in g["names"]]
        assert sorted(names) == sorted(n for n, _ in model.named_parameters())
        params = dict(model.named_parameters())
        for g in groups:
            assert all(params[n] is p for n, p in zip(g["names"], g["params"], strict=True))


def test_muon_has_the_hidden_matrices_and_a_rate_of_its_own() -> None:
    groups = parameter_groups(model_of(), config_of("muon", muon_lr=0.5))
    assert [g["name"] for g in groups] == ["muon", "decay", "no_decay"]
    assert [g["lr"] for g in groups] == [0.5, 0.01, 0.01]
    assert [g["weight_decay"] for g in groups] == [0.1, 0.1, 0.0]
    assert all(".attn." in n or ".ffn." in n for n in groups[0]["names"])
    assert groups[1]["names"] == ["token_embeddings.weight", "lm_head.weight"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_under_it(name: str) -> None:
    model = model_of(width=32, position="learned")
    optimiser = build_optimizer(model, config_of(name, lr=0.003 if name != "sgdm" else 1.0))
    tokens = torch.arange(4).repeat(4, 3)[:, :9]
    first = model.loss(tokens).item()
    for _ in range(40):
        optimiser.zero_grad()
        loss = model.loss(tokens)
        loss.backward()
        optimiser.step()
    assert first > 2
    assert loss.item() < 0.2
