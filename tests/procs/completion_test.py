"""Does a tab in bash offer what may stand there, at once?"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command

from fedcore.algorithms import ALGORITHMS
from fedcore.config import RunConfig
from fedcore.config_words import keys_of
from fedcore.lm.export import Format
from fedcore.readouts import READOUTS
from launcher import cli, completion, exporting
from launcher.commands import app
from tests.procs.runs import ROOT

pytestmark = [
    pytest.mark.procs,
    pytest.mark.skipif(shutil.which("bash") is None, reason="no bash"),
]

Tab = Callable[..., list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with `fedcore` in its `bin`."""
    program = tmp_path / "bin" / "fedcore"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom launcher.commands import app\napp()\n")
    program.chmod(0o755)
    return tmp_path


def bash(home: Path, script: str) -> str:
    """What a script of bash prints there."""
    env = dict(os.environ) | {"HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{home / 'bin'}:{env['PATH']}"
    # `true`: else bash gives its place to the program, which looks for its shell in vain
    words = ["bash", "--norc", "-c", f"{script}\ntrue"]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=home, timeout=60)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def tab(home: Path) -> Tab:
    """What is offered for the last of some words, split as bash splits them."""
    source = bash(home, "fedcore --show-completion")
    assert "complete -o default -F" in source

    def offered(*words: str) -> list[str]:
        line = f"COMP_WORDS=({shlex.join(['fedcore', *words])}) COMP_CWORD={len(words)}"
        call = '_fedcore_completion fedcore; printf "%s\\n" "${COMPREPLY[@]}"'
        return bash(home, f"{source}\n{line}\n{call}").split()

    return offered


def test_words_are_completed_where_they_may_stand(tab: Tab, home: Path) -> None:
    for run in ("v14", "lists/one"):
        (home / "runs" / run).mkdir(parents=True)
        (home / "runs" / run / "config.yaml").touch()
    (home / "runs" / "targets").mkdir()
    assert tab("subm") == ["submit"]
    assert tab("checkpoint", "exp") == ["export"]
    assert tab("submit", "sm") == ["smoke"]
    assert tab("shards", "make", "lm_sm") == ["lm_small", "lm_smoke"]
    assert tab("algorithms", "v1") == sorted(n for n in ALGORITHMS.names() if n[:2] == "v1")
    assert tab("report", "") == ["runs/lists/one", "runs/v14"]
    assert tab("checkpoint", "export", "runs/v14", "--format", "o") == ["onnx"]
    assert tab("config", "clients.wi") == ["clients.width"]


def test_keys_and_their_values_are_completed_after_set(tab: Tab) -> None:
    assert tab("submit", "default", "--set", "data.par")[0] == "data.partition="
    assert set(tab("submit", "default", "--set", "algorithm.rule.l")) >= {
        "algorithm.rule.learned.gradnorm.asymmetry="
    }
    # bash cuts words at `=`, and puts what is offered behind it
    assert tab("submit", "default", "--set", "data.partition", "=", "dir") == ["dirichlet"]
    assert tab("submit", "default", "--set", "tf32", "=") == ["true", "false"]
    assert tab("submit", "default", "--set", "algorithm.name", "=", "v7") == ["v7", "v7_fedavg"]
    assert tab("submit", "default", "--set", "data.source", "=", "cifar") == ["cifar10", "cifar100"]


def test_nothing_slow_is_loaded_for_a_tab(home: Path, tab: Tab) -> None:
    program = home / "bin" / "fedcore"
    seen = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))"
    program.write_text(program.read_text().replace("\n", f"\n{seen}\n", 1))
    *offered, loaded = tab("compare", "default", "--algorithm", "v1")
    assert "v14" in offered
    assert loaded == "False"


def test_other_shells_complete_whole_words() -> None:
    assert completion.overrides("data.partition=dir") == ["data.partition=dirichlet"]
    assert completion.overrides("algorithm.name=fedpro") == [
        "algorithm.name=fedproto",
        "algorithm.name=fedprox",
    ]


def test_completion_can_be_installed(home: Path) -> None:
    bash(home, "fedcore --install-completion")
    assert "_fedcore_completion" in bash(home, "source ~/.bashrc; complete -p fedcore")


def test_what_is_offered_is_what_there_is() -> None:
    assert set(completion.algorithms("")) == set(ALGORITHMS.names())
    assert completion.readouts("") == ["own", "best", *READOUTS.names()]
    assert completion.configs("") == cli.shipped_configs()
    assert {word.rstrip("=") for word in completion.overrides("")} == set(keys_of(RunConfig))
    assert offered("checkpoint", "export", "what") == list(exporting.WHATS)
    assert offered("checkpoint", "export", "form") == list(exporting.FORMATS)
    assert offered("lm", "export", "form") == list(get_args(Format))


def offered(*path: str) -> list[str]:
    """All that is offered for an option of a command; the option stands last."""
    command = get_command(app)
    for word in path[:-1]:
        command = command.commands[word]
    (option,) = (param for param in command.params if param.name == path[-1])
    context = command.make_context("fedcore", [], resilient_parsing=True)
    return [item.value for item in option.shell_complete(context, "")]
