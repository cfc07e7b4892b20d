"""Does every command of README, docs and --help run? Each as it stands there, but small."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests import published
from tests.docs_test import BLOCKS, LINES
from tests.procs.runs import ROOT
from tests.unit.help_test import EXAMPLES, TRAINING

pytestmark = [pytest.mark.procs, pytest.mark.long]

ELSEWHERE = {  # what wants more than this machine, or is run by a test of its own
    r"make |python bench/|torchrun .* bench/": "tests/unit/bench_test.py",
    r"docker ": "tests/deploy/docker_test.py",
    r"kubectl ": "tests/deploy/kubernetes_test.py",
    r"srun ": "tests/slurm/",
    r".*(https://|s3://)": "tests/unit/data_shards/remote/",
    r".*--download": "tests/unit/data_shards/download_test.py",
    r".*--nnodes": "tests/procs/faults_of_nodes_test.py",
    r"fedcore study lambda": "tests/procs/study_test.py",
    r"torchrun .*lm/cs336(?!.*--list)": "tests/procs/experiments_test.py",
    # README's own, with margin.distance, is run here
    r".*smoke --set (algorithm|model|data|ext)(?!.*distance)": "tests/procs/extending_test.py",
}
SAID = BLOCKS | {"--help": [*EXAMPLES, *TRAINING]}
FIRST = r"(\S+=\S+ )?(\.venv/bin/)?((fedcore|torchrun|python|make|srun|docker|kubectl) .*)"


def commands(page: str) -> list[str]:
    """Those of a page that are run here, in their order."""
    lines = "\n".join(SAID[page]).splitlines()
    found = [match[3] for line in lines if (match := re.match(FIRST, line.strip()))]
    told = {line.strip() for line in LINES} if page == "--help" else set()  # on a page, too
    found = [line for line in found if line not in told]
    return [line for line in found if not any(re.match(word, line) for word in ELSEWHERE)]


README = (ROOT / "README.md").read_text()
FILES = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", README, re.S))
(USE,) = re.findall(r"\n```\n\n```python\n(.*?)```", README, re.S)

NAMES = {  # what the docs call what is there
    r"/datasets/": "datasets/",
    r"\bRUN\b": "runs/done",
    r"runs/default-v14-s0-\w+": "runs/done",
    r"runs/lm_small-s0-\w+": "runs/lm",
    r"round_00010\b": "round_00001",
    r"runs/(cs336|schedules|memory_study)\b": "runs/list",
}
SMALL = ("rounds=1", "clients.local_epochs=1", "metrics.enabled=false", "metrics.targets=null")
SMALL_LM = ("lm.steps=2", "lm.data.limit=400000", "lm.eval_batches=1", *SMALL[2:])
LAST = {  # words of a command that make it small
    "compare": "--seeds 1 --set rounds=1 --set data.source=digits --set clients.count=4",
    "submit": "--dry-run",
    "watch": "--once",
    "jobs": "",
}


def ran(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """The words after `python`, in that folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, cwd=folder, timeout=300
    )


def trained(folder: Path, config: str, *words: str) -> list[str]:
    """The words of a small run."""
    is_lm = config.startswith("lm") or config.endswith(".yaml")
    small = SMALL_LM if is_lm else SMALL
    return ["-m", "launcher.main", "--config", config, *words, "--set", *small]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the data and the runs that the docs speak of."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("cifar10", "cifar100", "svhn", "tiny_imagenet", "pathmnist"):
        root = folder / "datasets" / {"tiny_imagenet": "tiny-imagenet-200"}.get(name, name)
        root.mkdir(parents=True)
        getattr(published, name)(root)
    for number, part in enumerate(["train/cat", "train/dog", "test/cat", "test/dog"]):
        (folder / "pictures" / part).mkdir(parents=True)
        for i in range(24):
            pixels = np.full((40, 36, 3), 9 * i + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / part / f"{i}.png")
    (folder / "notes").mkdir()
    for i in range(4):
        (folder / "notes" / f"{i}.txt").write_text(f"note {i}: " + "the sea is wide. " * 400)
    (folder / "stories.jsonl").write_text('{"text": "once upon a time there was a hen. "}\n' * 900)
    for name, code in FILES.items():
        (folder / name).write_text(code)
    sweep = {"experiments": [{"name": "a", "each": {"data.alpha": [0.1, 1.0]}}]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    lists = {"lm": {"steps": 2}, "experiments": [{"name": "a"}, {"name": "b"}]}
    (folder / "list.yaml").write_text(yaml.safe_dump(lists))
    for run, config in (("done", "smoke"), ("lm", "lm_small"), ("list", "list.yaml")):
        made = ran(folder, trained(folder, config, "--run-dir", f"runs/{run}"))
        assert made.returncode == 0, made.stderr[-2000:]
    for copy in ("v12", "v14"):
        shutil.copytree(folder / "runs/done", folder / "runs" / copy)
    yield folder
    shutil.rmtree(folder)


def in_place(line: str) -> str:
    for said, there in NAMES.items():
        line = re.sub(said, there, line)
    return line


@pytest.mark.parametrize("page", [page for page in SAID if commands(page)])
def test_the_commands_of_a_page_run_one_after_another(place: Path, page: str) -> None:
    for line in commands(page):
        done = ran(place, small(shlex.split(in_place(line), comments=True)))
        assert done.returncode == 0, (line, (done.stdout + done.stderr)[-3000:])


def test_the_lines_that_use_an_exported_model_name_a_class_for_each_image(place: Path) -> None:
    (run,) = (line for line in commands("README.md") if "--run-dir runs/pictures" in line)
    (make,) = (line for line in commands("README.md") if line.startswith("fedcore shards make"))
    (export,) = (line for line in commands("README.md") if "checkpoint export" in line)
    for line in (make, run, export):
        done = ran(place, small(shlex.split(line)))
        assert done.returncode == 0, (line, (done.stdout + done.stderr)[-3000:])
    used = ran(place, ["-c", USE])
    assert used.returncode == 0, used.stderr
    lines = used.stdout.splitlines()
    assert len(lines) == 48
    assert {line.split()[0].split("/")[2] for line in lines} == {"cat", "dog"}
    assert {line.split()[1] for line in lines} <= {"cat", "dog"}


def small(words: list[str]) -> list[str]:
    """The same command for python, and for seconds."""
    if "launcher.doctor" in words:
        return ["-m", "launcher.doctor"]
    if words[0] == "fedcore":
        last = shlex.split(LAST.get(words[1], ""))
        return ["-c", "from launcher.commands import app; app()", *words[1:], *last]
    given = words[words.index("launcher/main.py") + 1 :]
    config = given[given.index("--config") + 1] if "--config" in given else "default"
    if "--list" in given:
        return ["-m", "launcher.main", *given]
    shorter = SMALL_LM if config.startswith("lm") else SMALL
    return ["-m", "launcher.main", *given, "--set", *shorter]


def test_what_is_run_elsewhere_is_known() -> None:
    assert all((ROOT / place).exists() for place in ELSEWHERE.values())
    assert sum(len(commands(page)) for page in SAID) > 90
