"""TransformerLM: a causal transformer whose parts are switches of `LMModelConfig`.

Parameter names are those of Stanford's CS336. Biases, where switched on, are in all linear layers
but the output, and in LayerNorm: GPT-2 is one setting (`GPT2`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError
from fedcore.lm import ops
from fedcore.seeds import EVERYONE, generator

GPT2 = LMModelConfig(
    layers=12,
    width=768,
    heads=12,
    context=1024,
    norm="layernorm",
    position="learned",
    feed_forward="gelu",
    tied=True,
    bias=True,
)
"""GPT-2 124M (with a vocabulary of 50,257)."""


class Linear(nn.Linear):
    """y = x W^T (+ b)."""

    def reset_parameters(self) -> None:
        """Left to `initialise`: it knows the parameter's name, and so its address."""


class Embedding(nn.Embedding):
    """A row for each index."""

    def reset_parameters(self) -> None:
        """Left to `initialise`."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return ops.rmsnorm(x, self.weight)


def norm_of(config: LMModelConfig) -> nn.Module:
    """One norm over the width, as configured."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.width, ops.NORM_EPS, bias=config.bias)
    return RMSNorm(config.width) if config.norm == "rmsnorm" else nn.Identity()


class Rotary(nn.Module):
    """The turns of all places; no parameter, and in no state dict."""

    turns: Tensor  # [T, D/2, 2]

    def __init__(self, config: LMModelConfig) -> None:
        super().__init__()
        self._shape = (config.rope_theta, config.context, config.width // config.heads)
        self.register_buffer("turns", ops.turns(*self._shape).float(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        """Moved with the model, but never narrowed: bfloat16 has no 1,000 different angles."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        dtype = torch.promote_types(self.turns.dtype, torch.float32)
        self.turns = ops.turns(*self._shape).to(self.turns.device, dtype)
        return self


class LayerCache:
    """Keys and values [B, H, S, D] of the S tokens one layer has read."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """S."""
        return 0 if self.kept is None else self.kept[0].shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, those of the new tokens at the end."""
        old = self.kept
        self.kept = (
            (k, v) if old is None else (torch.cat([old[0], k], 2), torch.cat([old[1], v], 2))
        )
        return self.kept


class Attention(nn.Module):
    """Causal attention with several heads."""

    def __init__(self, config: LMModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj = Linear(config.width, config.width, config.bias)
        self.k_proj = Linear(config.width, config.width, config.bias)
        self.v_proj = Linear(config.width, config.width, config.bias)
        self.output_proj = Linear(config.width, config.width, config.bias)

    def forward(self, x: Tensor, turns: Tensor | None, cache: LayerCache | None) -> Tensor:
        """x [B, T, d] -> [B, T, d]; turns [T, D/2, 2] of these T places."""
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1))  # [B, T, H, D]
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if turns is not None:
            q, k = ops.rotate(q, turns), ops.rotate(k, turns)
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = ops.causal_attention(q, k, v)
        out: Tensor = self.output_proj(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x), or w2(f(w1 x)) with f SiLU or tanh-GELU."""

    def __init__(self, config: LMModelConfig) -> None:
        super().__init__()
        self.kind = config.feed_forward
        self.w1 = Linear(config.width, config.ff_width, config.bias)
        self.w2 = Linear(config.ff_width, config.width, config.bias)
        if self.kind == "swiglu":
            self.w3 = Linear(config.width, config.ff_width, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d]."""
        h = self.w1(x)
        if self.kind == "swiglu":
            h = ops.swiglu(h, self.w3(x))
        else:
            h = F.silu(h) if self.kind == "silu" else F.gelu(h, approximate="tanh")
        out: Tensor = self.w2(h)
        return out


class Block(nn.Module):
    """Attention and feed-forward, each with its norm and its residual connection."""

    def __init__(self, config: LMModelConfig) -> None:
        super().__init__()
        self.pre = config.norm_place == "pre"
        self.ln1, self.attn = norm_of(config), Attention(config)
        self.ln2, self.ffn = norm_of(config), FeedForward(config)

    def forward(self, x: Tensor, turns: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [B, T, d] -> [B, T, d]."""
        if self.pre:
            x = x + self.attn(self.ln1(x), turns, cache)
            x = x + self.ffn(self.ln2(x))
        else:
            x = self.ln1(x + self.attn(x, turns, cache))
            x = self.ln2(x + self.ffn(x))
        return x


class TransformerLM(nn.Module):
    """Logits of the next token. Tied, there is no `lm_head`: the token embedding is used twice."""

    def __init__(self, config: LMModelConfig, vocab_size: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.activation_checkpointing = False
        self.token_embeddings = Embedding(vocab_size, config.width)
        if config.position == "learned":
            self.position_embeddings = Embedding(config.context, config.width)
        if config.position == "rope":
            self.rotary = Rotary(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_final = norm_of(config)
        if not config.tied:
            self.lm_head = Linear(config.width, vocab_size, bias=False)
        initialise(self, seed)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of tokens int64 [B, T]; with targets [B, T] their mean loss, [] nats."""
        logits = self.logits(self.hidden(tokens))
        return logits if targets is None else ops.cross_entropy(logits, targets)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean loss [], in nats, of predicting tokens[:, 1:] of int64 [B, T + 1]."""
        mean: Tensor = self(tokens[:, :-1], tokens[:, 1:])
        return mean

    def new_cache(self) -> list[LayerCache]:
        """An empty cache, for `hidden`."""
        return [LayerCache() for _ in self.layers]

    def hidden(self, tokens: Tensor, cache: Sequence[LayerCache] | None = None) -> Tensor:
        """What the output matrix reads, [B, T, d]; with a cache the tokens follow those in it."""
        start = cache[0].length if cache else 0
        end = start + tokens.shape[1]
        if end > self.config.context:
            raise ConfigError("tokens", end, f"at most lm.model.context = {self.config.context}")
        x: Tensor = self.token_embeddings(tokens)
        if self.config.position == "learned":
            x = x + self.position_embeddings(torch.arange(start, end, device=tokens.device))
        turns = self.rotary.turns[start:end] if self.config.position == "rope" else None
        for index, block in enumerate(self.layers):
            if self.activation_checkpointing and cache is None:
                x = checkpoint(block, x, turns, use_reentrant=False)
            else:
                x = block(x, turns, cache[index] if cache else None)
        out: Tensor = self.ln_final(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., V]."""
        head = self.token_embeddings if self.config.tied else self.lm_head
        return F.linear(hidden, head.weight)


def spread(module: nn.Module, tied: bool) -> float:
    """Standard deviation of a new matrix: sqrt(2 / (d_in + d_out)); of an embedding 1.

    Tied it is GPT-2's 0.02: as the output matrix, rows of length sqrt d would make logits of
    that size, and a first loss far above log V.
    """
    if isinstance(module, nn.Embedding):
        return 0.02 if tied else 1.0
    return math.sqrt(2 / sum(module.weight.shape))  # type: ignore[arg-type]


@torch.no_grad()
def initialise(model: TransformerLM, seed: int) -> None:
    """Matrices from a normal cut at 3 standard deviations, biases 0, scales of norms 1.

    Each is drawn on the CPU at the address of its name: the same on any device and rank, and
    whatever other parameters there are.
    """
    for path, module in model.named_modules():
        if not isinstance(module, Linear | Embedding) or module.weight.is_meta:
            continue
        draw = torch.empty(module.weight.shape)
        std = spread(module, model.config.tied)
        source = generator(seed, EVERYONE, 0, f"lm/init/{path}.weight")
        nn.init.trunc_normal_(draw, 0.0, std, -3 * std, 3 * std, generator=source)
        module.weight.copy_(draw)
        if isinstance(module, Linear) and module.bias is not None:
            module.bias.zero_()
