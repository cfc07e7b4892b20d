"""A language model that a run left behind, with its vocabulary."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from data_shards.raw import reading
from data_shards.text.tokenizers import Tokenizer, load
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.lm.count import parameters
from fedcore.lm.model import TransformerLM
from launcher.checkpoint_stored import newest_good
from launcher.rundir import RunDir, storage

VOCABULARY = "tokenizer.json"


class Stored(NamedTuple):
    """A trained language model, and what is needed to use it."""

    model: TransformerLM  # on the CPU
    config: RunConfig  # of the run
    step: int
    vocabulary: Path


def keep_vocabulary(file: Path, run: RunDir) -> None:
    """Copy the vocabulary of the shards into the run, which then needs no shards to be read."""
    with storage(run.path):
        shutil.copyfile(file, run.path / VOCABULARY)


def load_stored(place: Path) -> Stored:
    """The model in a checkpoint folder, or in the newest good one of a run directory.

    Raises `ConfigError` if `place` is neither, `ShardError` if the checkpoint is damaged.
    """
    folder = place if (place / "index.json").is_file() else newest_good(place)
    checkpoint = Checkpoint(folder)
    facts = checkpoint.facts
    if "run" not in facts:
        raise ConfigError("CHECKPOINT", str(place), "of a language-model run", "another one")
    with reading(folder, "an older checkpoint"):
        config = RunConfig.of(facts["run"])
        model = _model(config, facts["vocab_size"], checkpoint.shared("model"))
        return Stored(model.eval(), config, facts["step"], folder.parent.parent / VOCABULARY)


def _model(config: RunConfig, vocab_size: int, tensors: dict[str, Tensor]) -> TransformerLM:
    """The model with these weights; `ValueError` before there is memory for more than they are."""
    assert config.lm is not None
    if config.lm.model.layers > len(tensors):
        raise ValueError(f"{config.lm.model.layers:,} layers in {len(tensors)} tensors")
    held = sum(value.numel() for value in tensors.values())
    said = sum(parameters(config.lm.model, vocab_size).values())
    if said > held:
        raise ValueError(f"a model of {said:,} parameters, but {held:,} are there")
    model = TransformerLM(config.lm.model, vocab_size, config.seed)
    model.load_state_dict(tensors)
    return model


def load_vocabulary(stored: Stored) -> Tokenizer:
    """Its tokenizer; `ConfigError` if a checkpoint was moved away from its run."""
    if not stored.vocabulary.is_file():
        want = f"{VOCABULARY} of the run beside its checkpoints"
        raise ConfigError("CHECKPOINT", str(stored.vocabulary), want, "the checkpoint in its run")
    return load(stored.vocabulary)
