"""Registry, seeds, schedules, world, models."""

from __future__ import annotations

import pytest
import torch

from fedcore.errors import CollectiveError, ConfigError
from fedcore.models import MODELS, ModelSpec
from fedcore.models.proto_head import build_model
from fedcore.registry import Registry
from fedcore.schedule import SCHEDULES, progress
from fedcore.seeds import generator, seed
from launcher import world
from launcher.world import Place, pick_device
from tests.procs.runs import free_port

ZERO = torch.zeros((), dtype=torch.float64)


def test_a_registry_gives_the_nearest_name_and_refuses_a_second_one() -> None:
    things: Registry[int] = Registry("some.key")
    things.add("linear", 1)
    with pytest.raises(ConfigError, match=r"some\.key.*'liner'.*Try linear"):
        things.get("liner")
    with pytest.raises(ConfigError, match="registered once"):
        things.add("linear", 2)


def test_an_address_is_a_stream_and_no_two_addresses_share_one() -> None:
    addresses = [
        (r, k, t, p, s)
        for r in (0, 1)
        for k in (-1, 0, 11)
        for t in (0, 1)
        for p in ("a", "b")
        for s in (0, 1)
    ]
    seeds = {seed(*a) for a in addresses}
    assert len(seeds) == len(addresses)
    assert all(0 <= s < 2**63 for s in seeds)
    assert torch.equal(
        torch.rand(3, generator=generator(1, 2, 3, "x")),
        torch.rand(3, generator=generator(1, 2, 3, "x")),
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("constant", [1, 1, 1]),
        ("linear", [1, 0.5, 0.1]),
        ("cosine", [1, 0.5, 0.5 * (1 + torch.cos(torch.tensor(0.9 * torch.pi)).item())]),
        ("consensus", [0.3, 0.3, 0.3]),
    ],
)
def test_schedules_on_paper(name: str, values: list[float]) -> None:
    at = [progress(0, 1, 0, 1, 0.3, ZERO)._replace(p=ZERO + p) for p in (0, 0.5, 0.9)]
    assert [SCHEDULES.get(name)(a).item() for a in at] == pytest.approx(values, abs=1e-6)


def test_progress_counts_local_epochs_and_rounds() -> None:
    at = progress(round=3, rounds=10, epoch=1, epochs=2, spread=0.5, like=ZERO)
    assert [x.item() for x in at] == pytest.approx([7 / 20, 3 / 10, 1 / 2, 0.5])
    assert at.on("round").p.item() == pytest.approx(0.3)
    assert at.on("epoch").p.item() == pytest.approx(0.35)


@pytest.mark.parametrize("name", MODELS.names())
def test_models_give_features_and_run_under_vmap(name: str) -> None:
    shape = (1, 8, 8)
    model = build_model(name, ModelSpec(*shape, classes=5), run_seed=0)
    width = model.prototypes.shape[1]
    images = torch.randn(2, 3, *shape)
    assert model(images[0]).shape == (3, width)
    stack = lambda tensors: {k: v.detach().expand(2, *v.shape).clone() for k, v in tensors}  # noqa: E731
    call = lambda p, b, x: torch.func.functional_call(model, (p, b), x)  # noqa: E731
    out = torch.func.vmap(call)(
        stack(model.named_parameters()), stack(model.named_buffers()), images
    )
    assert out.shape == (2, 3, width)


def test_a_model_is_a_function_of_the_seed_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    wanted = torch.rand(1)
    torch.manual_seed(1)
    one, two, other = (build_model("small_cnn", ModelSpec(1, 8, 8, 10), s) for s in (0, 0, 1))
    assert torch.equal(torch.rand(1), wanted)
    assert torch.equal(one.prototypes, two.prototypes)
    assert not torch.equal(one.prototypes, other.prototypes)


def test_a_projector_gives_another_width() -> None:
    model = build_model("small_cnn", ModelSpec(1, 8, 8, 10, feature_dim=100), 0)
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 100)
    assert model.prototypes.shape == (10, 100)


def test_the_place_of_a_process() -> None:
    assert Place.of({}) == Place()
    # inside a batch script, but not inside a step: one process
    assert Place.of({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Place()
    torchrun = {
        "RANK": "9",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert Place.of(torchrun) == Place(9, 16, 1, 8, "n1", 29500, 2, True)
    step = {
        "SLURM_JOB_ID": "41",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert Place.of(step) == Place(3, 4, 1, 2, "10.0.0.1", 20041)


def test_a_store_whose_agent_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there before any rank; half an hour is for ranks that are slower than this one."""
    monkeypatch.setattr(world, "HOSTED", 0.5)
    port = free_port()  # where nobody listens
    with pytest.raises(CollectiveError, match="rendezvous"):
        world.connect(Place(1, 2, 1, 2, "127.0.0.1", port, hosted=True), 1800.0)


def test_a_device_there_is_none_of() -> None:
    if torch.cuda.is_available():
        with pytest.raises(ConfigError, match="nproc_per_node"):
            pick_device("cuda", Place(local_size=torch.cuda.device_count() + 1))
    else:
        with pytest.raises(ConfigError, match="device=cpu"):
            pick_device("cuda", Place())
    assert pick_device("cpu", Place()).type == "cpu"
