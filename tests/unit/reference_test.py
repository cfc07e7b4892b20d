"""Is every key of a configuration documented, and the page of them up to date?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.config import RunConfig
from fedcore.config_text import known_keys
from fedcore.config_words import parts
from launcher import reference
from launcher.commands import app

PAGE = Path(__file__).parent.parent.parent / "docs" / "config.md"


def test_the_page_is_what_the_models_say() -> None:
    """Else: fedcore config > docs/config.md."""
    assert PAGE.read_text() == reference.page()


def test_every_key_and_section_is_there_with_its_effect() -> None:
    sections = list(parts(RunConfig))
    named = [part.name for part in sections if part.name]
    keys = [key for part in sections for key in part.keys]
    assert sorted([*named, *(key.name for key in keys)]) == sorted(known_keys(RunConfig))
    assert all(part.about for part in sections)
    assert all(key.about and key.values for key in keys)
    assert [key.name for key in keys if not key.default] == ["lm.scale_for_batch.reference"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("clients.width", ["a whole number ≥ 1 or auto; default 1", "in a lane"]),
        ("data.size", ["a whole number ≥ 4 and ≤ 4,096 or null; default null"]),
        ("checkpoint", ["checkpoint: ", "checkpoint.keep_best: true or false; default true"]),
        ("lm.scale_for_batch.reference", ["default (must be given)"]),
    ],
)
def test_one_key_is_explained(key: str, words: list[str]) -> None:
    said = CliRunner().invoke(app, ["config", key])
    assert said.exit_code == 0
    assert all(word in said.stdout for word in words), said.stdout


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    said = CliRunner().invoke(app, ["config", "clients.widht"])
    assert said.exit_code == 2
    assert "clients.width" in said.output


def test_the_schema_is_json_for_editors() -> None:
    schema = json.loads(CliRunner().invoke(app, ["config", "--schema"]).stdout)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(RunConfig.model_fields)
