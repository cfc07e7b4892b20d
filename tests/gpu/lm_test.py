"""Language models on a CUDA device: engines, precision, resume. Run with `make gpu`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.procs import runs
from tests.procs.lm_resume_test import losses, read_lines

pytestmark = pytest.mark.gpu

STEPS = 200
LM = {
    "steps": STEPS,
    "batch_size": 8,
    "log_every": 1,
    "data": {"limit": 100_000},
    "model": {"layers": 2, "width": 64, "heads": 4, "context": 64},
    "optimizer": {"lr": 0.003},
}
ENGINES = {
    "plain": {},
    "zero1": {"engine": "deepspeed", "zero_stage": 1},
    "zero3": {"engine": "deepspeed", "zero_stage": 3},
}
# sums on the device are not ordered: equal runs drift apart, slowly
SAME = 1e-3


def words(folder: Path, engine: str, precision: str = "fp32") -> tuple[str, ...]:
    config = folder / f"{engine}-{precision}.yaml"
    sections = {"lm": LM | ENGINES[engine], "data": {"store": str(folder / "store")}}
    config.write_text(json.dumps({"device": "cuda", "precision": precision, **sections}))
    return ("--config", str(config), "--set", f"evaluate.every={STEPS}", "checkpoint.every=50")


def curve(folder: Path, engine: str, precision: str = "fp32") -> dict[int, float]:
    """Training loss by step of a whole run on one device."""
    run_dir = folder / f"{engine}-{precision}"
    runs.completed(0, run_dir, *words(folder, engine, precision))
    return losses(run_dir)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lm")


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[int, float]:
    return curve(folder, "plain")


@pytest.mark.parametrize("engine", ENGINES)
def test_bf16_learns_and_stays_near_fp32(
    engine: str, folder: Path, plain: dict[int, float]
) -> None:
    loss = curve(folder, engine, "bf16")
    assert loss[STEPS] < 0.8 * loss[1]
    assert loss[STEPS] == pytest.approx(plain[STEPS], rel=0.05)


@pytest.mark.parametrize("engine", ["zero1", "zero3"])
def test_zero_makes_the_plain_curve(engine: str, folder: Path, plain: dict[int, float]) -> None:
    assert curve(folder, engine) == pytest.approx(plain, rel=SAME)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stopped_run_goes_on_as_one_never_stopped(
    engine: str, folder: Path, plain: dict[int, float]
) -> None:
    run_dir, own = folder / f"{engine}-stopped", words(folder, engine)
    process = runs.start(0, run_dir, *own)
    runs.wait_for(lambda: len(read_lines(run_dir)) > 10, "ten lines")
    process.send_signal(signal.SIGTERM)
    out = runs.finish(process)
    assert process.returncode == 75, out[-3000:]
    runs.completed(0, run_dir, *own)
    assert losses(run_dir) == pytest.approx(plain, rel=SAME)
