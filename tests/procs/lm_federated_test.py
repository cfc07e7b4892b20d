"""Does the shipped federated language model give the same bits under torchrun as alone?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.procs import runs

pytestmark = pytest.mark.procs

TINY = ("lm.steps=7", "lm.federated.local_steps=3", "lm.federated.clients=3", "lm.batch_size=2")
TINY += ("lm.model.layers=1", "lm.model.width=16", "lm.model.context=16", "lm.model.heads=2")


def test_world_sizes_agree_and_clients_without_text_are_told(tmp_path: Path) -> None:
    """Three clients by folder, one of which has too little text for a window."""
    for name, words in {"a": 300, "b": 200, "c": 1, "d": 250}.items():
        (tmp_path / "text" / name).mkdir(parents=True)
        file = tmp_path / "text" / name / "file.txt"
        file.write_text(" ".join(f"{name}{i}" for i in range(words)))
    own = (f"lm.data.text={tmp_path / 'text'}", f"data.store={tmp_path / 'store'}")
    words = ("--config", "lm/diloco", "--set", *TINY, *own, "lm.data.held_out=0.25")
    alone = runs.completed(0, tmp_path / "alone", *words)
    both = runs.completed(2, tmp_path / "both", *words)
    assert both["parameters_sha256"] == alone["parameters_sha256"]
    assert both["tokens"] == alone["tokens"]
    events = [json.loads(x) for x in (tmp_path / "both" / "metrics.jsonl").open()]
    seen = {e["client"] for e in events if e["event"] == "lm_client"}
    assert len(seen) == alone["tokens"] / (7 * 2 * 16)
