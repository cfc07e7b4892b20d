"""Is what an export or a sample starts from a model or told, whatever the index says?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.checkpoint_index import sealed
from launcher.exporting import WHATS, Exporter
from launcher.lm_stored import load_stored
from tests.lm_toy import built, config_of
from tests.unit.export_test import trained
from tests.unit.fuzz.hostile import REFUSED, VALUES, cases, read, value_changed

pytestmark = pytest.mark.broad


def over(folder: Path, seed: str, count: int, key: str, act: Callable[[], Any]) -> set[bool]:
    """Whether `act` was refused, over changes of the facts (half of them of `key`), sealed anew."""
    file, met = folder / "index.json", set()
    good = file.read_text()
    try:
        for draws in cases(seed, count):
            index = json.loads(good)
            facts = index["facts"]
            if draws.random() < 0.5 and facts[key]:
                facts[key] = value_changed(facts[key], draws)
            else:
                name = draws.choice([*facts])
                facts[name] = draws.choice(VALUES)
            file.write_text(json.dumps(sealed(index)))
            met.add(read(act) is REFUSED)
    finally:
        file.write_text(good)
    return met


def test_an_export_of_any_facts_is_a_model_or_told(tmp_path: Path) -> None:
    folder = trained(tmp_path) / "checkpoints" / "round_00002"

    def act() -> None:
        found = Exporter(folder)
        for what in WHATS:
            found.tensors(what)
            found.facts(what)

    assert over(folder, "export", 50, "model", act) == {True, False}


def test_a_language_model_of_any_facts_is_one_or_told(tmp_path: Path) -> None:
    built(config_of(tmp_path), tmp_path)[0].run()
    folder = tmp_path / "run" / "checkpoints" / "step_00000012"
    for key in ("run", "vocab_size"):
        file = folder / "index.json"
        assert key in json.loads(file.read_text())["facts"]
    met = over(folder, "sample", 60, "run", lambda: load_stored(folder))
    assert met == {True, False}


@pytest.mark.parametrize("vocab_size", [10**12, 2**40])
def test_no_memory_is_taken_for_a_model_that_is_not_there(vocab_size: int, tmp_path: Path) -> None:
    built(config_of(tmp_path), tmp_path)[0].run()
    file = tmp_path / "run" / "checkpoints" / "step_00000012" / "index.json"
    index = json.loads(file.read_text())
    index["facts"]["vocab_size"] = vocab_size
    file.write_text(json.dumps(sealed(index)))
    assert read(lambda: load_stored(file.parent)) is REFUSED
