"""Does the script for a rented GPU reach its end, and leave what the page shows?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import write_numbers

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.procs


def test_the_gpu_script_takes_its_path_on_a_cpu(tmp_path: Path) -> None:
    own = {"SMOKE": "1", "OUT": str(tmp_path), "PYTHON": sys.executable}
    command = ["bash", "bench/gpu.sh"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for name in ("gpu_lanes", "gpu_whole"):
        region = write_numbers.region(json.loads((tmp_path / f"{name}.json").read_text()))
        assert "| " in region
        assert "Measured on cpu" in region
