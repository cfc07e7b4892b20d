"""Is every text and every value either a configuration or told?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.config import RunConfig
from fedcore.config_text import known_keys, read_yaml, with_overrides
from launcher import cli, experiments
from launcher.build import check_names
from tests.unit.fuzz.hostile import REFUSED, VALUES, bytes_changed, cases, read, value_changed

pytestmark = pytest.mark.broad

QUICK = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KEYS = known_keys(RunConfig)
LEAVES = st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=20)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def understood(values: Any) -> RunConfig:
    """A configuration, which is the same after it was written and read."""
    config = RunConfig.of(values)
    again = RunConfig.of(yaml.safe_load(config.dump()))
    assert again.digest() == config.digest()
    if config.lm is None:
        check_names(config)
    return config


@QUICK
@given(st.sampled_from(KEYS), TREES)
def test_any_value_of_any_key_is_a_configuration_or_told(key: str, value: Any) -> None:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    read(lambda: understood(nested))


@QUICK
@given(st.dictionaries(st.text(max_size=10), TREES, max_size=3))
def test_any_mapping_is_a_configuration_or_told(values: dict[str, Any]) -> None:
    read(lambda: understood(values))


@QUICK
@given(st.text(max_size=80))
def test_any_text_is_yaml_or_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    read(lambda: read_yaml(file))
    read(lambda: with_overrides({}, [f"a.b={text}"]))
    read(lambda: with_overrides({}, [text]))


@pytest.mark.parametrize("name", ["smoke", "study_lambda", "lm_smoke", "lm/diloco"])
def test_a_damaged_file_is_a_configuration_or_told(name: str, tmp_path: Path) -> None:
    good, file = cli.config_path(name).read_bytes(), tmp_path / "x.yaml"
    met = set()
    for draws in cases(f"yaml {name}", 150):
        file.write_bytes(bytes_changed(good, draws))
        met.add(read(lambda: RunConfig.load(file)) is REFUSED)
    assert met == {True, False}


@pytest.mark.parametrize("name", ["smoke", "lm_smoke"])
def test_damaged_values_are_a_configuration_or_told(name: str) -> None:
    good = cli.load_config(name).plain()
    for draws in cases(f"values {name}", 400):
        changed = value_changed(good, draws)
        if isinstance(changed, dict):
            read(lambda changed=changed: understood(changed))


def test_a_damaged_list_of_experiments_is_a_list_or_told(tmp_path: Path) -> None:
    values = {
        "lm": {"steps": 2},
        "seeds": [0, 1],
        "experiments": [
            {"name": "a"},
            {"name": "b", "set": {"lm.steps": 3}, "each": {"lm.optimizer.lr": [0.1, 0.2]}},
        ],
    }
    file = tmp_path / "x.yaml"
    for draws in cases("list", 250):
        file.write_text(json.dumps(value_changed(values, draws)))
        found = read(lambda: experiments.read(str(file), [], tmp_path))
        if found is not REFUSED:
            assert all(run.run_dir.parent == tmp_path for run in found)
