"""The layers of a `TransformerLM`, each as `LMModelConfig` switches it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcore.config_lm import LMModelConfig
from fedcore.lm import ops


class Linear(nn.Linear):
    """y = x W^T (+ b)."""

    def reset_parameters(self) -> None:
        """Left to `initialise`: it knows the parameter's name, and so its address."""


class Embedding(nn.Embedding):
    """Embeddings [..., d] of indices [...]: a row of the table each."""

    def reset_parameters(self) -> None:
        """Left to `initialise`, as in `Linear`."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis (Zhang & Sennrich 2019)."""

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
    """The rotary angles of all positions; no parameter, and not in the state dict."""

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
        """S, the number of tokens whose keys and values are kept."""
        return 0 if self.kept is None else self.kept[0].shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values [B, H, S, D] kept so far, those of the new tokens at the end."""
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
