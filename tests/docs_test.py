"""Do the commands and links in README and docs exist?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.algorithms import ALGORITHMS
from fedcore.objective.terms import TERMS
from fedcore.telemetry.catalogue import table
from launcher import cli, experiments
from launcher.build import check_names
from launcher.commands import app
from launcher.job import kind_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {page.name: re.findall(r"```\w*\n(.*?)```", page.read_text(), re.S) for page in PAGES}
LINES = sorted(
    {line.strip() for blocks in BLOCKS.values() for b in blocks for line in b.splitlines()}
)


# what an extension names exists once its file does: tests/procs/extending_test.py, commands_test.py
HERE = [line for line in LINES if "extensions=" not in line]


@pytest.mark.parametrize("line", [x for x in HERE if "launcher/main.py" in x])
def test_a_training_command_parses_and_names_real_things(line: str) -> None:
    words = shlex.split(line.partition("launcher/main.py")[2], comments=True)
    given = cli.parser().parse_args(words)
    if cli.is_list(given.config):
        found = experiments.read(given.config, given.overrides, Path("runs"))
        word = (given.experiment or "0").replace("$SLURM_ARRAY_TASK_ID", "0")
        assert experiments.chosen(found, word)
        return
    config = cli.request(given).config
    if config.lm is None:
        check_names(config)
    else:
        kind_of(config).dry_run()


@pytest.mark.parametrize("line", [x for x in LINES if x.startswith("fedcore ")])
def test_a_fedcore_command_exists(line: str) -> None:
    words = [w for w in shlex.split(line)[1:4] if not w.startswith("-")]
    names = words[:2] if words[0] in ("shards", "lm", "study", "checkpoint") else words[:1]
    assert CliRunner().invoke(app, [*names, "--help"]).exit_code == 0


@pytest.mark.parametrize("line", [x for x in LINES if x.startswith("make ")])
def test_a_make_target_exists(line: str) -> None:
    target = line.split()[1]
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


PLACE = re.compile(r"`((?:fedcore|launcher|data_shards|deploy|tests|bench)/[\w/]+\.\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = [n for n in PLACE.findall(page.read_text()) if not n.endswith("/mine.py")]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/algorithms.md"])
def test_every_algorithm_is_in_the_tables(page: str) -> None:
    """Else: a row for it, see docs/extending.md."""
    text = (ROOT / page).read_text()
    assert [name for name in ALGORITHMS.names() if f"`{name}`" not in text] == []


def test_every_loss_term_is_explained() -> None:
    """Else: its formula in section 1 of docs/algorithms.md."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    assert [name for name in TERMS.names() if f"`{name}`" not in text] == []


def test_every_metric_is_explained() -> None:
    """Else: put the output of `fedcore metrics` in place of the table."""
    assert table() in (ROOT / "docs" / "metrics.md").read_text()
