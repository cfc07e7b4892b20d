"""Is DeepSpeed told what the configuration says, and is what cannot work refused?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcore.config import RunConfig
from fedcore.errors import ConfigError, FedError
from fedcore.lm.engine import PlainEngine, Trained, shares
from fedcore.lm.engine_accelerate import AccelerateEngine
from fedcore.lm.engine_deepspeed import DeepSpeedEngine, to_deepspeed
from fedcore.lm.model import TransformerLM
from fedcore.lm.optim import build_optimizer
from launcher import cli
from launcher.lm_job import LanguageModel, check_batch
from tests.lm_toy import config_of


def config(precision: str = "fp32", **lm: Any) -> RunConfig:
    lm = {"engine": "deepspeed", "batch_size": 32, **lm}
    return RunConfig.of({"precision": precision, "lm": lm})


def test_deepspeed_is_told_the_batch_as_it_is_cut() -> None:
    said = to_deepspeed(config(accumulate=4, max_norm=0.5), ranks=2, cuda=False)
    assert said["train_batch_size"] == 32
    assert said["train_micro_batch_size_per_gpu"] == 4
    assert said["gradient_accumulation_steps"] == 4
    assert said["gradient_clipping"] == 0.5
    assert "optimizer" not in said, "its own optimisers would be compiled for minutes"


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_weights_are_for_shards_only(stage: int, precision: str) -> None:
    said = to_deepspeed(config(precision, zero_stage=stage), ranks=1, cuda=True)
    assert said["zero_optimization"]["stage"] == stage
    assert said["bf16"]["enabled"] == (precision == "bf16" and stage > 0)
    assert said["torch_autocast"]["enabled"] == (precision == "bf16" and stage == 0)


@pytest.mark.parametrize(
    ("offload", "stage", "parts"),
    [
        ("none", 3, set()),
        ("optimizer", 1, {"offload_optimizer"}),
        ("all", 3, {"offload_optimizer", "offload_param"}),
    ],
)
def test_offloading_names_what_leaves_the_device(offload: str, stage: int, parts: set[str]) -> None:
    zero = to_deepspeed(config(offload=offload, zero_stage=stage), 1, True)["zero_optimization"]
    assert {key for key in zero if key.startswith("offload")} == parts
    assert all(zero[part] == {"device": "cpu", "pin_memory": True} for part in parts)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("lm.zero_stage=4", ["lm.zero_stage", "4"]),
        ("lm={engine: deepspeed, zero_stage: 2, offload: all}", ["offload: all", "zero_stage: 3"]),
        ("lm={offload: optimizer}", ["engine: deepspeed"]),
        ("lm={engine: deepspeed, optimizer: {name: muon}}", ["muon", "zero_stage: 0"]),
        ("lm={engine: deepspeed, federated: {}}", ["engine: plain"]),
        ("lm.engine=deepsped", ["Try deepspeed"]),
        ("lm.model.heads=3", ["3 does not divide 256"]),
        ("lm.schedule.name=cosin", ["lm.schedule.name", "Try cosine"]),
        ("lm.schedule={name: ema_constant_wd, weight_decay: tied}", ["lm.schedule.weight_decay"]),
        ("lm.data.tokenizer=file", ["vocabulary: PATH"]),
        ("clients.count=3", ["clients", "below lm"]),
        ("lm.steps=0", ["lm.steps", "0"]),
        ("lm.federated={clients: 4, per_round: 5}", ["lm.federated.per_round", "5", "clients=4"]),
        ("lm.optimizer.weight_decay=1500", ["lm.optimizer.weight_decay", "1500", "below 1 / lr"]),
        ("lm.optimizer.lr=.inf", ["lm.optimizer.lr"]),
        ("lm.optimiser.lr=1", ["lm.optimiser", "Try lm.optimizer"]),
    ],
)
def test_a_mistake_names_key_value_and_way_out(override: str, words: list[str]) -> None:
    with pytest.raises(FedError) as caught:
        LanguageModel(cli.load_config("lm_small", [override])).dry_run()
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)


def test_a_dry_run_counts_the_ids_of_the_tokenizer() -> None:
    assert (
        "3,345,152 parameters (for a vocabulary of 257)"
        in LanguageModel(cli.load_config("lm_small")).dry_run()
    )


def test_a_batch_that_cannot_be_cut_names_the_next_that_can() -> None:
    with pytest.raises(ConfigError, match=r"lm\.batch_size.*3 rank.*Try lm\.batch_size=36"):
        check_batch(config(accumulate=4), ranks=3)


@pytest.mark.parametrize("engine", [DeepSpeedEngine, AccelerateEngine])
def test_fp64_is_for_the_plain_engine(engine: Any, tmp_path: Path) -> None:
    wide = config("fp64", model={"layers": 1, "width": 16, "heads": 2, "context": 16})
    assert wide.lm
    model = TransformerLM(wide.lm.model, 257, 0)
    optimiser = build_optimizer(model, wide.lm.optimizer)
    with pytest.raises(ConfigError, match=r"precision.*fp64.*lm\.engine=plain"):
        engine(Trained(wide, model, optimiser, torch.device("cpu")))


def test_parts_of_a_step_make_the_step_of_the_whole(tmp_path: Path) -> None:
    rows = torch.randint(0, 257, (4, 17), generator=torch.Generator().manual_seed(0))
    found = []
    for accumulate in (1, 2, 4):
        own = config_of(tmp_path, accumulate=accumulate)
        assert own.lm
        model = TransformerLM(own.lm.model, 257, 0).double()
        optimiser = build_optimizer(model, own.lm.optimizer)
        engine = PlainEngine(Trained(own, model, optimiser, torch.device("cpu")))
        loss, norm = engine.gradients(rows), engine.step()
        found.append(torch.cat([loss[None], norm[None], *(p.flatten() for p in engine.parts())]))
    assert torch.allclose(found[0], found[1], rtol=1e-12)
    assert torch.allclose(found[0], found[2], rtol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [1, 100, 1, 1], [7], [], [3, 1, 4, 1, 5, 9, 2, 6]])
def test_every_tensor_is_stored_by_one_rank_and_none_has_much_more(
    sizes: list[int], ranks: int
) -> None:
    found = shares(sizes, ranks)
    assert sorted(i for own in found for i in own) == list(range(len(sizes)))
    load = [sum(sizes[i] for i in own) for own in found]
    assert max(load) <= sum(sizes) / ranks + max(sizes, default=0)
