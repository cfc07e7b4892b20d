"""The functions of a language model, over any batch dimensions.

Where torch has the same function, that is the body: on a CPU it is as quick as the formula written
out, or quicker (`bench/lm_ops.py`). tests/unit/lm/ops_test.py holds each against its formula.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPS = 1e-5
"""Added to the mean square, or the variance, in a norm."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of log sum_v e^(z_v) - z_target, in nats, []; logits [..., V], targets int64 [...].

    Half-precision logits are widened first: their sum over V is taken in float32.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.reshape(-1, wide.shape[-1]), targets.flatten())


def softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """e^(z - max z) over its sum along `dim`; the shape of `logits`."""
    raised = (logits - logits.amax(dim, keepdim=True)).exp()
    return raised / raised.sum(dim, keepdim=True)


def rmsnorm(x: Tensor, weight: Tensor, eps: float = NORM_EPS) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32 inside; as x [..., d]."""
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    """silu(gate) * value, where silu(x) = x sigmoid(x); both [..., d_ff]."""
    return F.silu(gate) * value


def turns(theta: float, length: int, width: int) -> Tensor:
    """(cos, sin) of the angle t theta^(-2i/width) for place t and pair i: float64 [T, width/2, 2].

    RoFormer (arXiv 2104.09864), equation 34.
    """
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    return torch.stack([angles.cos(), angles.sin()], -1)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """x [..., T, H, D] with each pair (x_2i, x_2i+1) turned by its angle; turns [T, D/2, 2].

    In the precision of `turns`. One complex product: eagerly it is quickest (`bench/lm_ops.py`).
    torch.compile gets the real form, for its code generator knows no complex numbers.
    """
    pairs = x.to(turns.dtype).reshape(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():
        return turn_pairs(pairs, turns.unsqueeze(-3)).flatten(-2).type_as(x)
    turned = torch.view_as_complex(pairs) * torch.view_as_complex(turns).unsqueeze(-2)
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def turn_pairs(pairs: Tensor, turns: Tensor) -> Tensor:
    """(a, b) turned by (cos, sin): (a cos - b sin, a sin + b cos); [..., 2] each."""
    (a, b), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt D) v [..., T, D], each query seeing the keys up to its own place.

    q [..., T, D]; k, v [..., S, D]. The queries are the last T of the S places.
    """
    T, S = q.shape[-2], k.shape[-2]
    if T == S:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    seen = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """The l2 norm [] of all gradients together; they are scaled by min(1, M / (norm + 1e-6)).

    Nothing waits for the device.
    """
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)
