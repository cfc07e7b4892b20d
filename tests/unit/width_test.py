"""Is the width of `auto` the one measured to be best, the same on all ranks, and remembered?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from data_shards.manifest import Manifest
from data_shards.write import Dealt
from fedcore.batch import Batch
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.server.comm import LocalComm
from launcher import width
from launcher.build import settle_width
from launcher.world import Place, World
from tests.unit.data_shards.toy_store import parts, stored

RATES = {1: 100.0, 2: 105.0, 4: 150.0, 8: 160.0, 16: 90.0, 32: 500.0}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest.load(stored(tmp_path / "shards", [Dealt(part) for part in parts()]))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedcore" / "widths"


def measured(monkeypatch: pytest.MonkeyPatch, most: int, fits: int = 99) -> width.Choice:
    """The choice among `RATES`, of lanes of which only `fits` clients fit into memory."""

    def rate(make: Any, batch: Any, anchors: Any, clients: int) -> float:
        if clients > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return RATES[clients]

    monkeypatch.setattr(width, "rate", rate)
    nothing: Any = None
    return width.measured(nothing, nothing, nothing, most)


@pytest.mark.parametrize(
    ("most", "fits", "wanted", "tried"),
    [
        (64, 99, 4, [1, 2, 4, 8, 16]),  # 8 is not a tenth faster; 16 is slower, 32 is not tried
        (3, 99, 1, [1, 2]),  # 2 is not a tenth faster
        (64, 4, 4, [1, 2, 4]),
        (0, 99, 1, [1]),  # a rank without clients
    ],
)
def test_the_narrowest_width_that_no_other_beats(
    most: int, fits: int, wanted: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = measured(monkeypatch, most, fits)
    assert choice.width == wanted
    assert list(choice.rates) == tried


def test_one_client_that_does_not_fit_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        measured(monkeypatch, 64, 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (-1, "-1"), ("fast", "'fast'"), (1.5, "1.5"), (True, "true"), (None, "null")],
)
def test_what_is_no_width_is_told_in_one_line(value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as met:
        config(width=value)
    assert str(met.value).startswith(f"clients.width: got {said}, want auto, or a whole number")


def config(**clients: Any) -> RunConfig:
    usual = {"width": "auto", "batch_size": 4, "local_epochs": 1}
    return RunConfig.of({"clients": usual | clients})


def world() -> World:
    return World(Place(), torch.device("cpu"), LocalComm())


def test_a_width_is_measured_in_training_and_then_remembered(
    manifest: Manifest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "SECONDS", 0.01)
    choice = settle_width(config(), manifest, world())
    assert choice.rates[1] > 0
    assert choice.width in choice.rates
    (file,) = home.iterdir()
    assert json.loads(file.read_text())["width"] == choice.width
    monkeypatch.setattr(width, "measured", None)
    assert settle_width(config(), manifest, world()) == (choice.width, {})


def test_another_batch_is_another_question(
    manifest: Manifest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([4, 8])
    monkeypatch.setattr(width, "measured", lambda *_: width.Choice(next(answers), {}))
    assert settle_width(config(), manifest, world()).width == 4
    assert settle_width(config(batch_size=2), manifest, world()).width == 8
    assert settle_width(config(), manifest, world()).width == 4


def test_a_memory_that_is_damaged_or_cannot_be_written_is_no_obstacle(
    manifest: Manifest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "measured", lambda *_: width.Choice(2, {}))
    settle_width(config(), manifest, world())
    for text in ("", "[]", '{"width": "x"}', '{"width": 3}', '{"width": true}'):
        next(home.iterdir()).write_text(text)
        assert settle_width(config(), manifest, world()).width == 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert settle_width(config(), manifest, world()).width == 2


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_batch_for_a_lane_lies_as_that_of_one_client(channels_last: bool) -> None:
    images = torch.arange(2 * 3 * 4 * 5 * 6.0).view(1, 2, 3, 4, 5, 6)
    if channels_last:
        images = images.movedim(3, 5).contiguous().movedim(5, 3)
    data = width.Repeated(Batch(images, torch.zeros(1, 3), torch.ones(1, 3)), 10, 2)
    first, second = data.epoch([0, 1, 2], 0, 0)
    assert first is second
    for client in first.images:
        assert torch.equal(client, images[0])
        assert client.stride() == images[0].stride()
