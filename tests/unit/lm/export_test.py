"""Does transformers compute the same logits from an exported model?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError, StorageError
from fedcore.lm.export import Format, export_model
from fedcore.lm.model import TransformerLM

GPT2: dict[str, Any] = {
    "norm": "layernorm",
    "position": "learned",
    "feed_forward": "gelu",
    "bias": True,
}
SHAPE: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "context": 16}


def model_of(**switches: Any) -> TransformerLM:
    """A model none of whose parameters has its first value: no scale 1, no bias 0."""
    model = TransformerLM(LMModelConfig(**{**SHAPE, **switches}), vocab_size=40, seed=0)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=source))
    return model


def some_tokens() -> Tensor:
    return torch.randint(40, (3, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("form", "switches"),
    [
        ("llama", {}),
        ("llama", {"tied": True}),
        ("llama", {"rope_theta": 500.0, "hidden": 48}),
        ("gpt2", {**GPT2, "tied": True}),
        ("gpt2", {**GPT2, "hidden": 48}),
    ],
)
@torch.no_grad()
def test_transformers_computes_the_same_logits(
    form: Format, switches: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    model = model_of(**switches)
    export_model(model, tmp_path / "out", form)
    kind = {"llama": transformers.LlamaForCausalLM, "gpt2": transformers.GPT2LMHeadModel}[form]
    read, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    theirs = read.eval()(some_tokens()).logits
    torch.testing.assert_close(theirs, model(some_tokens()), rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in read.parameters()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("form", "switches", "named"),
    [
        ("llama", {"norm": "layernorm"}, "lm.model.norm"),
        ("llama", {"norm_place": "post"}, "lm.model.norm_place"),
        ("llama", {"position": "learned"}, "lm.model.position"),
        ("llama", {"feed_forward": "silu"}, "lm.model.feed_forward"),
        ("llama", {"bias": True}, "lm.model.bias"),
        ("gpt2", {}, "lm.model.norm"),
        ("gpt2", {**GPT2, "bias": False}, "lm.model.bias"),
    ],
)
def test_a_switch_without_counterpart_is_named_and_nothing_is_written(
    form: Format, switches: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: .*--format safetensors"):
        export_model(model_of(**switches), tmp_path / "out", form)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("switches", [{}, {"tied": True}, {"norm": "none", "position": "none"}])
def test_safetensors_alone_is_enough_to_build_the_model_again(
    switches: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(**switches)
    file = export_model(model, tmp_path, "safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    with safe_open(file, framework="pt") as opened:
        header = opened.metadata()
        state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    config = LMModelConfig.model_validate(json.loads(header["lm.model"]))
    again = TransformerLM(config, int(header["vocab_size"]), seed=1)
    again.load_state_dict(state)
    assert torch.equal(again(some_tokens()), model(some_tokens()))


def test_half_precision_is_exported_in_float32(tmp_path: Path) -> None:
    file = export_model(model_of().bfloat16(), tmp_path, "llama")
    with safe_open(file, framework="pt") as opened:
        assert {opened.get_tensor(name).dtype for name in opened.keys()} == {  # noqa: SIM118
            torch.float32
        }


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match="taken"):
        export_model(model_of(), tmp_path / "taken", "llama")
