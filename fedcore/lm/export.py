"""A model as files that others read: Hugging Face folders, and safetensors with our own names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError, StorageError
from fedcore.lm.model import TransformerLM
from fedcore.lm.ops import NORM_EPS
from fedcore.registry import nearest

Format = Literal["llama", "gpt2", "safetensors"]
Tensors = dict[str, Tensor]
Named = Iterator[tuple[str, Tensor]]

WEIGHTS = "model.safetensors"

NEEDS: dict[Format, dict[str, Any]] = {
    "llama": {
        "norm": "rmsnorm",
        "norm_place": "pre",
        "position": "rope",
        "feed_forward": "swiglu",
        "bias": False,
    },
    "gpt2": {
        "norm": "layernorm",
        "norm_place": "pre",
        "position": "learned",
        "feed_forward": "gelu",
        "bias": True,
    },
    "safetensors": {},
}
"""What each format can say."""


def check(config: LMModelConfig, form: Format) -> None:
    """`ConfigError` naming the first switch that the format has no counterpart for."""
    for switch, only in NEEDS[form].items():
        got = getattr(config, switch)
        if got != only:
            want = f"{only}, all that {form} has"
            raise ConfigError(f"lm.model.{switch}", got, want, "--format safetensors")


def halves(rows: Tensor, heads: int) -> Tensor:
    """Rows [H * D, ...] of q or k, from the pairs (2i, 2i + 1) to Llama's (i, i + D/2)."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def llama_config(config: LMModelConfig, vocab_size: int) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM with this shape, as transformers reads it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ff_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "max_position_embeddings": config.context,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_theta": config.rope_theta,  # transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }


def llama_weights(state: Tensors, config: LMModelConfig) -> Named:
    """Names and tensors of a LlamaForCausalLM."""
    yield "model.embed_tokens.weight", state["token_embeddings.weight"]
    yield "model.norm.weight", state["ln_final.weight"]
    if not config.tied:
        yield "lm_head.weight", state["lm_head.weight"]
    for n in range(config.layers):
        ours, theirs = f"layers.{n}", f"model.layers.{n}"
        for name in ("q", "k"):
            turned = halves(state[f"{ours}.attn.{name}_proj.weight"], config.heads)
            yield f"{theirs}.self_attn.{name}_proj.weight", turned
        for old, new in {
            "attn.v_proj": "self_attn.v_proj",
            "attn.output_proj": "self_attn.o_proj",
            "ffn.w1": "mlp.gate_proj",
            "ffn.w2": "mlp.down_proj",
            "ffn.w3": "mlp.up_proj",
            "ln1": "input_layernorm",
            "ln2": "post_attention_layernorm",
        }.items():
            yield f"{theirs}.{new}.weight", state[f"{ours}.{old}.weight"]


def gpt2_config(config: LMModelConfig, vocab_size: int) -> dict[str, Any]:
    """config.json of a GPT2LMHeadModel with this shape, as transformers reads it."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.ff_width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": NORM_EPS,
        "tie_word_embeddings": config.tied,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }


def gpt2_weights(state: Tensors, config: LMModelConfig) -> Named:
    """Names and tensors of a GPT2LMHeadModel, whose Conv1D holds matrices as [d_in, d_out]."""
    yield "transformer.wte.weight", state["token_embeddings.weight"]
    yield "transformer.wpe.weight", state["position_embeddings.weight"]
    if not config.tied:
        yield "lm_head.weight", state["lm_head.weight"]
    for kind in ("weight", "bias"):
        yield f"transformer.ln_f.{kind}", state[f"ln_final.{kind}"]
        for n in range(config.layers):
            ours, theirs = f"layers.{n}", f"transformer.h.{n}"
            qkv = torch.cat([state[f"{ours}.attn.{a}_proj.{kind}"] for a in "qkv"])
            yield f"{theirs}.attn.c_attn.{kind}", qkv.t()
            for old, new in {
                "attn.output_proj": "attn.c_proj",
                "ffn.w1": "mlp.c_fc",
                "ffn.w2": "mlp.c_proj",
            }.items():
                yield f"{theirs}.{new}.{kind}", state[f"{ours}.{old}.{kind}"].t()
            for norm in "12":
                yield f"{theirs}.ln_{norm}.{kind}", state[f"{ours}.ln{norm}.{kind}"]


def own_weights(state: Tensors, config: LMModelConfig) -> Named:
    """The weights under our own names (format safetensors)."""
    yield from state.items()


WRITERS: dict[Format, Callable[[Tensors, LMModelConfig], Named]] = {
    "llama": llama_weights,
    "gpt2": gpt2_weights,
    "safetensors": own_weights,
}
CONFIGS: dict[Format, Callable[[LMModelConfig, int], dict[str, Any]]] = {
    "llama": llama_config,
    "gpt2": gpt2_config,
}


def format_of(word: str) -> Format:
    """The format of that name; `ConfigError` with the nearest one."""
    for form in WRITERS:
        if form == word:
            return form
    raise ConfigError("--format", word, "a known format", nearest(word, list(WRITERS)))


def export_model(model: TransformerLM, out: Path, form: Format) -> Path:
    """Write the model to the folder `out`, in float32; gives the file of the weights.

    llama, gpt2: with a config.json, for transformers. safetensors: the file alone; its header says
    the model's settings. Raises `ConfigError` for a switch the format cannot say.
    """
    check(model.config, form)
    state = {name: value.detach().float().cpu() for name, value in model.state_dict().items()}
    weights = {k: v.contiguous() for k, v in WRITERS[form](state, model.config)}
    settings = model.config.model_dump_json()
    header = {"format": "pt", "lm.model": settings, "vocab_size": str(model.vocab_size)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        save_file(weights, out / WEIGHTS, header)
        if form in CONFIGS:
            facts = CONFIGS[form](model.config, model.vocab_size)
            (out / "config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise StorageError(str(out), str(error), "freeing space, or another folder") from error
    return out / WEIGHTS
