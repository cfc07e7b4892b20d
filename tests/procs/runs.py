"""Starting real runs: torchrun on free ports, a time limit, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
MAIN = str(ROOT / "launcher" / "main.py")
LIMIT = 120  # seconds a run may take before the test fails


def command(
    ranks: int, run_dir: Path, *words: str, torchrun: tuple[str, ...] = (), main: str = MAIN
) -> list[str]:
    """The command of a run on `ranks` ranks (0 = plain python, without torchrun).

    torchrun: more words for it; with a `--master_port` it is not `--standalone`.
    """
    own = ["--run-dir", str(run_dir), "--set", "metrics.port=0", "metrics.targets=null"]
    if not any(word.startswith("metrics.") for word in words):  # a process less for each rank
        own.append("metrics.enabled=false")
    own += words
    if ranks == 0:
        return [sys.executable, main, *own]
    meeting = [] if any(w.startswith("--master") for w in torchrun) else ["--standalone"]
    agent = ["-m", "torch.distributed.run", *meeting, f"--nproc_per_node={ranks}", *torchrun]
    return [sys.executable, *agent, main, *own]


def start(
    ranks: int,
    run_dir: Path,
    *words: str,
    torchrun: tuple[str, ...] = (),
    main: str = MAIN,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """A run in the background, in a process group of its own; env: variables besides ours."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.Popen(
        command(ranks, run_dir, *words, torchrun=torchrun, main=main),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=env,
        start_new_session=True,
    )


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def finish(process: subprocess.Popen[str], limit: float = LIMIT) -> str:
    """Its output; a run that takes longer than `limit` seconds is killed and fails the test."""
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        raise AssertionError(f"still running after {limit} s:\n{out[-3000:]}") from None
    return out


def run(ranks: int, run_dir: Path, *words: str, torchrun: tuple[str, ...] = ()) -> str:
    """A whole run's output."""
    return finish(start(ranks, run_dir, *words, torchrun=torchrun))


def found(script: str, ranks: int, *words: Any, quiet: bool = False) -> dict[str, Any]:
    """What a script of ours prints after FOUND, run by torchrun; quiet: and nothing beside."""
    agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    done = subprocess.run(
        [sys.executable, *agent, script, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    lines = done.stdout.splitlines()
    said = [line for line in lines if line.startswith("FOUND ")]
    assert said, (done.stdout + done.stderr)[-3000:]
    assert not quiet or lines == said, "a library writes to standard output"
    return json.loads(said[0].removeprefix("FOUND "))


def summary(run_dir: Path) -> dict[str, Any]:
    """summary.json."""
    return json.loads((run_dir / "summary.json").read_text())


def completed(ranks: int, run_dir: Path, *words: str) -> dict[str, Any]:
    """The summary of a run that must complete."""
    out = run(ranks, run_dir, *words)
    assert (run_dir / "summary.json").is_file(), out[-3000:]
    found = summary(run_dir)
    assert found["status"] == "completed", out[-3000:]
    return found


def rank_pids(agent: int) -> dict[int, int]:
    """Process id of each rank below a torchrun agent."""
    found = {}
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for pid in map(int, children):
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        env = dict(p.split(b"=", 1) for p in pairs if b"=" in p)
        if b"RANK" in env:
            found[int(env[b"RANK"])] = pid
    return found


def wait_for(condition: Callable[[], Any], what: str, limit: float = 60.0) -> Any:
    """What `condition` returns once it is true."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {limit} s for {what}")


def rounds_done(run_dir: Path) -> int:
    """Round lines in metrics.jsonl so far."""
    file = run_dir / "metrics.jsonl"
    return file.read_text().count('"event": "round"') if file.is_file() else 0
