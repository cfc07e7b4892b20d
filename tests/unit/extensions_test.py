"""Are a user's own files imported once, kept with the run, and their mistakes told by line?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore import extensions
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.schedule import SCHEDULES
from launcher.cli import load_config
from launcher.entry import identity
from launcher.prepare import command, store_dir
from launcher.rundir import RunDir

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
        ("import nothing_of_that_name\n", ["in line 1", "ModuleNotFoundError"]),
        (SCHEDULE.format(name="cosine"), ["in line 13", "cosine", "registered once"]),
    ],
)
def test_a_mistake_in_it_is_told_with_its_line(tmp_path: Path, text: str, words: list[str]) -> None:
    file = written(tmp_path, "wrong", text)
    for _ in range(2):  # a file that failed was not imported
        with pytest.raises(ConfigError) as told:
            load_config("smoke", [f"extensions={file}"])
        assert told.value.key == "extensions"
        assert all(word in str(told.value) for word in [str(file), *words]), str(told.value)


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
    for number in range(2):  # the second: the same file, mended, in another process
        name = f"mended{number}"
        file = written(tmp_path, "own", text.format(number, name))
        places.append(
            store_dir(load_config("smoke", [f"extensions={file}", f"data.source={name}"]))
        )
    assert len({str(p).replace("mended1", "mended0") for p in places}) == 2
