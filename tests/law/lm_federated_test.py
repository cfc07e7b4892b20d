"""Is the federated language model what its rule says, on any number of ranks and after a stop?"""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore.checkpoint import Checkpoint, candidates
from fedcore.config_lm import OuterConfig
from fedcore.errors import LossDiverged, Stopped
from fedcore.lm.engine import PlainEngine
from fedcore.lm.outer import Outer
from fedcore.lm.turns import Turn
from fedcore.server.comm import Comm
from tests.lm_clients_toy import build, config_of, on_ranks
from tests.pausing import PauseWhen

pytestmark = pytest.mark.broad

FEDAVG = {"lr": 1.0, "momentum": 0.0}
PLAIN_SGD = {"name": "sgdm", "beta1": 0.0, "lr": 0.1, "weight_decay": 0.1}


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, False)])
def test_the_outer_step_agrees_with_torch(momentum: float, nesterov: bool) -> None:
    config = OuterConfig(lr=0.7, momentum=momentum, nesterov=nesterov, weight_decay=0.01)
    start = {name: torch.randn(3, 2, dtype=torch.float64) for name in ("w", "norm")}
    outer = Outer(dict(start), {})
    theirs = {name: value.clone().requires_grad_() for name, value in start.items()}
    sgd = torch.optim.SGD(theirs.values(), lr=0.7, momentum=momentum, nesterov=nesterov)
    for _ in range(5):
        gradient = {name: torch.randn_like(value) for name, value in start.items()}
        outer = outer.step(config, gradient, ("w",))
        theirs["w"].data *= 1 - 0.7 * 0.01  # torch's own decay goes through the momentum
        for name, value in theirs.items():
            value.grad = gradient[name]
        sgd.step()
    for name, value in theirs.items():
        torch.testing.assert_close(outer.weights[name], value.detach(), rtol=1e-14, atol=1e-14)


def test_one_local_step_and_a_plain_mean_are_synchronous_data_parallel(tmp_path: Path) -> None:
    federated = {"clients": 5, "local_steps": 1, "outer": FEDAVG}
    mine, _ = build(config_of(steps=6, optimizer=PLAIN_SGD, federated=federated), tmp_path / "a")
    both, _ = build(config_of(steps=6, optimizer=PLAIN_SGD, batch_size=10), tmp_path / "b")
    start = mine.server.weights
    mine.run()
    both.run()
    for name, value in both.engine.model.named_parameters():
        torch.testing.assert_close(mine.server.weights[name], value, rtol=0, atol=1e-12)
        assert not torch.equal(start[name], value)


@pytest.mark.parametrize("local_steps", [1, 3, 8])
def test_one_client_that_carries_its_memory_trains_as_without_rounds(
    local_steps: int, tmp_path: Path
) -> None:
    federated = {"clients": 1, "local_steps": local_steps, "outer": FEDAVG}
    plain, _ = build(config_of(steps=8), tmp_path / "plain", clients=1)
    plain.run()
    found = {}
    for carry in (True, False):
        config = config_of(steps=8, federated=federated | {"carry_optimizer": carry})
        run, _ = build(config, tmp_path / str(carry), clients=1)
        run.run()
        found[carry] = run.server.weights["lm_head.weight"]
    wanted = plain.engine.model.lm_head.weight
    torch.testing.assert_close(found[True], wanted, rtol=0, atol=1e-12)
    if local_steps < 8:
        assert (found[False] - wanted).abs().max() > 1e-4


class Still(PlainEngine):
    """All gradients are zero: only weight decay moves the weights."""

    def gradients(self, rows: Tensor) -> Tensor:
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return torch.zeros(())


@pytest.mark.parametrize("optimizer", ["adamw", "sgdm"])
def test_weights_shrink_by_the_local_and_the_global_decay(optimizer: str, tmp_path: Path) -> None:
    """(1 - eta_l lam_l)^K - eta_g lam_g a round (eta_g = 1)."""
    eta, lam, steps, pull = 0.02, 0.5, 7, 0.03
    config = config_of(
        steps=3 * steps,
        optimizer={"name": optimizer, "lr": eta, "weight_decay": lam},
        schedule={"name": "constant"},
        federated={"clients": 5, "local_steps": steps, "outer": FEDAVG | {"weight_decay": pull}},
    )
    run, _ = build(config, tmp_path, engine=Still)
    start = run.server.weights
    run.run()
    wanted = ((1 - eta * lam) ** steps - pull) ** 3
    for name, value in run.server.weights.items():
        factor = wanted if name in run.decayed else 1.0
        torch.testing.assert_close(value, factor * start[name], rtol=1e-12, atol=0)


def test_the_share_left_of_the_initialisation_is_what_is_left(tmp_path: Path) -> None:
    outer = {"lr": 0.7, "momentum": 0.9, "weight_decay": 0.01}
    config = config_of(
        steps=23,
        optimizer={"lr": 0.1, "weight_decay": 0.3},
        schedule={"warmup": 4},
        monitor={"every": 5},
        federated={"clients": 5, "local_steps": 5, "outer": outer},
    )
    run, sink = build(config, tmp_path, engine=Still)
    start = run.server.weights
    run.run()
    told = sink.of("lm_step")[-1]["initialisation_left"]
    assert 0.1 < abs(told) < 0.99
    for name in run.decayed:
        left = run.server.weights[name]
        torch.testing.assert_close(left, told * start[name], rtol=1e-9, atol=1e-12)


MIXED = {"clients": 5, "local_steps": 3, "per_round": 4}
RUNS: dict[str, dict[str, Any]] = {
    "diloco": {"federated": MIXED},
    "fp32": {"federated": MIXED, "precision": "fp32"},
    "muon": {"federated": MIXED, "optimizer": {"name": "muon"}},
    "fresh": {"federated": MIXED | {"carry_optimizer": False, "outer": FEDAVG}},
    "held": {"federated": MIXED, "monitor": {"every": 3, "target_rms": 0.5}},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", RUNS)
def test_ranks_agree_also_after_a_stop(name: str, tmp_path: Path) -> None:
    """1, 2, 3 and 6 ranks (one idle); stopped on 2, between two rounds or within one, and gone
    on with 1 and 3."""
    config = config_of(steps=11, **RUNS[name])

    def whole(comm: Comm) -> Any:
        run, sink = build(config, tmp_path / f"whole{comm.size}", comm)
        sha = run.run().parameters_sha256
        return sha, sink.of("lm_client"), sink.of("lm_step")

    def stopped(comm: Comm) -> None:
        run, _ = build(config, tmp_path / "stopped", comm)
        run.ledger.pauses = PauseWhen(lambda: run._done == 6)
        with pytest.raises(Stopped, match="before step 6"):
            run.run()

    def interrupted(comm: Comm) -> None:
        """Within the third round, after as many looks as the rank's number says."""
        run, _ = build(config, tmp_path / "interrupted", comm)
        looks = count()
        run.ledger.pauses = PauseWhen(lambda: run._done == 6 and next(looks) > 3 * comm.rank + 1)
        with pytest.raises(Stopped, match="in the round after step 6"):
            run.run()

    def resumed(comm: Comm, place: str) -> Any:
        run, sink = build(config, tmp_path / f"{place}{comm.size}", comm)
        run.resume(Checkpoint(candidates(tmp_path / place)[0]))
        sha = run.run().parameters_sha256
        return sha, sink.of("lm_client"), sink.of("lm_step")

    [alone] = on_ranks(1, whole)
    for ranks in (2, 3, 6):
        assert all(found == alone for found in on_ranks(ranks, whole)), ranks
    on_ranks(2, stopped)
    on_ranks(2, interrupted)
    late = (alone[0], *([r for r in records if r["step"] > 6] for records in alone[1:]))
    for place in ("stopped", "interrupted"):
        for ranks in (1, 3):
            found = on_ranks(ranks, functools.partial(resumed, place=place))
            assert all(each == late for each in found), (place, ranks)


def test_a_client_that_has_not_trained_yet_costs_no_other_its_memory(tmp_path: Path) -> None:
    """One client a round, and a stop before each: also before the first, when nobody has any."""
    config = config_of(steps=12, federated={"clients": 4, "local_steps": 2, "per_round": 1})

    def whole(comm: Comm) -> str | None:
        return build(config, tmp_path / "whole", comm)[0].run().parameters_sha256

    def piecewise(comm: Comm) -> str | None:
        folder = tmp_path / f"pieces{comm.size}"
        for stop in (0, 2, 4, 6, 8, 10, None):
            run, _ = build(config, folder, comm)
            if stop:
                run.resume(Checkpoint(candidates(folder)[0]))
            elif stop is None:
                run.resume(Checkpoint(candidates(folder)[0]))
                return run.run().parameters_sha256
            run.ledger.pauses = PauseWhen(lambda run=run, stop=stop: run._done == stop)
            with pytest.raises(Stopped):
                run.run()
        return None

    [wanted] = on_ranks(1, whole)
    for ranks in (1, 2):
        assert on_ranks(ranks, piecewise) == [wanted] * ranks


def test_what_a_run_tells_of_its_clients(tmp_path: Path) -> None:
    config = config_of(steps=8, evaluate=4, federated=MIXED, log_every=4)
    run, sink = build(config, tmp_path)
    run.run()
    lines = sink.of("lm_step")
    assert [line["step"] for line in lines] == [6, 8]  # the first ends of rounds at or after 4, 8
    assert [line["tokens"] for line in lines] == [6 * 4 * 2 * 6, 8 * 4 * 2 * 6]
    newest = sink.of("lm_client")[-4:]
    assert len({record["client"] for record in newest}) == 4
    assert all(record["drift"] > 0 for record in newest)
    assert [record["step"] for record in sink.of("lm_eval")] == [6, 8]


def test_a_client_that_sits_out_misses_no_text(tmp_path: Path) -> None:
    run, _ = build(config_of(steps=12, federated=MIXED), tmp_path)
    run.run()
    asked = [data.asked for data in run.turns.data.values()]
    assert all(numbers == list(range(len(numbers))) for numbers in asked)
    assert sum(map(len, asked)) == 4 * 12
    assert 0 < min(map(len, asked)) < 12  # others each round


def test_a_client_that_diverges_is_named_on_every_rank(tmp_path: Path) -> None:
    config = config_of(steps=9, federated={"clients": 5, "local_steps": 3})

    def work(comm: Comm) -> LossDiverged:
        run, _ = build(config, tmp_path, comm)
        train = run.turns.train

        def breaks(client: int, weights: Any, steps: range, *more: Any) -> Turn:
            turn = train(client, weights, steps, *more)
            broken = turn.losses.clone()
            if client == 3 and steps.start == 3:
                broken[1] = torch.nan
            return turn._replace(losses=broken)

        run.turns.train = breaks
        with pytest.raises(LossDiverged, match="client 3 diverged in step 5") as caught:
            run.run()
        return caught.value

    told = [replace(error, loss=0.0).to_json() for error in on_ranks(2, work)]
    assert told[0] == told[1]
