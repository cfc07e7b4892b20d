"""Is the model causal, exact in its parts, the same from any rank, and GPT-2 when asked?"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError
from fedcore.lm.model import GPT2, TransformerLM

SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "context": 24}
SWITCHES: list[dict[str, Any]] = [
    {},
    {"norm": "layernorm", "bias": True},
    {"norm": "none"},
    {"norm_place": "post"},
    {"position": "learned"},
    {"position": "none"},
    {"feed_forward": "silu"},
    {"feed_forward": "gelu", "tied": True},
]


def small(**switches: Any) -> TransformerLM:
    return TransformerLM(LMModelConfig(**{**SMALL, **switches}), vocab_size=50, seed=0)


def some_tokens(rows: int = 2, length: int = 24) -> Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(0))


def shaken(model: TransformerLM) -> TransformerLM:
    """With scales and biases that are not 1 and 0, so that leaving one out shows."""
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=source))
    return model.double()


@pytest.mark.parametrize("switches", SWITCHES)
def test_a_token_changes_no_logits_before_it(switches: dict[str, Any]) -> None:
    model, tokens = small(**switches), some_tokens()
    changed = tokens.clone()
    changed[:, 13] = (tokens[:, 13] + 1) % 50
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 24, 50)
    torch.testing.assert_close(before[:, :13], after[:, :13])
    assert (before[:, 13:] - after[:, 13:]).abs().amax((0, 2)).min() > 1e-4


def one_head(model: TransformerLM, n: int, x: Tensor, head: int) -> Tensor:
    """Attention of one head of layer n, as loops over places; x [T, d]."""
    state, D = dict(model.named_parameters()), model.config.width // model.config.heads
    rows = slice(head * D, (head + 1) * D)
    q, k, v = (x @ state[f"layers.{n}.attn.{a}_proj.weight"][rows].T for a in "qkv")
    turned = [torch.empty_like(q), torch.empty_like(k)]
    for t in range(len(x)):
        for i in range(0, D, 2):
            angle = t * model.config.rope_theta ** (-i / D)
            turn = x.new_tensor(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            )
            for source, target in zip((q, k), turned, strict=True):
                target[t, i : i + 2] = turn @ source[t, i : i + 2]
    rows_out = []
    for t in range(len(x)):
        weight = (turned[1][: t + 1] @ turned[0][t] / math.sqrt(D)).softmax(0)
        rows_out.append(weight @ v[: t + 1])
    return torch.stack(rows_out)


def by_hand(model: TransformerLM, tokens: Tensor) -> Tensor:
    """The default model written out from its parameters; tokens [T] -> logits [T, V]."""
    state = dict(model.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * state[f"{name}.weight"]

    x = state["token_embeddings.weight"][tokens]
    for n in range(model.config.layers):
        h = norm(x, f"layers.{n}.ln1")
        heads = [one_head(model, n, h, head) for head in range(model.config.heads)]
        x = x + torch.cat(heads, -1) @ state[f"layers.{n}.attn.output_proj.weight"].T
        h = norm(x, f"layers.{n}.ln2")
        w1, w2, w3 = (state[f"layers.{n}.ffn.w{i}.weight"] for i in (1, 2, 3))
        gate = h @ w1.T
        x = x + (gate * torch.sigmoid(gate) * (h @ w3.T)) @ w2.T
    return norm(x, "ln_final") @ state["lm_head.weight"].T


@torch.no_grad()
def test_the_default_model_agrees_with_its_formulas_written_out() -> None:
    model, tokens = shaken(small()), some_tokens(1, 9)
    torch.testing.assert_close(model(tokens)[0], by_hand(model, tokens[0]))


def test_the_names_of_parameters_are_those_of_cs336() -> None:
    layer = ["ln1", *(f"attn.{a}_proj" for a in ("q", "k", "v", "output")), "ln2"]
    layer += ["ffn.w1", "ffn.w2", "ffn.w3"]
    layers = [f"layers.{n}.{part}" for n in range(2) for part in layer]
    names = {f"{name}.weight" for name in ["token_embeddings", *layers, "ln_final", "lm_head"]}
    assert set(small().state_dict()) == names
    assert set(small(position="learned").state_dict()) - names == {"position_embeddings.weight"}
    assert names - set(small(tied=True).state_dict()) == {"lm_head.weight"}


def test_gpt2_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        model = TransformerLM(GPT2, vocab_size=50_257, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


@pytest.mark.parametrize("tied", [False, True])
def test_a_new_matrix_has_the_spread_of_its_rule(tied: bool) -> None:
    config = LMModelConfig(layers=1, width=128, context=16, tied=tied)
    state = TransformerLM(config, vocab_size=500, seed=0).state_dict()
    narrowed = 0.98658  # std of a normal cut at 3 of its standard deviations
    embedding = 0.02 if tied else 1.0
    expected = {
        "token_embeddings.weight": embedding,
        "layers.0.attn.q_proj.weight": math.sqrt(2 / 256),
        "layers.0.ffn.w2.weight": math.sqrt(2 / (128 + 320)),
    }
    for name, std in expected.items():
        assert state[name].std().item() == pytest.approx(std * narrowed, rel=0.03), name
        assert state[name].abs().max() <= 3 * std * (1 + 1e-6), name
    assert state["ln_final.weight"].eq(1).all()


def test_a_new_tied_model_knows_nothing() -> None:
    assert small(tied=True).loss(some_tokens()).item() == pytest.approx(math.log(50), rel=0.03)


def test_a_parameter_depends_on_the_seed_and_its_own_name_alone() -> None:
    torch.manual_seed(1)
    first = small().state_dict()
    torch.manual_seed(2)
    other = small(layers=3, position="learned", bias=True).state_dict()
    for name, value in first.items():
        assert torch.equal(value, other[name]), name
    elsewhere = TransformerLM(LMModelConfig(**SMALL), vocab_size=50, seed=1).state_dict()
    assert not torch.equal(first["lm_head.weight"], elsewhere["lm_head.weight"])
    twins = [f"layers.{n}.attn.q_proj.weight" for n in range(2)]
    assert not torch.equal(first[twins[0]], first[twins[1]])


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    small()
    assert torch.equal(before, torch.get_rng_state())


def test_with_targets_it_gives_the_mean_loss() -> None:
    model, tokens = small(), some_tokens()
    logits = model(tokens[:, :-1])
    expected = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(model(tokens[:, :-1], tokens[:, 1:]), expected)
    torch.testing.assert_close(model.loss(tokens), expected)


def test_activation_checkpointing_leaves_loss_and_gradients_as_they_are() -> None:
    plain, saving = small(), small()
    saving.activation_checkpointing = True
    losses = [model.loss(some_tokens()) for model in (plain, saving)]
    for loss in losses:
        loss.backward()
    assert torch.equal(losses[0], losses[1])
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert a.grad is not None, name
        assert torch.equal(a.grad, b.grad), name


@pytest.mark.parametrize("switches", SWITCHES)
def test_reading_in_pieces_with_a_cache_agrees_with_reading_at_once(
    switches: dict[str, Any],
) -> None:
    model, tokens = small(**switches).double(), some_tokens()
    cache, pieces = model.new_cache(), (10, 1, 1, 7, 5)
    read = [model.hidden(part, cache) for part in tokens.split(pieces, 1)]
    assert cache[0].length == 24
    torch.testing.assert_close(model.logits(torch.cat(read, 1)), model(tokens))


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 25, want at most lm.model.context = 24"):
        small()(some_tokens(1, 25))


def test_half_precision_keeps_the_angles_of_far_places_apart() -> None:
    model = small().bfloat16()
    assert model.rotary.turns.dtype == torch.float32
    assert torch.equal(model.rotary.turns, small().rotary.turns)
    loss = model.loss(some_tokens())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(small().loss(some_tokens()).item(), rel=0.02)


def test_a_model_made_without_memory_gets_its_angles_when_it_gets_memory() -> None:
    with torch.device("meta"):
        model = small()
    model.to_empty(device="cpu").load_state_dict(small().state_dict())
    assert torch.equal(model(some_tokens()), small()(some_tokens()))


def test_a_small_model_learns_to_repeat() -> None:
    model = small(layers=1)
    tokens = torch.arange(4).repeat(8, 7)[:, :25]
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(30):
        optimiser.zero_grad()
        loss = model.loss(tokens)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.05
