"""The cluster, and the run that all others are compared with."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import main
from tests.procs import runs
from tests.slurm.cluster import Cluster, is_possible
from tests.slurm.lab import TRAINING, Lab

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # a world listens to them


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes on this machine."""
    if not is_possible():
        pytest.fail("needs root, slurm-wlm and munge: make test leaves these tests out")
    found = Cluster(Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")))
    try:
        found.up()
        yield found
    finally:
        found.down()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the shards that all runs of the session share."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def undisturbed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of the same training in one process that nobody disturbs."""
    run = tmp_path_factory.mktemp("plain")
    keys = [*TRAINING, f"data.store={store}", "metrics.enabled=false"]
    before = {number: signal.getsignal(number) for number in STOPPING}
    assert main.main(["--config", "smoke", "--run-dir", str(run), "--set", *keys]) == 0
    for number, handler in before.items():
        signal.signal(number, handler)
    return runs.summary(run)


@pytest.fixture
def lab(
    cluster: Cluster, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A user of the cluster with a working directory of their own; no job of theirs is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("PYTHONPATH", str(runs.ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield Lab(cluster, tmp_path, store)
    cluster.run("scancel", "--me", "--signal=KILL", "--full")
    cluster.run("scancel", "--me")
    cluster.wait_idle()
