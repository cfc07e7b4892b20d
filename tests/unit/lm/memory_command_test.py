"""Does `fedcore lm memory` tell, before any training, what a run will remember?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedcore.config_lm import LMConfig
from fedcore.lm.memory_report import Report
from fedcore.lm.schedules import LM_SCHEDULES
from launcher.commands import app

PNG = b"\x89PNG\r\n"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["lm", *words], env={"COLUMNS": "120"})


def test_the_command_writes_the_picture_and_the_numbers(tmp_path: Path) -> None:
    got = call("memory", "lm_small", "--out", str(tmp_path / "new"))
    assert got.exit_code == 0, got.output
    found = json.loads((tmp_path / "new" / "memory.json").read_text())
    assert (tmp_path / "new" / "memory.png").read_bytes().startswith(PNG)
    assert found["steps"] == 2000
    assert found["x"] == pytest.approx(0.2)
    assert (found["t1"], found["t2"], found["t3"]) == pytest.approx((10, 20, 10_000))
    assert {len(curve) for curve in found["curves"].values()} == {200}
    assert found["curves"]["left"][-1] == pytest.approx(found["initialisation_left"])
    words = " ".join(got.output.split())
    assert "never forgotten: x = lam eta_max T = 0.2 < 1, and 90%" in words
    assert "the last 10 steps count less" in words
    assert "100 steps of the warm-up count in proportion" in words
    assert found["warnings"][0] in words


def test_a_million_steps_and_endless_memory_have_numbers_too() -> None:
    """Without decay T3 is null in JSON; the curves stay short."""
    values = {"steps": 10**6, "optimizer": {"weight_decay": 0.0}, "schedule": {"name": "constant"}}
    found = Report.of(LMConfig.model_validate(values)).record()
    json.dumps(found, allow_nan=False)
    assert (found["t3"], found["initialisation_left"]) == (None, 1.0)
    assert len(found["curves"]["rms"]) == 200


def test_equal_memory_is_called_flat() -> None:
    config = LMConfig.model_validate(
        {
            "steps": 5000,
            "schedule": {"name": "ema_constant_wd"},
            "optimizer": {"lr": 0.01, "weight_decay": 0.1},
        }
    )
    report = Report.of(config)
    assert report.memory.flatness_inner == pytest.approx(1, abs=1e-12)
    assert list(report.sentences()) == [
        "the last 10 steps count less: their gradients are still in m"
    ]
    np.testing.assert_allclose(report.tenths[:9], report.tenths[0])


def test_ordered_data_are_told_what_they_weigh() -> None:
    """A curriculum: the last tenth of the text beside the first, and both over two epochs."""
    values = {"steps": 1000, "data": {"order": "ordered"}, "schedule": {"name": "constant"}}
    optimizer = {"lr": 0.1, "weight_decay": 0.1, "beta1": 0.0}
    config = LMConfig.model_validate(values | {"optimizer": optimizer})
    once, twice = Report.of(config), Report.of(config, epoch=500)
    (told,) = [s for s in once.sentences() if s.startswith("the data come in order")]
    assert f"{once.tenths[-1] / once.tenths[0]:.3g} times" in told
    assert once.tenths[-1] / once.tenths[0] == pytest.approx(0.99**-900)
    assert twice.tenths[-1] / twice.tenths[0] == pytest.approx(0.99**-450)


def test_sgdm_is_drawn_once_the_gradients_size_is_given(tmp_path: Path) -> None:
    config = LMConfig.model_validate({"steps": 100, "optimizer": {"name": "sgdm"}})
    assert "rms" not in Report.of(config).record()["curves"]
    Report.of(config).write(tmp_path)
    one, two = (Report.of(config, gradient_std=std).rms for std in (100.0, 200.0))
    assert one is not None
    assert two is not None
    assert two[-1] > 1.5 * one[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("memory", "smoke"), "smoke is a federated one. Try lm_small"),
        (("memory", "lm_smal"), "Try lm_small"),
        (("memory", "lm_small", "--set", "lm.schedule.name=cosin"), "Try cosine"),
    ],
)
def test_a_mistake_ends_in_one_line(words: tuple[str, ...], told: str) -> None:
    got = call(*words)
    assert got.exit_code == 2
    assert told in got.stderr
    assert len(got.stderr.splitlines()) == 1


def test_the_schedules_are_listed() -> None:
    got = call("schedules")
    assert got.exit_code == 0
    assert all(name in got.output for name in LM_SCHEDULES.names())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"federated": {}}, "one client that trains alone"),
        ({"monitor": {"target_rms": 0.1}}, "a lam of its own"),
    ],
)
def test_what_the_numbers_leave_out_is_said(values: dict, words: str) -> None:
    assert words in next(Report.of(LMConfig.model_validate(values)).sentences())
