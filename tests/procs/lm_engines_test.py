"""Do all engines and numbers of ranks give the same curve, and go on with each other's states?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.procs import runs
from tests.procs.lm_engines import BF16, ENGINES, STEPS, STOP, TAKEN_ON, VARIANTS
from tests.procs.runs import ROOT, command, completed, free_port, summary

pytestmark = pytest.mark.procs
SCRIPT = str(Path(__file__).with_name("lm_engines.py"))
RANKS = (1, 2)
CASES = [(n, r) for r in RANKS for n in ENGINES] + [(n, 2) for n in VARIANTS]
SAME = 1e-4  # relative: fp32 sums in another order
ALIKE = 0.02  # relative: bf16


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What the script found, by number of ranks."""
    folder = tmp_path_factory.mktemp("engines")
    return {
        ranks: runs.found(SCRIPT, ranks, folder / "store", folder / str(ranks), quiet=True)
        for ranks in RANKS
    }


def curve(case: dict[str, Any], name: str, first: int = 1) -> list[float]:
    return [case[name][str(step)] for step in range(first, STEPS + 1)]


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_fifty_steps_are_the_same(name: str, ranks: int, found: dict[int, Any]) -> None:
    reference, case = found[1]["plain"], found[ranks][name]
    for what in ("loss", "norm"):
        assert curve(case, what) == pytest.approx(curve(reference, what), rel=SAME), what
    assert case["held_out"] == pytest.approx(reference["held_out"], rel=SAME)
    assert curve(reference, "loss")[-1] < 0.8 * curve(reference, "loss")[0], "it learns nothing"


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_measured_weights_are_the_same(name: str, ranks: int, found: dict[int, Any]) -> None:
    """Weights and the last step's change of them, whole or in shards."""
    reference, case = found[1]["plain"]["rms"], found[ranks][name]["rms"]
    assert case.keys() == reference.keys()
    assert len(reference) == STEPS // 10
    for step, values in reference.items():
        assert case[step] == pytest.approx(values, rel=1e-3), step


@pytest.mark.parametrize("name", [f"{one} to {other}" for one, other in TAKEN_ON])
def test_any_engine_goes_on_with_a_state(name: str, found: dict[int, Any]) -> None:
    reference, case = found[1]["plain"], found[2][name]
    after = STOP + 1
    assert curve(case, "loss", after) == pytest.approx(curve(reference, "loss", after), rel=SAME)


@pytest.mark.parametrize("name", BF16)
def test_bf16_stays_near(name: str, found: dict[int, Any]) -> None:
    reference, case = found[1]["plain"], found[2][f"{name} bf16"]
    assert curve(case, "loss") == pytest.approx(curve(reference, "loss"), rel=ALIKE)
    assert curve(case, "loss") != curve(reference, "loss"), "that was not bf16"


def test_a_slurm_step_is_one_world(tmp_path: Path) -> None:
    """srun sets none of torchrun's variables: accelerate would train each rank alone."""
    small = ("lm.model.layers=1", "lm.model.width=16", "lm.model.heads=2", "lm.model.context=16")
    data = (f"data.store={tmp_path / 'store'}", "lm.data.limit=30_000")
    rates = ("lm.steps=20", "lm.optimizer.lr=0.01", "lm.schedule.warmup=0")
    words = ("--config", "lm_small", "--set", "device=cpu", *rates, *small, *data)
    alone = completed(0, tmp_path / "alone", *words, "lm.engine=deepspeed")
    step = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            command(0, tmp_path / "step", *words, "lm.engine=accelerate"),
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    found = summary(tmp_path / "step")
    assert found["world_size"] == 2
    assert found["final_eval_loss"] == pytest.approx(alone["final_eval_loss"], rel=SAME)
