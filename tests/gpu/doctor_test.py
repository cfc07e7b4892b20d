"""Does the doctor try every GPU, and NCCL between them?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.procs import runs

pytestmark = pytest.mark.gpu


def test_all_cards_compute_and_add_up(tmp_path: Path) -> None:
    ranks = torch.cuda.device_count()
    words = [f"--ranks={ranks}", "--json", "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "launcher.commands", "doctor", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=runs.ROOT, timeout=180)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for name in ("CUDA devices", "computing", "nccl", "all_reduce nccl", "all_reduce gloo"):
        assert found[name]["ok"], found[name]
    assert found["computing"]["detail"].startswith("cuda")
    assert found["computing"]["ranks"] == list(range(ranks))
    assert "no uncorrected errors" in found["ECC"]["detail"]
