"""Is every mistake in a configuration answered in a few plain words, and with a way out?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedcore.config import RunConfig
from fedcore.config_text import put
from fedcore.config_words import keys_of
from fedcore.errors import FedError
from launcher import main
from tests.unit.wrong_configs import DATA, FILES, LM, PATHS, SET

pytestmark = pytest.mark.broad

JARGON = re.compile(
    r"Input should|type=|value_error|pydantic|Traceback|NoneType|<class|__|Error\b|Section|"
    r"Config\b|unicode string|valid string|\bNone\b|\bTrue\b|\bFalse\b|mapping start|token"
)
SCREEN = 80  # columns
Wanted = tuple[str, str, str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(words: list[str], wanted: Wanted, capsys: pytest.CaptureFixture[str], code: int) -> None:
    """Asserts what is common to all answers."""
    assert main.main(["--dry-run", *words]) == code
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("fedcore: ")
    assert [word for word in wanted if word not in said.err] == [], said.err
    assert not JARGON.search(said.err), said.err
    assert sum(1 + len(line) // SCREEN for line in said.err.splitlines()) <= 6, said.err


@pytest.mark.parametrize("override", SET)
def test_a_wrong_word_for_set_is_answered(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(["--set", override], SET[override], capsys, 2)


@pytest.mark.parametrize("override", LM)
def test_a_wrong_word_for_a_language_model_is_answered(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(["--config", "lm_smoke", "--set", override], LM[override], capsys, 2)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_configuration_is_answered(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, wanted = FILES[name]
    Path("x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    check(["--config", "x.yaml"], wanted, capsys, 2)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leads_to_none_is_answered(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder").mkdir()
    check(["--config", path], PATHS[path], capsys, 2)


@pytest.mark.parametrize("overrides", DATA)
def test_data_that_are_not_there_are_answered(
    overrides: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(["--set", *overrides.split()], DATA[overrides], capsys, 3)


def test_there_are_more_than_a_hundred() -> None:
    assert sum(map(len, (SET, LM, FILES, PATHS, DATA))) > 140


OWN = {  # keys with a check of their own, that says more than their kind
    *("clients.width", "data.store", "data.shards", "algorithm.rule.learned"),
    *("algorithm.rule.anneal", "clients.lr_schedule"),
}


def test_equal_mistakes_are_answered_with_equal_words() -> None:
    for name, key in keys_of(RunConfig).items():
        values = {"lm": {}} if name.startswith("lm.") else {}
        put(values, name, [[1]])
        with pytest.raises(FedError) as caught:
            RunConfig.of(values)
        inner = f"{name}.0: got [1], want " if key.values.startswith("a list") else ""
        plain = f"{name}: got [[1]], want " + ("" if name in OWN else key.values)
        answers = str(caught.value).splitlines()
        assert any(line.startswith(inner or plain) for line in answers), answers
