"""Text from a model: one token after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcore.errors import ConfigError
from fedcore.lm import ops
from fedcore.lm.model import TransformerLM


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Logits [..., V] with all but the k largest (and their equals) at -inf."""
    least = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Logits [..., V] of the fewest likeliest tokens with a share of p or more; others at -inf.

    Nucleus sampling (arXiv 1904.09751); one token is always left.
    """
    ordered, places = logits.sort(descending=True, stable=True)
    likelier = ops.softmax(ordered).cumsum(-1) - ops.softmax(ordered)  # share of those before
    drop = likelier >= p
    drop[..., 0] = False
    return logits.masked_fill(drop.gather(-1, places.argsort()), -torch.inf)


def choose(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float,
    generator: torch.Generator,
) -> Tensor:
    """One token of each row, int64 [B, 1], of logits [B, V]; temperature 0 takes the likeliest.

    Drawn on the CPU, where `generator` lives: a seed gives the same text on any device.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    scaled = logits.float().cpu() / temperature
    if top_k is not None:
        scaled = keep_top_k(scaled, top_k)
    if top_p < 1:
        scaled = keep_top_p(scaled, top_p)
    drawn = torch.multinomial(ops.softmax(scaled), 1, generator=generator)
    return drawn.to(logits.device)


def check(tokens: Tensor, temperature: float, top_k: int | None, top_p: float) -> None:
    """`ConfigError` for what cannot be sampled from."""
    if tokens.shape[1] == 0:
        raise ConfigError("prompt", "", "at least one token", "the token that ends a document")
    if not 0 <= temperature < float("inf"):
        raise ConfigError("temperature", temperature, "a finite number of at least 0", "1")
    if not 0 < top_p <= 1:
        raise ConfigError("top_p", top_p, "a share, above 0 and at most 1", "0.95")
    if top_k is not None and top_k < 1:
        raise ConfigError("top_k", top_k, "at least 1", "50")


@torch.no_grad()
def generate(
    model: TransformerLM,
    tokens: Tensor,
    new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    generator: torch.Generator,
) -> Tensor:
    """The prompt tokens int64 [B, n] and what follows them: int64 [B, n + new_tokens].

    Each token is read once. When the context is full, its last three quarters are read anew: the
    window slides a quarter at a time, for a cached key has seen what lay before the window.
    """
    check(tokens, temperature, top_k, top_p)
    context = model.config.context
    cache, unread = model.new_cache(), tokens[:, -context:]
    for _ in range(new_tokens):
        if cache[0].length + unread.shape[1] > context:
            cache, unread = model.new_cache(), tokens[:, -(context - context // 4) :]
        logits = model.logits(model.hidden(unread, cache)[:, -1])
        unread = choose(logits, temperature, top_k, top_p, generator)
        tokens = torch.cat([tokens, unread], 1)
    return tokens
