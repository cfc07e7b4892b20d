"""A language model that a run left behind, with its vocabulary."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from data_shards.text.tokenizers import Tokenizer, load
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.files import inside
from fedcore.lm.model import TransformerLM
from launcher.checkpoint_stored import newest_good
from launcher.rundir import RunDir, storage

VOCABULARY = "tokenizer.json"


class Stored(NamedTuple):
    """What `load_stored` finds."""

    model: TransformerLM  # on the CPU
    config: RunConfig  # of the run
    step: int
    vocabulary: Path


def keep_vocabulary(store: Path, file: str, run: RunDir) -> None:
    """Copy the vocabulary of the shards into the run, which then needs no shards to be read."""
    with storage(run.path):
        shutil.copyfile(inside(store, file), run.path / VOCABULARY)


def load_stored(place: Path) -> Stored:
    """The model in a checkpoint folder, or in the newest good one of a run directory.

    Raises `ConfigError` if `place` is neither, `ShardError` if the checkpoint is damaged.
    """
    folder = place if (place / "index.json").is_file() else newest_good(place)
    checkpoint = Checkpoint(folder)
    facts = checkpoint.facts
    if "run" not in facts:
        raise ConfigError("CHECKPOINT", str(place), "of a language-model run", "another one")
    config = RunConfig.of(facts["run"])
    assert config.lm is not None
    model = TransformerLM(config.lm.model, facts["vocab_size"], config.seed)
    model.load_state_dict(checkpoint.shared("model"))
    return Stored(model.eval(), config, facts["step"], folder.parent.parent / VOCABULARY)


def load_vocabulary(stored: Stored) -> Tokenizer:
    """Its tokenizer; `ConfigError` if a checkpoint was moved away from its run."""
    if not stored.vocabulary.is_file():
        want = f"{VOCABULARY} of the run beside its checkpoints"
        raise ConfigError("CHECKPOINT", str(stored.vocabulary), want, "the checkpoint in its run")
    return load(stored.vocabulary)
