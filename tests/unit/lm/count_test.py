"""Are the counts those of the model that is built, and the estimate as far off as it says?"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedcore.config_lm import LMModelConfig, OptimizerConfig
from fedcore.lm import count
from fedcore.lm.model import GPT2, TransformerLM
from fedcore.lm.optim import build_optimizer

SWITCHES: list[dict[str, Any]] = [
    {},
    {"tied": True},
    {"norm": "layernorm", "bias": True, "position": "learned"},
    {"norm": "none", "feed_forward": "silu"},
]


@pytest.mark.parametrize("switches", SWITCHES)
def test_the_parts_add_up_to_the_model_that_is_built(switches: dict[str, Any]) -> None:
    config = LMModelConfig(layers=2, width=32, context=8, **switches)
    model = TransformerLM(config, vocab_size=11, seed=0)
    expected = sum(p.numel() for p in model.parameters())
    assert sum(count.parameters(config, 11).values()) == expected


def test_the_parts_of_gpt2_are_those_worked_out_by_hand() -> None:
    d, layers = 768, 12
    assert count.parameters(GPT2, 50_257) == {
        "token embeddings": 50_257 * d,
        "position embeddings": 1024 * d,
        "attention": layers * (4 * d * d + 4 * d),
        "feed-forward": layers * (8 * d * d + 5 * d),
        "norms": (2 * layers + 1) * 2 * d,
        "output": 0,
    }


def test_the_estimate_lacks_one_matrix_of_swiglu() -> None:
    config = LMModelConfig(layers=12, width=768, heads=12, context=1024)
    parts, guess = count.parameters(config, 50_257), count.estimate(config, 50_257)
    exact = sum(parts.values())
    assert exact - guess == 12 * 768 * 2048 + parts["norms"]
    assert 1 - guess / exact == pytest.approx(0.12, abs=0.005)
    blocks = parts["attention"] + parts["feed-forward"]
    assert 12 * 768 * 2048 / blocks == pytest.approx(0.22, abs=0.005)


def test_the_estimate_is_close_without_a_gate() -> None:
    total = sum(count.parameters(GPT2, 50_257).values())
    assert count.estimate(GPT2, 50_257) / total == pytest.approx(1, abs=0.01)


def test_the_flops_of_gpt2_are_those_worked_out_by_hand() -> None:
    matrices = 12 * 12 * 768**2 + 50_257 * 768  # 123,532,032
    assert count.flops_per_token(GPT2, 50_257) == 6 * matrices + 12 * 12 * 768 * 1024
    assert count.flops_per_token(GPT2, 50_257) == 854_438_400


@pytest.mark.parametrize("name", ["adamw", "sgdm", "rmsprop", "signsgdm", "muon"])
def test_the_memory_is_what_the_optimiser_holds_after_a_step(name: str) -> None:
    model_config = LMModelConfig(layers=1, width=32, context=8)
    config = OptimizerConfig.model_validate({"name": name})
    model = TransformerLM(model_config, vocab_size=11, seed=0)
    optimiser = build_optimizer(model, config)
    model.loss(torch.zeros(1, 9, dtype=torch.int64)).backward()
    optimiser.step()
    kept = [v for state in optimiser.state.values() for k, v in state.items() if k != "step"]
    said = count.memory(model_config, 11, config)
    assert said.optimizer == sum(v.numel() * v.element_size() for v in kept)
    assert said.weights == said.gradients == sum(4 * p.numel() for p in model.parameters())
