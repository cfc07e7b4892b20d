"""How many parameters a model has and what a token costs, before anything is trained."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedcore.config_lm import LMModelConfig, OptimizerConfig
from fedcore.lm.model import TransformerLM
from fedcore.lm.optim import group_of, kinds

PARTS = (
    "token embeddings",
    "position embeddings",
    "attention",
    "feed-forward",
    "norms",
    "output",
)


def part_of(name: str) -> str:
    """The part of the model a parameter belongs to."""
    signs = {
        "token_embeddings": "token embeddings",
        "position_embeddings": "position embeddings",
        ".attn.": "attention",
        ".ffn.": "feed-forward",
        "lm_head": "output",
    }
    return next((part for sign, part in signs.items() if sign in name), "norms")


def bare(config: LMModelConfig, vocab_size: int) -> TransformerLM:
    """The model without memory for its parameters."""
    with torch.device("meta"):
        return TransformerLM(config, vocab_size, seed=0)


def parameters(config: LMModelConfig, vocab_size: int) -> dict[str, int]:
    """Parameters of each part, exactly; a tied output matrix counts as token embeddings."""
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in bare(config, vocab_size).named_parameters():
        counts[part_of(name)] += parameter.numel()
    return counts


def estimate(config: LMModelConfig, vocab_size: int) -> int:
    """N (4 d^2 + 2 d d_ff) + embeddings + output, the usual rule.

    It has no norms, biases or places, and two feed-forward matrices where swiglu has three: with
    d_ff = 8/3 d it is 22% low in the blocks, and 12% in a model of GPT-2's shape.
    """
    d = config.width
    blocks = config.layers * (4 * d * d + 2 * d * config.ff_width)
    return blocks + vocab_size * d * (1 if config.tied else 2)


def flops_per_token(config: LMModelConfig, vocab_size: int) -> int:
    """Floating-point operations of a training step per token: 6 P + 12 N d T.

    P: parameters of all matrices that multiply (the output matrix, tied or not, but no look-up).
    The second term is attention over all T places, as in PaLM (arXiv 2204.02311, appendix B): MFU
    by it is comparable with published ones, though causal attention can skip half of it.
    """
    hidden = sum(
        parameter.numel()
        for name, parameter in bare(config, vocab_size).named_parameters()
        if part_of(name) in ("attention", "feed-forward") and parameter.ndim == 2
    )
    matrices = hidden + vocab_size * config.width
    return 6 * matrices + 12 * config.layers * config.width * config.context


class Memory(NamedTuple):
    """Bytes that training holds for its whole length, in float32 and on one rank."""

    weights: int
    gradients: int
    optimizer: int


def memory(config: LMModelConfig, vocab_size: int, optimizer: OptimizerConfig) -> Memory:
    """4 bytes for each parameter, each gradient, and each moment the optimiser keeps."""
    model = bare(config, vocab_size)
    sizes = {name: 4 * parameter.numel() for name, parameter in model.named_parameters()}
    two = {
        name
        for name, kind in kinds(model).items()
        if optimizer.name == "adamw"
        or (optimizer.name == "muon" and group_of(name, kind, optimizer) != "muon")
    }
    moments = sum(size * (2 if name in two else 1) for name, size in sizes.items())
    return Memory(sum(sizes.values()), sum(sizes.values()), moments)
