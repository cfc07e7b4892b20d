"""Does the shipped federated language model give the same bits under torchrun as alone, and after a
stop within a round?"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.procs import runs
from tests.procs.faults import Faults

pytestmark = pytest.mark.procs

TINY = ("lm.steps=7", "lm.federated.local_steps=3", "lm.federated.clients=3", "lm.batch_size=2")
TINY += ("lm.model.layers=1", "lm.model.width=16", "lm.model.context=16", "lm.model.heads=2")


def test_world_sizes_and_a_stop_agree_and_clients_without_text_are_told(tmp_path: Path) -> None:
    """Three clients, a folder each; the last has too little text for a window."""
    for folder, words in {"a": 300, "b": 200, "c": 1}.items():
        (tmp_path / "text" / folder).mkdir(parents=True)
        for part in range(2):
            text = " ".join(f"{folder}{part}{i}" for i in range(words))
            (tmp_path / "text" / folder / f"{part}.txt").write_text(text)
    own = (f"lm.data.text={tmp_path / 'text'}", f"data.store={tmp_path / 'store'}")
    words = ("--config", "lm/diloco", "--set", *TINY, *own, "lm.data.held_out=0.15")
    alone = runs.completed(0, tmp_path / "alone", *words)
    both = runs.completed(2, tmp_path / "both", *words)
    assert both["parameters_sha256"] == alone["parameters_sha256"]
    events = [json.loads(line) for line in (tmp_path / "both" / "metrics.jsonl").open()]
    told = [e["message"] for e in events if e["event"] == "warning"]
    assert any("clients [2] have no window of text" in words for words in told), told
    assert {e["client"] for e in events if e["event"] == "lm_client"} == {0, 1}
    assert both["tokens"] == 2 * 7 * 2 * 16
    stop = Faults().signal(rank=1, where="look", step=4, number=signal.SIGUSR1)
    out = stop.run(2, tmp_path / "stopped", *words)
    assert "stopped on request in the round after step 3" in out, out[-3000:]
    again = runs.completed(0, tmp_path / "stopped", *words)
    assert again["parameters_sha256"] == alone["parameters_sha256"]
