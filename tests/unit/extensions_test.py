"""Are a user's own files imported once, kept with the run, and their mistakes told by line?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcore import extensions
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.schedule import SCHEDULES
from fedcore.server.comm import LocalComm
from launcher.cli import load_config
from launcher.entry import check_same_text, identity
from launcher.prepare import command, store_dir
from launcher.rundir import RunDir
from launcher.world import Place, World

SCHEDULE = '''"""A schedule."""
from dataclasses import dataclass
from torch import Tensor
from fedcore.schedule import SCHEDULES, Progress

@dataclass(frozen=True)
class Squared:
    """(1 - p)^2."""

    def __call__(self, at: Progress) -> Tensor:
        return (1 - at.p).square()

SCHEDULES.add("{name}", Squared())
'''


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def test_what_a_file_registers_has_its_name_and_reading_twice_is_once(tmp_path: Path) -> None:
    file = written(tmp_path, "own", SCHEDULE.format(name="squared_once"))
    for _ in range(2):
        config = load_config("smoke", [f"extensions={file}", "clients.lr_schedule=squared_once"])
    assert config.extensions == (file,)
    assert "squared_once" in SCHEDULES.names()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = 1 / 0\n", ["in line 2", "ZeroDivisionError: division by zero"]),
        ("x = (\n", ["in line 1", "SyntaxError"]),
        ("import sys\nsys.exit(0)\n", ["in line 2", "SystemExit"]),
        ("import nothing_of_that_name\n", ["in line 1", "ModuleNotFoundError"]),
        (SCHEDULE.format(name="cosine"), ["in line 13", "cosine", "registered once"]),
        (SCHEDULE.format(name="cosine"), ["has it already. Try another name in the file"]),
    ],
)
def test_a_mistake_in_it_is_told_with_its_line(tmp_path: Path, text: str, words: list[str]) -> None:
    file = written(tmp_path, "wrong", text)
    for _ in range(2):  # a file that failed was not imported
        with pytest.raises(ConfigError) as told:
            load_config("smoke", [f"extensions={file}"])
        assert told.value.key == "extensions"
        assert all(word in str(told.value) for word in [str(file), *words]), str(told.value)
        assert str(told.value).count("Try ") == 1


@pytest.mark.parametrize("name", ["absent.py", "", "folder"])
def test_no_file_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="want a Python file that can be read"):
        extensions.load([tmp_path / name])


def test_an_edited_file_is_another_run_and_a_moved_one_is_not(tmp_path: Path) -> None:
    one = RunConfig(extensions=(written(tmp_path, "own", "x = 1\n"),))
    (tmp_path / "there").mkdir()
    moved = RunConfig(extensions=(written(tmp_path / "there", "own", "x = 1\n"),))
    assert one.digest() == moved.digest()
    assert one.digest() != RunConfig().digest()
    before = identity(one, "data"), one.digest()
    written(tmp_path, "own", "x = 2\n")
    assert (identity(one, "data") == before[0], one.digest() == before[1]) == (False, False)


def test_what_counts_is_what_was_imported_and_not_what_the_file_says_by_now(tmp_path: Path) -> None:
    """Between two runs of a list, say: the module of the first is the one that works."""
    text = SCHEDULE.format(name="edited_later")
    file = written(tmp_path, "own", text)
    config = load_config("smoke", [f"extensions={file}"])
    before = identity(config, "data"), config.digest()
    written(tmp_path, "own", "raise ValueError")
    config = load_config("smoke", [f"extensions={file}"])
    assert (identity(config, "data"), config.digest()) == before
    RunDir(tmp_path / "run").prepare(config, World(Place(), torch.device("cpu"), LocalComm()))
    RunDir(tmp_path / "run").release()
    assert (tmp_path / "run" / "extensions" / "own.py").read_text() == text


def test_an_edit_of_the_same_size_and_second_is_seen_by_the_next_process(tmp_path: Path) -> None:
    """Python's cache of bytecode takes both for the same file."""
    for value in "12":
        file = written(tmp_path, "own", f"print({value})\n")
        os.utime(file, (1, 1))
        words = f"from fedcore.extensions import *; load([Path({str(file)!r})])"
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
        assert done.stdout.strip() == value, done.stderr
    assert not (tmp_path / "__pycache__").exists()


def test_a_name_that_a_file_forgot_to_add_is_told_with_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "forgetful", "MINE = 1\n")
    load_config("smoke", [f"extensions={file}"])
    with pytest.raises(ConfigError) as told:
        SCHEDULES.get("qqq", "clients.lr_schedule")
    assert "forgetful.py" in told.value.want
    assert "does not add it" in told.value.want or "none adds it" in told.value.want
    assert told.value.try_.startswith("adding it there")
    with pytest.raises(ConfigError) as told:
        SCHEDULES.get("cosin")
    assert told.value.try_ == "cosine"


class Ranks(LocalComm):
    """Rank 0 of three, the others with what they say instead."""

    def __init__(self, *others: dict[str, str]) -> None:
        self.others = others

    def gather_json(self, value: Any) -> list[Any]:
        return [value, *self.others]


def test_ranks_that_imported_different_texts_end_and_name_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "own", "x = 3\n")
    config, own = load_config("smoke", [f"extensions={file}"]), extensions.sha256(file)[:12]
    check_same_text(config, Ranks({"own.py": own}, {"own.py": own}))
    want = f"extensions: own.py: got '{own} on rank 0, 2; abc on rank 1'"
    with pytest.raises(ConfigError, match=want):
        check_same_text(config, Ranks({"own.py": "abc"}, {"own.py": own}))
    with pytest.raises(ConfigError, match="no such file on rank 1, 2"):
        check_same_text(config, Ranks({}, {}))


def test_the_copies_of_a_run_are_named_and_names_are_distinct(tmp_path: Path) -> None:
    config = RunConfig(extensions=("a/own.py", "other.py"))
    assert RunDir(tmp_path).extensions(config) == [
        tmp_path / "extensions" / name for name in ("own.py", "other.py")
    ]
    with pytest.raises(ConfigError, match="files of different names"):
        RunConfig.of({"extensions": ["a/own.py", "b/own.py"]})


def test_the_command_that_makes_shards_names_it(tmp_path: Path) -> None:
    file = written(tmp_path, "own", "x = 1\n")
    assert f"--set 'extensions=[\"{file}\"]'" in command(RunConfig(extensions=(file,)))


def test_shards_of_a_mended_loader_are_others(tmp_path: Path) -> None:
    text = "from data_shards.sources import SOURCES, Source\n"
    text += "def load(root, split):\n    return {0}\n"
    text += 'SOURCES.add("{1}", Source(load, kind="digits", about="mine", bundled=True))\n'
    places = []
    for number in range(2):  # the second: the same file, mended (this process has imported one)
        name, folder = f"mended{number}", tmp_path / str(number)
        folder.mkdir()
        file = written(folder, "own", text.format(number, name))
        places.append(
            store_dir(load_config("smoke", [f"extensions={file}", f"data.source={name}"]))
        )
    assert len({str(p).replace("mended1", "mended0") for p in places}) == 2
