"""Text -> documents -> token shards, once. A run makes them by itself, of a user's text too."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from data_shards.folder import Folder, Remote, folder_of
from data_shards.text import corpus, stdlib, tokenizers
from data_shards.text.manifest import TokenManifest
from data_shards.text.write import write
from data_shards.write import Tick
from fedcore.config import RunConfig
from fedcore.config_lm import LMConfig, LMDataConfig
from fedcore.files import plain_name, sha256_of
from launcher.elsewhere import given, local_store, outside, stored, verified
from launcher.once import once


def lm_of(config: RunConfig) -> LMConfig:
    """The section of a language-model run."""
    assert config.lm is not None
    return config.lm


def settings(config: RunConfig) -> dict[str, Any]:
    """All that the shards depend on; the text and a vocabulary count by their content."""
    lm = lm_of(config)
    chosen = {"content": _content(lm.data.text), **dealing(config)}
    if lm.data.vocabulary is not None:
        files = tokenizers.vocabulary_files(lm.data.vocabulary)
        chosen["vocabulary"] = [sha256_of(file) for file in files]
    return chosen


def dealing(config: RunConfig) -> dict[str, Any]:
    """All of them but the user's files."""
    lm = lm_of(config)
    chosen: dict[str, Any] = {
        "tokenizer": lm.data.tokenizer,
        "held_out": lm.data.held_out,
        "limit": lm.data.limit,
        "seed": lm.data.seed,
    }
    if lm.data.tokenizer == "bpe":
        chosen["vocab_size"] = lm.data.vocab_size
    if lm.federated is not None:
        chosen |= {"clients": lm.federated.clients, "partition": lm.data.partition}
    return chosen


@functools.lru_cache(maxsize=8)
def _content(text: Path | None) -> str:
    """SHA-256 of the text as it lies on the disk."""
    if text is not None:
        return corpus.content(text)
    return hashlib.sha256(stdlib.version().encode()).hexdigest()


def store_dir(config: RunConfig) -> Folder:
    """The folder of this configuration's shards; never inside the text, which it would change."""
    if config.data.shards is not None:
        return folder_of(config.data.shards, config.data.cache)
    data, store = lm_of(config).data, folder_of(config.data.store, config.data.cache)
    outside(store, data.text, "text")
    chosen = settings(config)
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]
    source = "python" if data.text is None else plain_name(data.text.resolve().stem)
    return store / f"text-{source}-{data.tokenizer}-{digest}"


def make(config: RunConfig, tick: Tick = lambda name: None, *, repair: bool = False) -> Folder:
    """The folder of token shards, made unless it is there already, as `prepare.make` does it."""
    folder = store_dir(config)
    if config.data.shards is not None:
        return _given(config, folder, repair)
    if isinstance(folder, Remote):
        return stored(folder, TokenManifest, settings(config), command(config))
    work = functools.partial(_write, config, folder, tick)
    return once(folder, TokenManifest, settings(config), work, repair=repair)


def _given(config: RunConfig, folder: Folder, repair: bool) -> Folder:
    """The folder of data.shards, if it is of this configuration."""
    manifest = TokenManifest.load(folder)
    wanted = dealing(config)
    keys = {name: f"lm.data.{name}" for name in {*wanted, *manifest.made_with}}
    given(folder, manifest, wanted, keys | {"clients": "lm.federated.clients"})
    if repair:
        verified(folder, manifest)
    return folder


def _write(config: RunConfig, folder: Path, tick: Tick) -> None:
    lm = lm_of(config)
    documents = corpus.corpus(lm.data.text, lm.data.limit, lm.data.seed)
    tick("text")
    write(folder, documents, lm, settings(config), tick)


def ensure(config: RunConfig) -> Folder:
    """The shards of a run, made if missing: no choice is left that a user would have to make."""
    return make(config)


def ids_of(data: LMDataConfig) -> int:
    """Size of the vocabulary; a bpe has this many at most, and fewer where its text is small."""
    if data.tokenizer == "bytes":
        return tokenizers.ByteTokenizer().vocab_size
    if data.vocabulary is not None:
        return tokenizers.load(data.vocabulary).vocab_size
    return data.vocab_size


def steps(config: RunConfig) -> int:
    """How many parts `make` tells of: text, tokenizer, clients, held-out text."""
    federated = lm_of(config).federated
    return 3 + (federated.clients if federated else 1)


def command(config: RunConfig) -> str:
    """The line that makes exactly these shards, whatever file the configuration came from."""
    lm = lm_of(config)
    values: dict[str, Any] = {
        "lm.data.seed": lm.data.seed,
        "data.store": local_store(config),
        "lm.data.tokenizer": lm.data.tokenizer,
        "lm.data.vocab_size": lm.data.vocab_size if lm.data.tokenizer == "bpe" else None,
        "lm.data.vocabulary": lm.data.vocabulary,
        "lm.data.held_out": lm.data.held_out,
        "lm.data.limit": lm.data.limit,
    }
    if lm.federated is not None:
        values["lm.federated.clients"] = lm.federated.clients
        values["lm.data.partition"] = lm.data.partition
    text = [] if lm.data.text is None else [f"--text {shlex.quote(str(lm.data.text))}"]
    words = [f"--set {shlex.quote(f'{k}={v}')}" for k, v in values.items() if v is not None]
    return " ".join(["fedcore shards make lm_small", *text, *words])
