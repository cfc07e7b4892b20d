"""Do trackers get the numbers of metrics.jsonl, each once, and hold nobody up?"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fedcore.config import RunConfig
from fedcore.config_text import flatten
from fedcore.errors import ConfigError, Stopped
from fedcore.telemetry import telemetry as telemetry_module
from fedcore.telemetry import trackers
from fedcore.telemetry.events import Event, LMClientEvent, ResumeEvent, WarningEvent
from fedcore.telemetry.telemetry import Telemetry
from fedcore.telemetry.tracker_kinds import Opened
from fedcore.telemetry.trackers import TrackerSink, check_trackers, readings
from launcher.build import check_names
from tests.procs.runs import wait_for
from tests.unit.telemetry.made_up import (
    client_event,
    eval_event,
    round_event,
    step_event,
    whole_run,
)

pytestmark = pytest.mark.broad

NAMES = ("tensorboard", "wandb", "mlflow")
CONFIG = flatten(RunConfig().plain())
Curves = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def _defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [k for k in os.environ if k.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(key)


def sink(name: str, folder: Path, limit: int = 100) -> TrackerSink:
    pytest.importorskip(name)
    return TrackerSink(name, folder, "mine", CONFIG, limit)


def rounds_of(events: Sequence[Event], size: int) -> Iterator[Sequence[Event]]:
    return (events[i : i + size] for i in range(0, len(events), size))


# what each tracker has of a run, read back by its own means


def of_tensorboard(folder: Path) -> tuple[Curves, dict[str, str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    names = found.Tags()["scalars"]
    curves = {name: [(s.step, s.value) for s in found.Scalars(name)] for name in names}
    (stored,) = (folder / "tensorboard").glob("*/hparams.yml")
    pairs = (line.split(": ", 1) for line in stored.read_text().splitlines())
    return curves, {key: value.strip("'") for key, value in pairs}


def of_mlflow(folder: Path) -> tuple[Curves, dict[str, str]]:
    with mock.patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true"):
        return _of_mlflow(folder)


def _of_mlflow(folder: Path) -> tuple[Curves, dict[str, str]]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'fedcore'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "mine"
    curves = {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    return curves, run.data.params


def of_wandb(folder: Path) -> tuple[Curves, dict[str, str]]:
    curves, config, ids = Curves(), dict[str, str](), set[str]()
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        # wandb's own process writes the file, and is not always done when `finish` returns
        for record in wait_for(lambda file=file: whole(file), "wandb to write its file"):
            ids |= {record.run.run_id} - {""}
            for item in record.config.update:
                config[item.key or ".".join(item.nested_key)] = item.value_json.strip('"')
            for item in record.history.item:
                name = item.key or ".".join(item.nested_key)
                if not name.startswith("_"):
                    point = (record.history.step.num, float(json.loads(item.value_json)))
                    curves.setdefault(name, []).append(point)
    assert len(ids) == 1
    return curves, config


def whole(file: Path) -> list[Any]:
    """The records of a finished wandb run; none as long as its end is missing."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = [Record.FromString(data) for data in records_in(file.read_bytes())]
    return found if any(record.HasField("exit") for record in found) else []


def records_in(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format: blocks of 32 KiB, pieces with 7 bytes before each."""
    at, whole, block = 7, b"", 1 << 15
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


READ: dict[str, Callable[[Path], tuple[Curves, dict[str, str]]]] = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_has_each_round_once_also_when_the_run_was_resumed(
    name: str, tmp_path: Path
) -> None:
    rounds = [*rounds_of(whole_run(3, 8), 4)]
    attempts = [rounds[:5], [[ResumeEvent(3, "round_00003")], *rounds[3:]]]
    for attempt in attempts:
        one = sink(name, tmp_path)
        one.write([WarningEvent(0, "no reading")])
        for events in attempt:
            one.write(events)
        one.close()
    curves, config = READ[name](tmp_path)
    for key in ("accuracy/averaged", "annealing_factor", "bytes_communicated", "seconds/train"):
        due = [next(readings(events, 100))[2][key] for events in rounds]
        assert [step for step, _ in curves[key]] == [*range(1, 9)]
        assert [value for _, value in curves[key]] == pytest.approx(due, rel=1e-6)
    for k in range(3):
        due = [events[k].lambda_effective for events in rounds]  # type: ignore[attr-defined]
        found = [value for _, value in curves[f"lambda_effective/client_{k}"]]
        assert found == pytest.approx(due, rel=1e-6)
    assert config["algorithm.name"] == "v14"
    assert config["clients.lr"] == "0.05"
    assert config["clients.per_round"] == "null"


@pytest.mark.parametrize("name", NAMES)
def test_a_language_model_has_its_steps(name: str, tmp_path: Path) -> None:
    one = sink(name, tmp_path)
    one.write([step_event(100)])
    one.write([eval_event(100)])
    one.write([LMClientEvent(100, k, 2.0 + k, 0.5) for k in range(3)])
    one.write([step_event(200, loss=2.25)])
    one.close()
    curves, _ = READ[name](tmp_path)
    assert curves["loss"] == [(100, 2.5), (200, 2.25)]
    assert curves["held_out/perplexity"] == [(100, pytest.approx(12.18))]
    assert curves["client_loss/median"] == [(100, 3.0)]
    assert curves["weight_rms/no_decay"] == [(100, 1.0), (200, 1.0)]


@pytest.mark.parametrize("together", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize("name", NAMES)
def test_runs_of_one_process_have_each_their_own_numbers(
    name: str, together: bool, tmp_path: Path
) -> None:
    before = dict(os.environ)
    folders = [tmp_path / "first", tmp_path / "second"]
    sinks = [sink(name, folder) for folder in folders]
    for t in range(3):
        for i, one in enumerate(sinks):
            if together:
                one.write([round_event(t, prototype_std=float(i))])
                wait_for(one._queue.empty, "the tracker to take it")
    for i, one in enumerate(sinks):
        for t in () if together else range(3):
            one.write([round_event(t, prototype_std=float(i))])
        one.close()
    assert dict(os.environ) == before
    for i, folder in enumerate(folders):
        curves, config = READ[name](folder)
        assert curves["prototype_std"] == [(t, i) for t in (1, 2, 3)]
        assert config["algorithm.name"] == "v14"


def test_mlflow_goes_where_the_user_says_and_later_runs_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "shared" / "mlflow").as_uri())
    before = dict(os.environ)
    for t, folder in enumerate(("first", "second")):
        one = sink("mlflow", tmp_path / folder)
        one.write([round_event(t)])
        one.close()
        assert dict(os.environ) == before
    with mock.patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true"):
        from mlflow import MlflowClient

        client = MlflowClient((tmp_path / "shared" / "mlflow").as_uri())
        (experiment,) = client.search_experiments(filter_string="name = 'fedcore'")
        assert len(client.search_runs([experiment.experiment_id])) == 2
    assert [path.parent.name for path in tmp_path.glob("*/mlflow")] == ["shared"]


def test_readings_are_the_numbers_of_the_lines() -> None:
    event = round_event(3, prototype_std=float("nan"), model_variance=None, lambda_exploded=2)
    (item,) = readings([client_event(4, 3), client_event(7, 3), event], 100)
    kind, step, values = item
    assert (kind, step) == ("round", 4)
    assert values["accuracy/feature_ensemble"] == 0.9
    assert values["lambda_exploded"] == 2
    assert values["samples_per_second"] == 1234
    assert (values["lambda_raw/min"], values["lambda_raw/max"]) == (5, 8)
    assert values["lambda_raw/client_7"] == 8
    assert {"prototype_std", "model_variance", "time", "round", "rounds"}.isdisjoint(values)


def test_many_clients_are_a_spread() -> None:
    events = [*(client_event(k) for k in range(101)), round_event()]
    (item,) = readings(events, 100)
    assert item[2]["lambda_effective/median"] == 51
    assert not any("client_" in key for key in item[2])
    assert len(item[2]) < 40


class Fake:
    """A tracker that does what its test wants."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act, self.seen = act, list[int]()

    def start(self) -> None:
        self.act(-1)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        assert values["seed"] == 0

    def log(self, values: dict[str, float], step: int) -> None:
        self.act(step)
        self.seen.append(step)

    def finish(self) -> None:
        self.seen.append(-1)


@pytest.fixture
def fake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[TrackerSink, Fake]]:
    def made(act: Callable[[int], None]) -> tuple[TrackerSink, Fake]:
        one = Fake(act)
        monkeypatch.setitem(trackers.TRACKERS, "fake", lambda folder, run, kept: Opened(one))
        return TrackerSink("fake", tmp_path, "mine", CONFIG, 100), one

    return made


def test_a_slow_tracker_holds_nobody_up(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "WAITING", 4)
    gate, told = threading.Event(), list[str]()
    slow, seen = fake(lambda step: gate.wait(30) and None)
    telemetry = Telemetry([slow], report=told.append)
    for t in range(9):  # returns, though nothing is taken
        telemetry.write([round_event(t)])
    telemetry.close(patience=0.05)
    gate.set()
    slow._thread.join(30)
    assert len(told) == 1
    assert "fake is too slow" in told[0]
    assert seen.seen == [7, 8, 9, -1]  # the newest that had room, and the end


@pytest.mark.parametrize("error", [None, Stopped(3, "latest"), ZeroDivisionError()])
def test_stuck_trackers_share_one_deadline_and_a_stopped_run_hurries(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    patience = 0.9 if error is None else 0.3
    monkeypatch.setattr(telemetry_module, "PATIENCE", 0.9)
    monkeypatch.setattr(telemetry_module, "HURRY", 0.3)
    gate, told = threading.Event(), list[str]()
    names = ["one", "two", "three"]
    for name in names:
        stuck = Fake(lambda step: gate.wait(30) and None)
        monkeypatch.setitem(trackers.TRACKERS, name, lambda *_, stuck=stuck: Opened(stuck))
    sinks = [TrackerSink(name, tmp_path, "mine", CONFIG, 100) for name in names]
    with contextlib.suppress(Stopped, ZeroDivisionError), Telemetry(sinks, report=told.append) as t:
        t.write([round_event()])
        began = time.monotonic()
        if error is not None:
            raise error
    took = time.monotonic() - began
    gate.set()
    assert patience <= took < patience + 0.5
    assert len(told) == 3


def test_a_tracker_that_fails_is_told_once_and_tried_again(fake: Any) -> None:
    def fails_twice(step: int) -> None:
        if step in (2, 3):
            raise OSError("no space left")

    told = list[str]()
    one, seen = fake(fails_twice)
    telemetry = Telemetry([one], report=told.append)
    for t in range(5):
        telemetry.write([round_event(t)])
    telemetry.close()
    assert seen.seen == [1, 4, 5, -1]
    assert len(told) == 1
    assert "fake: no space left" in told[0]


def test_a_tracker_that_cannot_start_is_told_and_left_alone(fake: Any) -> None:
    tries, told = list[int](), list[str]()

    def never(step: int) -> None:
        tries.append(step)
        raise ConnectionError("no such server")

    one, _ = fake(never)
    telemetry = Telemetry([one], report=told.append)
    for t in range(5):
        telemetry.write([round_event(t)])
    telemetry.close()
    assert tries == [-1]
    assert len(told) == 1
    assert "no such server" in told[0]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_nothing_goes_to_a_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[Any]()
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    one = sink(name, tmp_path)
    one.write([round_event()])
    one.close()
    assert not calls


def test_a_tracker_that_is_not_installed_is_an_error_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "wandb" else name)
    check_trackers(["tensorboard", "mlflow"])
    config = RunConfig.of({"metrics": {"trackers": ["tensorboard", "wandb"]}})
    with pytest.raises(ConfigError, match=r"metrics.trackers: got 'wandb'.*fedcore\[trackers\]"):
        check_names(config)


def test_no_tracker_is_imported_before_it_is_asked_for() -> None:
    heavy = "{'accelerate', 'wandb', 'mlflow', 'tensorboard', 'torch.utils.tensorboard'}"
    words = f"import sys, fedcore.telemetry.trackers; sys.exit(str({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"
