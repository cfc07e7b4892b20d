"""Do the presets of the paper run from published files to a summary?"""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import cli, prepare
from tests import published
from tests.procs import runs

pytestmark = pytest.mark.procs


@pytest.mark.parametrize(
    ("preset", "ranks", "readout"),
    [("cifar100_v14", 2, "iffi"), ("cifar100_fedavg", 0, "averaged")],
)
def test_a_preset_trains_a_round_from_a_tiny_root(
    tmp_path: Path, preset: str, ranks: int, readout: str
) -> None:
    root = published.cifar100(tmp_path / "raw")
    words = [f"data.root={root}", f"data.store={tmp_path / 'store'}"]
    prepare.make(cli.load_config(f"paper/{preset}", words))
    small = ["rounds=1", "clients.local_epochs=1", "clients.batch_size=8"]
    config = ["--config", f"paper/{preset}", "--set", *words, *small]
    summary = runs.completed(ranks, tmp_path / "run", *config)
    assert readout in summary["accuracy"]
