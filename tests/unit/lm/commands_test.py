"""Does `fedcore lm params` show the exact counts, and is a prompt continued as text?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedcore.config_lm import LMModelConfig
from fedcore.errors import ConfigError
from fedcore.lm.model import TransformerLM
from launcher.commands import app
from launcher.lm_model_commands import continued


class Bytes:
    """Bytes and an end, as in data_shards."""

    vocab_size, end = 257, 256

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        return [text.encode() for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("<end>" if i == self.end else chr(i) for i in ids)


def params(tmp_path: Path, *words: str, section: str = "lm: {}") -> Result:
    config = tmp_path / "some.yaml"
    config.write_text(section + "\n")
    return CliRunner().invoke(app, ["lm", "params", str(config), *words])


def rows(result: Result) -> dict[str, str]:
    lines = [line.rsplit(None, 2) for line in result.output.splitlines()]
    return {line[0].strip(): line[1] for line in lines if len(line) == 3}


def test_the_table_has_the_parts_of_the_default_model(tmp_path: Path) -> None:
    result = params(tmp_path)
    assert result.exit_code == 0
    found = rows(result)
    assert found["attention"] == f"{4 * 4 * 256 * 256:,}"
    assert found["feed-forward"] == f"{4 * 3 * 256 * 704:,}"
    assert found["output"] == found["token embeddings"] == f"{257 * 256:,}"
    total = 4 * 4 * 256**2 + 4 * 3 * 256 * 704 + 2 * 257 * 256 + 9 * 256
    assert found["total"] == f"{total:,}"
    assert f"{8 * total:,} bytes" in result.output  # AdamW's two moments


def test_gpt2_is_a_few_settings(tmp_path: Path) -> None:
    model = (
        "{layers: 12, width: 768, heads: 12, context: 1024, norm: layernorm, position: learned,"
        " feed_forward: gelu, tied: true, bias: true}"
    )
    result = params(tmp_path, "--vocab", "50257", section=f"lm: {{model: {model}}}")
    assert rows(result)["total"] == "124,439,808"


def test_a_vocabulary_from_disk_is_read_or_its_size_given(tmp_path: Path) -> None:
    section = "lm: {data: {tokenizer: file, vocabulary: some.json}}"
    result = params(tmp_path, section=section)
    assert result.exit_code == 2
    assert "some.json" in result.output
    assert params(tmp_path, "--vocab", "300", section=section).exit_code == 0


def small(vocab_size: int = 257) -> TransformerLM:
    config = LMModelConfig(layers=1, width=32, heads=2, context=16)
    return TransformerLM(config, vocab_size, seed=0)


def test_a_prompt_is_continued_by_as_many_tokens_and_the_seed_decides() -> None:
    settings: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9}
    text = continued(small(), Bytes(), "def ", 30, seed=1, **settings)
    assert text.startswith("def ")
    assert len(text.replace("<end>", "e")) == 34
    assert text == continued(small(), Bytes(), "def ", 30, seed=1, **settings)
    assert text != continued(small(), Bytes(), "def ", 30, seed=2, **settings)


def test_an_empty_prompt_begins_a_document() -> None:
    text = continued(small(), Bytes(), "", 5, temperature=0.0)
    expected = continued(small(), Bytes(), "", 4, temperature=0.0)
    assert text.startswith(expected)
    assert len(text.replace("<end>", "e")) == 5


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokenizer: got 257"):
        continued(small(vocab_size=100), Bytes(), "a", 1)
