"""Does a whole run over the network end in the bits of one from disk, reading what it must?"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from launcher import cli, prepare
from tests.procs import runs
from tests.procs.after import proof
from tests.procs.lm_federated_test import TINY
from tests.web import drops_after, says, serving

pytestmark = pytest.mark.procs

WORDS = ("--config", "smoke", "--set", "rounds=3", "clients.local_epochs=1")


def test_a_run_over_http_is_the_one_from_disk(tmp_path: Path) -> None:
    """Streamed from a store, from a given folder with faults on the way, going on after a stop."""
    disk = runs.completed(0, tmp_path / "disk", *WORDS, f"data.store={tmp_path / 'www'}")
    (folder,) = [p for p in (tmp_path / "www").iterdir() if p.is_dir()]
    with serving(tmp_path / "www") as web:
        own = (f"data.store={web.url}", f"data.cache={tmp_path / 'cache'}")
        http = runs.completed(2, tmp_path / "http", *WORDS, *own, "data.reading=streaming")
        assert proof(http) == proof(disk)
        assert http["identity"] == disk["identity"]
        asked = Counter(Path(name).relative_to(folder.name) for name in web.files())
        manifest = asked.pop(Path("manifest.json"))
        assert manifest <= 2  # once in a process
        files = {p.relative_to(folder) for p in folder.rglob("*.tar")}
        assert asked == dict.fromkeys(files, 1)  # once on a node

        web.asked.clear()
        web.tricks[f"{folder.name}/client_00001/00000.tar"] = [says(503), drops_after(9000)]
        given = (f"data.shards={web.url}/{folder.name}", f"data.cache={tmp_path / 'other'}")
        process = runs.start(2, tmp_path / "stopped", *WORDS, *given)
        latest = tmp_path / "stopped" / "checkpoints" / "latest"
        runs.wait_for(latest.is_file, "a first checkpoint")
        for pid in runs.rank_pids(process.pid).values():
            os.kill(pid, signal.SIGTERM)
        out = runs.finish(process)
        assert runs.summary(tmp_path / "stopped")["status"] in ("stopped", "completed"), out[-3000:]
    with serving(tmp_path / "www") as moved:  # shards may move while a run is suspended
        given = (f"data.shards={moved.url}/{folder.name}", f"data.cache={tmp_path / 'other'}")
        assert proof(runs.completed(0, tmp_path / "stopped", *WORDS, *given)) == proof(disk)
        assert set(moved.files()) == {f"{folder.name}/manifest.json"}  # the rest is in the cache


def test_a_server_that_breaks_down_ends_all_ranks_with_its_url(tmp_path: Path) -> None:
    """One rank meets it, both end with its words."""
    folder = prepare.make(cli.load_config("smoke", [*WORDS[3:], f"data.store={tmp_path / 'www'}"]))
    with serving(tmp_path / "www") as web:
        bad = f"{folder.name}/client_00002/00000.tar"
        web.tricks[bad] = [says(404)]
        own = (f"data.store={web.url}", f"data.cache={tmp_path / 'cache'}")
        out = runs.run(2, tmp_path / "http", *WORDS, *own)
        found = runs.summary(tmp_path / "http")
    assert found["exit_code"] == 3, out[-3000:]
    assert f"{web.url}/{bad}: the server said 404" in found["message"]


def test_a_language_model_over_http_is_the_one_from_disk(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for part in range(6):
        words = " ".join(f"w{part}{i}" for i in range(200))
        (tmp_path / "text" / f"{part}.txt").write_text(words)
    words = ("--config", "lm/diloco", "--set", *TINY, f"lm.data.text={tmp_path / 'text'}")
    words += ("lm.data.held_out=0.2", "lm.data.partition=documents", "lm.federated.clients=2")
    disk = runs.completed(0, tmp_path / "disk", *words, f"data.store={tmp_path / 'www'}")
    with serving(tmp_path / "www") as web:
        own = (f"data.store={web.url}", f"data.cache={tmp_path / 'cache'}")
        http = runs.completed(2, tmp_path / "http", *words, *own)
        assert http["parameters_sha256"] == disk["parameters_sha256"]
        assert http["identity"] == disk["identity"]
        asked = Counter(Path(name).name for name in web.files())
        assert asked["tokenizer.json"] == 1
