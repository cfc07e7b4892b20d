"""Does the doctor find what is wrong between real ranks, and name the rank?"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.procs import runs

pytestmark = pytest.mark.procs

PATIENCE = 6  # seconds


def start(folder: Path, *words: str, script: str = "exec") -> subprocess.Popen[str]:
    """Two ranks; `script` is put before the command of each, in bash."""
    agent = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    visit = f"{sys.executable} -m launcher.doctor --megabytes 4 --patience {PATIENCE}"
    command = f"{script} {visit} {' '.join(words)}"  # bash knows $RANK
    return subprocess.Popen(
        [sys.executable, "-m", *agent, "--no-python", "bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(runs.ROOT)},
        start_new_session=True,
    )


def test_two_sound_ranks_are_fit(tmp_path: Path) -> None:
    """The command starts them itself."""
    words = ["--ranks", "2", "--json", "--folder", str(tmp_path), "--megabytes", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "launcher.commands", "doctor", *words],
        capture_output=True,
        text=True,
        cwd=runs.ROOT,
        timeout=runs.LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert told["ranks"] == 2
    found = {check["name"]: check for check in told["checks"]}
    assert found["computing"]["ranks"] == [0, 1]
    assert found["shared folder"]["ranks"] == [1]
    assert {"atomic rename", "lock", "clocks", "fsync", "writing", "ranks alike"} <= set(found)
    figures = found["all_reduce gloo"]["figures"]
    assert figures["bus_bytes_per_second"] == figures["algorithm_bytes_per_second"] > 0  # n = 2
    assert figures["latency_seconds"] > 0
    assert not list(tmp_path.iterdir())


def test_ranks_with_other_folders_and_configurations_are_named(tmp_path: Path) -> None:
    script = "cd $(mkdir -p $RANK && cd $RANK && pwd) && exec"
    process = start(tmp_path, "--set seed=$RANK", script=script)
    out = runs.finish(process)
    assert process.returncode == 1
    bad = [line for line in out.splitlines() if " bad " in line]
    assert len(bad) == 2, out
    assert "same config" in bad[0]
    assert "rank 0" in bad[0]
    assert "rank 1" in bad[0]
    assert "shared folder" in bad[1]
    assert "rank 1" in bad[1]
    assert "2 to mend (2 ranks)" in out


def test_rank_0_that_dies_with_the_store_is_named(tmp_path: Path) -> None:
    """As under srun, where no agent serves the store and none ends the others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    env = {**os.environ, **meeting, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    words = ["--megabytes", "4", "--patience", str(PATIENCE), "--folder", str(tmp_path)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "launcher.doctor", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=runs.ROOT,
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(2)
    ]
    runs.wait_for(lambda: list(tmp_path.glob(".doctor-*/token")), "the doctor's work")
    ranks[0].kill()
    out = runs.finish(ranks[1], PATIENCE + 10)
    runs.finish(ranks[0])
    assert ranks[1].returncode == 1
    (bad,) = [line for line in out.splitlines() if " bad " in line]
    assert "rank 0" in bad
    # the folder is there in the first of these, and the next one may have begun by then
    assert any(f"died in step '{step}'" in bad for step in ("folder", "site"))
    assert "Traceback" not in out


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_freezes_is_named(fault: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path, f"--folder {tmp_path} > $RANK.txt")
    told = tmp_path / "0.txt"
    runs.wait_for(lambda: list(tmp_path.glob(".doctor-*/token")), "the doctor's work")
    pid = runs.rank_pids(process.pid)[1]
    os.kill(pid, fault)
    out = runs.wait_for(lambda: "to mend" in (text := told.read_text()) and text, "a verdict", 15)
    if fault == signal.SIGSTOP:  # torchrun would wait half a minute for it
        os.kill(pid, signal.SIGKILL)
    runs.finish(process)
    assert process.returncode == 1
    (bad,) = [line for line in out.splitlines() if " bad " in line]
    assert "rank 1 died or hangs" in bad
    assert "'folder'" in bad
    assert "torchvision" in out  # what was found until then is told as well
