"""The yardstick of bench/lm_step.py: GPT-2 and its training step with nothing but torch.

Written from the papers' description, in the manner of public teaching code: one matrix for queries,
keys and values, learned places, pre-norm, GELU, torch's attention, fused AdamW, clipping, cosine.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MinimalBlock(nn.Module):
    """Attention and a GELU layer of 4 d, each after its norm and added to x [B, T, d]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, d = x.shape
        parts = self.qkv(self.norm1(x)).split(d, dim=2)
        q, k, v = (a.view(B, T, self.heads, d // self.heads).transpose(1, 2) for a in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).contiguous().view(B, T, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class MinimalGPT(nn.Module):
    """Mean loss [] of tokens [B, T] and their successors [B, T]."""

    def __init__(
        self, layers: int, width: int, heads: int, context: int, vocab: int, tied: bool
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(MinimalBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.apply(self._initialise)
        if tied:
            self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class MinimalLoop:
    """Batches drawn from a flat array of tokens, and the step made with each."""

    def __init__(
        self, model: MinimalGPT, data: np.ndarray, batch: int, context: int, steps: int, bf16: bool
    ) -> None:
        self.model, self.data, self.steps, self.bf16 = model, data, steps, bf16
        self.batch, self.context, self.called = batch, context, model
        self.device = next(model.parameters()).device
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)

    def draw(self) -> tuple[Tensor, Tensor]:
        """(x, y) int64 [B, T] from uniform places."""
        starts = torch.randint(len(self.data) - self.context, (self.batch,)).tolist()
        rows = [
            torch.from_numpy(self.data[i : i + self.context + 1].astype(np.int64)) for i in starts
        ]
        batch = torch.stack(rows)
        if self.device.type == "cuda":
            batch = batch.pin_memory().to(self.device, non_blocking=True)
        return batch[:, :-1], batch[:, 1:]

    def step(self, step: int) -> Tensor:
        """One optimiser step; its loss []."""
        rate = 1e-3 * (0.55 + 0.45 * math.cos(math.pi * step / self.steps))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        x, y = self.draw()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss: Tensor = self.called(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss
