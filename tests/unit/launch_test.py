"""Does a step give the same however it is launched?

Capturing needs a GPU; what moves lanes and inputs to where a graph reads them does not. Here the
recorder keeps the Python of the step and does it again at each replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedcore.clients.group import ClientGroup
from fedcore.clients.launch import WARM, Compiled, Graphed
from fedcore.clients.step import StepReadings
from tests.toy import ToyData, toy_group, toy_order

SIZES = [20, 18, 9, 13, 1, 16]  # lanes of three, some of whose clients end early
ROUNDS = 3


def trained(name: str, launch: Callable[[ClientGroup], Any] | None = None) -> ClientGroup:
    group = toy_group(name, range(len(SIZES)), ToyData(SIZES), width=3, rounds=ROUNDS)
    if launch is not None:
        group.launch = launch(group)
    for round in range(ROUNDS):
        group.train(toy_order(name, round, range(len(SIZES))))
    return group


class Recorder:
    """Counts captures and replays."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, work: Callable[[], StepReadings]) -> Callable[[], StepReadings]:
        self.captured += 1

        def replay() -> StepReadings:
            self.replayed += 1
            return work()

        return replay


@pytest.mark.parametrize("name", ["v14", "v12", "fedprox", "scaffold", "gradnorm", "fedproto"])
def test_captured_steps_are_the_same_steps(name: str) -> None:
    recorder = Recorder()
    wanted = trained(name)
    found = trained(name, lambda group: Graphed(group.setup, record=recorder))
    assert recorder.captured == 1
    assert recorder.replayed > 8 * WARM
    for key, values in wanted.state.tensors().items():
        assert torch.equal(found.state.tensors()[key], values), key


def test_a_step_that_cannot_be_captured_runs_eagerly_and_it_is_told() -> None:
    def refuse(work: Callable[[], StepReadings]) -> Callable[[], StepReadings]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    told: list[str] = []
    found = trained("v14", lambda group: Graphed(group.setup, told.append, refuse))
    assert told == [
        "steps run eagerly, since they cannot be captured: RuntimeError: operation not permitted "
        "when stream is capturing"
    ]
    wanted = trained("v14")
    for key, values in wanted.state.tensors().items():
        assert torch.equal(found.state.tensors()[key], values), key


def test_hypergradients_are_not_captured_or_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look at held-out samples between steps."""
    recorder = Recorder()
    trained("hypergradient", lambda group: Graphed(group.setup, record=recorder))
    assert recorder.captured == 0
    monkeypatch.setattr(torch, "compile", lambda function, **settings: None)
    told: list[str] = []
    trained("hypergradient", lambda group: Compiled(group.setup, told.append))
    assert not told


def test_a_loss_that_cannot_be_compiled_runs_eagerly_and_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_compiler(function: Any, **settings: Any) -> Any:
        def fails(*inputs: Any) -> Any:
            for values in inputs[3].values():  # batch statistics, which a step moves as it goes
                values.add_(1)
            raise RuntimeError("no working C++ compiler")

        return fails

    monkeypatch.setattr(torch, "compile", no_compiler)
    told: list[str] = []
    found = trained("v14", lambda group: Compiled(group.setup, told.append))
    assert told == [
        "steps run eagerly, since torch.compile cannot: RuntimeError: no working C++ compiler"
    ]
    wanted = trained("v14")
    for key, values in wanted.state.tensors().items():
        assert torch.equal(found.state.tensors()[key], values), key


@pytest.mark.parametrize("lanes", [[[0, 1, 2], [3, 4]], [[3, 4], [0, 1, 2]], [[3, 4]]])
def test_what_is_compiled_does_not_depend_on_the_lanes_a_rank_has(
    monkeypatch: pytest.MonkeyPatch, lanes: list[list[int]]
) -> None:
    """Steps of three clients, never of two: be they a lane of their own or the end of one."""
    compiled: list[Any] = []

    def compiler(function: Any, **settings: Any) -> Any:
        def call(*inputs: Any) -> Any:
            compiled.append(function)
            return function(*inputs)

        return call

    monkeypatch.setattr(torch, "compile", compiler)
    sizes = [20, 20, 5, 20, 20]
    like = toy_group("v14", [0], ToyData(sizes))
    group = ClientGroup(
        lanes,
        ToyData(sizes),
        like.model,
        like.algorithm,
        like.hyper,
        rounds=1,
        epochs=2,
        width=3,
        launch=Compiled,
    )
    group.train(toy_order("v14", 0, range(5)))
    full = 0 if len(lanes) == 1 else 2 * like.data.steps(2)  # then client 2 is through
    assert len(compiled) == full
    assert not group.room.notes


def test_what_is_told_after_older_notes_were_told_is_not_lost() -> None:
    group = toy_group("v14", [0], ToyData([20]))
    told: list[str] = []

    def launch(setup: Any, tell: Callable[[str], None]) -> Graphed:
        told.append("made")
        return Graphed(setup, tell, lambda work: 1 / 0)

    group = ClientGroup(
        [[0]],
        ToyData([20]),
        group.model,
        group.algorithm,
        group.hyper,
        rounds=1,
        epochs=2,
        launch=launch,
    )
    group.room.notes = []  # told
    group.train(toy_order("v14", 0, [0]))
    assert told == ["made"]
    assert [note.split(":")[0] for note in group.room.notes] == [
        "steps run eagerly, since they cannot be captured"
    ]
