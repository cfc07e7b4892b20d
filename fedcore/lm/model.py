"""TransformerLM: a causal transformer whose parts are switches of `LMModelConfig`.

Parameter names are those of Stanford's CS336. Biases, where switched on, are in all linear layers
but the output, and in LayerNorm: GPT-2 is one setting (`GPT2`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError
from fedcore.lm import ops
from fedcore.lm.layers import Block, Embedding, LayerCache, Linear, Rotary, norm_of
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
        """An empty cache, to be passed to `hidden`."""
        return [LayerCache() for _ in self.layers]

    def hidden(self, tokens: Tensor, cache: Sequence[LayerCache] | None = None) -> Tensor:
        """What the output matrix reads [B, T, d]; with a cache, the tokens follow those in it."""
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
        """Logits [..., V] of what `hidden` returns [..., d]."""
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
