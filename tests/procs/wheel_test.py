"""Does the wheel hold all that a run needs, and does fedcore run from it in an empty folder?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.procs.runs import ROOT, summary

pytestmark = [pytest.mark.procs, pytest.mark.long]

PACKAGES = ("launcher", "fedcore", "data_shards")
OURS = (".venv", ".git", "runs", "store", "build", "dist", "__pycache__", "*.egg-info", ".*_cache")
SMALL = ("rounds=1", "clients.local_epochs=1", "metrics.port=0", "metrics.targets=null")


def ran(words: Sequence[str | Path], folder: Path) -> str:
    """What a command says, in that folder and without this tree on its path; it must succeed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, env=env, cwd=folder, timeout=300
    )
    assert done.returncode == 0, (words, (done.stdout + done.stderr)[-3000:])
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree, in which the build may leave what it likes."""
    tree = tmp_path_factory.mktemp("built") / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*OURS))
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    ran([sys.executable, "-m", *build, "."], tree)
    (found,) = (tree / "dist").glob("fedcore-*.whl")
    return found


@pytest.fixture(scope="module")
def bin_(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a new environment with the wheel; other packages are those of this one."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    venv.create(folder)
    python = folder / "bin" / "python"
    install = ["pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    ran([sys.executable, "-m", *install], folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    # lines of a .pth are only put on the path: links to an editable fedcore in there are not read
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "others.pth").write_text("\n".join(here) + "\n")
    return folder / "bin"


def files_of(site: Path) -> set[Path]:
    """All files of an environment, without what Python itself writes beside a module."""
    return {path for path in site.rglob("*") if path.suffix != ".pyc" and path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "anywhere"
    folder.mkdir()
    return folder


def test_the_wheel_holds_what_runs_need_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for name in PACKAGES
        for file in (ROOT / name).rglob("*")
        if file.suffix in (".py", ".yaml", ".j2") and "store" not in file.parts
    }
    wanted |= {str(f.relative_to(ROOT)) for f in (ROOT / "deploy" / "slurm").iterdir()}
    held = {name for name in names if ".dist-info/" not in name}
    assert held == {name for name in wanted if "__pycache__" not in name}


def test_the_default_job_runs_from_the_wheel_in_any_folder(bin_: Path, place: Path) -> None:
    where = "import fedcore, launcher, data_shards as d; print(*{m.__file__ for m in (fedcore, d)})"
    files = ran([bin_ / "python", "-c", where], place).split()
    site = (bin_.parent / "lib").resolve()
    assert all(Path(file).resolve().is_relative_to(site) for file in files), files
    before = files_of(site)
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    ran([bin_ / "python", *agent, "-m", "launcher.main", "--set", *SMALL], place)
    (run,) = (p for p in (place / "runs").iterdir() if (p / "summary.json").is_file())
    assert summary(run)["status"] == "completed"
    assert list((place / "data_shards" / "store").rglob("manifest.json"))
    assert files_of(site) == before
    report = ran([bin_ / "fedcore", "report", run.relative_to(place)], place).strip()
    assert (place / report).is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--help", "shards"),
        ("algorithms", "v14"),
        ("submit smoke --gpus-per-node 0 --ranks-per-node 2 --dry-run", "#SBATCH"),
        ("config clients.width", "clients.width"),
    ],
)
def test_commands_work_from_the_wheel(bin_: Path, place: Path, words: str, said: str) -> None:
    assert said in ran([bin_ / "fedcore", *words.split()], place)
    assert not any(place.iterdir()), "a look leaves nothing behind"
