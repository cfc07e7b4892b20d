"""Does an evaluation depend on how its clients are spread over lanes and ranks?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from data_shards.read import TestSamples
from fedcore import evaluate
from fedcore.clients.assign import balance
from fedcore.clients.group import ClientGroup
from fedcore.clients.store import Store
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.evaluate import Evaluator
from fedcore.readouts import READOUTS, Seen, all_parts
from fedcore.seeds import generator
from fedcore.server.average import average_models
from fedcore.server.comm import LocalComm
from fedcore.server.exact import ExactSum
from fedcore.server.fusion import FUSIONS
from fedcore.tally import Evaluation
from launcher.build import check_names
from tests.kept import Kept
from tests.law.evaluate_test import ToyTest, ToyValidation
from tests.law.explosion_test import federation
from tests.toy import SHAPE, ToyData, toy_group, toy_order

SIZES = [20, 9, 13, 5, 7]
SHARES = {k: n / sum(SIZES) for k, n in enumerate(SIZES)}
CHUNK = 10
CPU = torch.device("cpu")


class Aside(ToyValidation):
    """All clients but number 1 have samples set aside, some of them several chunks."""

    samples: ClassVar[dict[int, int]] = {0: 7, 2: 25, 3: 1, 4: 12}
    sizes: ClassVar[list[int]] = [30] * 5


class Rank(LocalComm):
    """One of several ranks, who says what the others hand in."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.handed_in = torch.zeros(0)
        self.others = 0

    def sum(self, values: Tensor) -> Tensor:
        self.handed_in = values.clone()
        return values + self.others


def trained(name: str, width: int) -> tuple[ClientGroup, dict[str, Tensor]]:
    """A group whose clients' models are those of a group of lanes of one; their average."""
    clients = list(range(len(SIZES)))
    alone = toy_group(name, clients, ToyData(SIZES))
    alone.train(toy_order(name, 0, clients))
    group = toy_group(name, clients, ToyData(SIZES), width=width)
    group.store = Store(alone.state, group.device)
    like = dict(group.model.named_parameters()) | dict(group.model.named_buffers())
    models = [(models_of(group, k), SHARES[k]) for k in clients]
    return group, average_models(LocalComm(), models, like)


def models_of(group: ClientGroup, client: int) -> dict[str, Tensor]:
    """One client's model."""
    for _, models in group.models([client]):
        return {name: values[0] for name, values in models.items()}
    raise AssertionError("every client has a model")


def evaluated(
    group: ClientGroup,
    averaged: dict[str, Tensor],
    comm: Rank,
    test: ToyTest | None = None,
    *,
    at_once: bool = True,
) -> Evaluation:
    """at_once: as on a CUDA device."""
    evaluator = Evaluator(comm, group.model, test or ToyTest(), 5, CHUNK, Aside())
    evaluator.at_once = at_once
    prototypes = averaged["prototypes"].double()
    return evaluator(group, SHARES, prototypes, averaged)


def plain_sums(group: ClientGroup) -> Tensor:
    """The integers of all parts [M, width], client by client and chunk by chunk."""
    test, rows = ToyTest(), []
    group.model.eval()
    models = {k: models_of(group, k) for k in SHARES}
    for start in range(0, len(test.labels), CHUNK):
        images, sums = test.images[start : start + CHUNK], []
        for part in all_parts():
            total = ExactSum(len(images) * part.width(4, 6), 2.0, CPU)
            for client, tensors in models.items():
                draws = generator(5, client, 0, "noise image")
                noise = torch.randn(1, *SHAPE, generator=draws, dtype=torch.float64)
                z, seen_noise = (
                    F.normalize(functional_call(group.model, tensors, x), dim=1).detach()
                    for x in (images, noise)
                )
                seen = Seen(z, z @ tensors["prototypes"].T, seen_noise[0])
                total.add(part.of(seen), SHARES[client])
            sums.append(total.total.view(len(images), -1))
        rows.append(torch.cat(sums, 1))
    group.model.train()
    return torch.cat(rows)


def sums(comm: Rank, like: Tensor) -> Tensor:
    """The part of what was handed in that `plain_sums` gives."""
    return comm.handed_in[: like.numel()].view_as(like)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of what the integers stand for."""
    return float((one - other).abs().max()) / ExactSum(0, 2.0, CPU).scale


def test_a_lane_of_one_adds_the_integers_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk to the bit; where several chunks are added at once, their products with
    prototypes and noise round differently in the last place, and the results are the same."""
    group, averaged = trained("v14", 1)
    comm, wanted = Rank(), plain_sums(group)
    found = evaluated(group, averaged, comm)
    assert apart(sums(comm, wanted), wanted) < 1e-15
    monkeypatch.setattr(evaluate, "BLOCK", 1)
    assert evaluated(group, averaged, comm) == found
    assert torch.equal(sums(comm, wanted), wanted)


def test_on_a_cpu_the_width_of_lanes_changes_no_bit() -> None:
    """There models run one by one, whatever their lanes."""
    narrow, wide = Rank(), Rank()
    wanted = evaluated(*trained("v14", 1), narrow, at_once=False)
    assert evaluated(*trained("v14", 3), wide, at_once=False) == wanted
    assert torch.equal(narrow.handed_in, wide.handed_in)


@pytest.mark.parametrize("name", ["v14", "fedavg"])
@pytest.mark.parametrize("width", [3, 5])
def test_every_readout_is_the_same_for_any_width(name: str, width: int) -> None:
    """Sums equal to 1e-12, and with them all that is counted."""
    narrow, one = Rank(), trained(name, 1)
    wide, several = Rank(), trained(name, width)
    wanted, found = evaluated(*one, narrow), evaluated(*several, wide)
    assert found[:2] == wanted[:2]
    assert set(Aside.samples) == set(found.validation)
    assert ("validation_averaged" in found.accuracy) == (name == "fedavg")
    assert found.variance == pytest.approx(wanted.variance, rel=1e-12)
    assert found.variance is not None
    assert found.variance > 0
    like = plain_sums(one[0])
    assert apart(sums(narrow, like), sums(wide, like)) < 1e-12


@pytest.mark.parametrize("name", ["v14", "fedavg"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_say_the_same(name: str, ranks: int) -> None:
    """Lanes of two on several ranks; the last is half empty."""
    group, averaged = trained(name, 2)
    wanted = evaluated(group, averaged, Rank())
    worlds, comms = balance(group.lanes, SIZES, ranks), [Rank(i, ranks) for i in range(ranks)]
    for comm, lanes in zip(comms, worlds, strict=True):
        group.lanes = lanes
        evaluated(group, averaged, comm)
    for comm, lanes in zip(comms, worlds, strict=True):
        comm.others = sum(c.handed_in for c in comms if c is not comm)
        group.lanes = lanes
        assert evaluated(group, averaged, comm) == wanted


def test_images_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lane's width, whatever that is; a lane of one has what was asked for."""
    monkeypatch.setattr(evaluate, "IMAGES", 16)
    sizes: list[int] = []

    class Watched(ToyTest):
        def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
            if stop is None:  # not of the averaged model's share
                sizes.append(size)
            yield from super().chunks(size, start, stop)

    found = [evaluated(*trained("v14", width), Rank(), Watched()) for width in (1, 3)]
    assert sizes == [CHUNK] * 5 + [5, 8]  # a lane of three, and one of two
    assert found[0][:2] == found[1][:2]


class Reads(TorchDispatchMode):
    """Counts how often a number is read out of a tensor: on a device, each would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("width", [1, 3])
def test_no_number_is_read_before_the_sum_over_ranks(width: int) -> None:
    with Reads() as reads:

        class Watched(Rank):
            def sum(self, values: Tensor) -> Tensor:
                assert reads.found == 0
                return super().sum(values)

        group, averaged = trained("fedavg", width)
        reads.found = 0
        evaluated(group, averaged, Watched())
        assert reads.found > 0, "those of the copy that came home"


@pytest.mark.parametrize("width", [1, 3])
def test_without_client_models_the_averaged_one_alone_is_looked_at(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, averaged = trained("fedavg", width)
    whole, comm = evaluated(group, averaged, Rank()), Rank()
    group.keeps_models = False
    monkeypatch.delattr(ClientGroup, "models")
    found = evaluated(group, averaged, comm)
    names = ("averaged", "validation_averaged")
    assert found.accuracy == {name: whole.accuracy[name] for name in names}
    assert found.validation == {}
    assert found.variance is None
    assert len(comm.handed_in) == 2


def test_a_round_without_evaluation_does_none_of_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second round is evaluated; one-shot, so that else no averaged model is made, either."""
    counts, told = Counter[str](), Kept()
    run = federation(tmp_path, told)

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            counts[name] += 1
            return function(*words)

        return call

    monkeypatch.setattr(Evaluator, "__call__", counted(Evaluator.__call__, "evaluation"))
    monkeypatch.setattr(FUSIONS, "get", counted(FUSIONS.get, "fusion"))
    monkeypatch.setattr(TestSamples, "chunks", counted(TestSamples.chunks, "images"))
    after = []
    monkeypatch.setattr(told, "write", lambda events: after.append((len(events), dict(counts))))
    run.run()
    first, second = (done for written, done in after if written > 1)  # each client's and the round
    assert first == {}
    assert set(second) == {"evaluation", "fusion", "images"}
    assert second["evaluation"] == second["fusion"] == 1


def test_a_readout_of_models_that_are_not_kept_is_refused() -> None:
    def names(**algorithm: str) -> None:
        check_names(RunConfig.of({"algorithm": algorithm, "clients": {"keep_models": False}}))

    names(name="fedavg")
    with pytest.raises(ConfigError, match=r"clients\.keep_models: .*v14 needs .*store=disk"):
        names(name="v14")
    with pytest.raises(ConfigError, match=r"clients\.keep_models: .*=iffi .*Try .*=averaged"):
        names(name="fedavg", readout="iffi")
    with pytest.raises(ConfigError, match=r"algorithm\.readout: got 'ifi'.*Try iffi"):
        names(name="fedavg", readout="ifi")


def test_what_readouts_share_is_summed_once() -> None:
    parts = [part for _, readout in READOUTS for part in readout.parts]
    assert len(all_parts()) == len(set(parts)) < len(parts)
