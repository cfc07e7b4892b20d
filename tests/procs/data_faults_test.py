"""Does a damaged shard that is met in the middle of training end all ranks by its name?"""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import cli, prepare
from tests.procs import runs

pytestmark = pytest.mark.procs


def test_a_tar_that_is_damaged_while_it_is_streamed_ends_all_ranks(tmp_path: Path) -> None:
    """In a later round, on one rank, in a thread: the same words and code on both, and no hang."""
    words = ["data.reading=streaming", f"data.store={tmp_path}/store", "rounds=2000"]
    words += ["clients.local_epochs=1", "evaluate.every=2000", "checkpoint.every=2000"]
    folder = prepare.make(cli.load_config("smoke", words))
    process = runs.start(2, tmp_path / "run", "--config", "smoke", "--set", *words)
    runs.wait_for(lambda: runs.rounds_done(tmp_path / "run") >= 2, "two rounds")
    tar = folder / "client_00002/00000.tar"
    content = bytearray(tar.read_bytes())
    content[2000] ^= 1
    (folder / "changed").write_bytes(content)
    (folder / "changed").replace(tar)
    out = runs.finish(process, limit=60)
    found = runs.summary(tmp_path / "run")
    assert found["exit_code"] == 3, out[-3000:]
    assert "client_00002/00000.tar" in found["message"]
    assert "sha256" in found["message"]
    assert found["rounds"] >= 2
    said = [line for line in out.splitlines() if "damaged: sha256" in line]
    assert sum(line.startswith("fedcore:") for line in said) == 1
    assert all("traceback :" in line for line in said if not line.startswith("fedcore:"))
    assert "stream.py" not in out, "no traceback but torchrun's own"
