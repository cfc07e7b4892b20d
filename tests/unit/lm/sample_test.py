"""Does sampling follow the model's distribution, its cuts and its seed, and the window slide?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError
from fedcore.lm.model import TransformerLM
from fedcore.lm.sample import choose, generate, keep_top_k, keep_top_p

OUT = -torch.inf


def small(**switches: Any) -> TransformerLM:
    config = LMModelConfig(**{"layers": 2, "width": 32, "heads": 4, "context": 8, **switches})
    return TransformerLM(config, vocab_size=20, seed=0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prompt(length: int = 3) -> Tensor:
    return torch.arange(length)[None]


def slowly(model: TransformerLM, tokens: Tensor, new: int, generator: torch.Generator) -> Tensor:
    """Each token from a whole forward pass over the window, without a cache; temperature 0.8."""
    start = max(0, tokens.shape[1] - 8)
    for _ in range(new):
        if tokens.shape[1] - start > 8:
            start = tokens.shape[1] - 6
        logits = model(tokens[:, start:])[:, -1] / 0.8
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], 1)
    return tokens


@pytest.mark.parametrize("position", ["rope", "learned"])
@pytest.mark.parametrize("length", [1, 3, 8, 11])
@torch.no_grad()
def test_the_cache_gives_the_tokens_of_whole_forward_passes(position: str, length: int) -> None:
    model = small(position=position)
    got = generate(model, prompt(length), 20, temperature=0.8, generator=seeded())
    assert got.shape == (1, length + 20)
    assert torch.equal(got, slowly(model, prompt(length), 20, seeded()))


def test_a_context_of_one_token_is_enough() -> None:
    assert generate(small(context=1), prompt(3), 5, generator=seeded()).shape == (1, 8)


def test_the_seed_decides_and_the_global_generator_does_not() -> None:
    torch.manual_seed(0)
    first = generate(small(), prompt(), 20, generator=seeded())
    torch.manual_seed(1)
    assert torch.equal(first, generate(small(), prompt(), 20, generator=seeded()))
    assert not torch.equal(first, generate(small(), prompt(), 20, generator=seeded(1)))


def test_temperature_zero_takes_the_likeliest_token() -> None:
    model = small()
    got = generate(model, prompt(), 1, temperature=0.0, generator=seeded())
    assert got[0, -1] == model(prompt())[0, -1].argmax()


def test_several_prompts_go_on_each_by_itself() -> None:
    model, both = small(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    together = generate(model, both, 9, temperature=0.0, generator=seeded())
    for row in range(2):
        alone = generate(model, both[row : row + 1], 9, temperature=0.0, generator=seeded())
        assert torch.equal(together[row : row + 1], alone)


def test_tokens_come_as_often_as_the_model_says() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = (2 * probabilities.log()).expand(20_000, 4)  # at temperature 2 these probabilities
    drawn = choose(logits, 2.0, None, 1.0, seeded())
    shares = drawn.flatten().bincount(minlength=4) / 20_000
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=0.015)


def test_top_k_keeps_the_k_likeliest() -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0], [5.0, 0.0, -1.0, 9.0]])
    expected = torch.tensor([[OUT, 4.0, 3.0, OUT], [5.0, OUT, OUT, 9.0]])
    assert torch.equal(keep_top_k(logits, 2), expected)
    assert torch.equal(keep_top_k(logits, 100), logits)


@pytest.mark.parametrize(
    ("p", "kept"),
    [(0.01, [1]), (0.5, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [1, 3, 0]), (0.99, range(4))],
)
def test_top_p_keeps_the_fewest_that_have_the_share(p: float, kept: list[int]) -> None:
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    left = keep_top_p(logits, p).isfinite()[0].nonzero().flatten()
    assert set(left.tolist()) == set(kept)


def test_cut_tokens_are_never_drawn() -> None:
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(2000, 4)
    assert set(choose(logits, 1.0, 3, 1.0, seeded()).flatten().tolist()) == {0, 1, 3}
    assert set(choose(logits, 1.0, None, 0.6, seeded()).flatten().tolist()) == {1, 3}


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": 0}]
)
def test_settings_that_cannot_work_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        generate(small(), prompt(), 1, generator=seeded(), **wrong)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="prompt"):
        generate(small(), prompt(0), 1, generator=seeded())
