"""Documents to token shards: `client_00000/00000.tar`, `held_out/00000.tar`, the tokenizer.

A document is two files: `<index>.u16` (or `.u32`: its token ids and the end, little-endian) and
`<index>.json` (name, group, bytes of text). The same documents give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_shards.manifest import client_folder, tar_name
from data_shards.tar_writer import complete_or_absent, described, filled, write_manifest, write_tar
from data_shards.text.corpus import Corpus, Document
from data_shards.text.deal import deal, held_out
from data_shards.text.manifest import (
    DTYPES,
    HELD_OUT,
    TokenClient,
    TokenManifest,
    TokenPart,
    Vocabulary,
    dtype_of,
)
from data_shards.text.tokenizers import FILE, Tokenizer, tokenizer
from data_shards.write import Tick
from fedcore.config_lm import LMConfig

AT_ONCE = 64  # documents encoded together, on all cores


def write(
    folder: Path,
    corpus: Corpus,
    lm: LMConfig,
    settings: dict[str, Any],
    tick: Tick = lambda name: None,
) -> TokenManifest:
    """Write all token shards of a corpus into `folder`, which appears only when complete.

    A bpe vocabulary is trained on what is trained on: held-out text stays unseen. tick is told
    the name of each part that is done. Raises `StorageError` when the disk is full.
    """
    documents = corpus.documents
    trained, held = held_out(len(documents), lm.data.held_out, lm.data.seed)
    clients = deal(documents, trained, lm, lm.data.seed)
    words = tokenizer(lm.data, (documents[i].text for i in trained))
    tick("tokenizer")
    with complete_or_absent(folder) as work:
        words.save(work)
        parts = [
            _write_part(work, name, documents, indices, words, tick)
            for name, indices in [*_named(clients), (HELD_OUT, held)]
        ]
        manifest = TokenManifest(
            source=corpus.source,
            skipped=corpus.skipped,
            vocabulary=_vocabulary(work, words, lm),
            dtype=dtype_of(words.vocab_size),
            settings=settings,
            clients=tuple(_clients(parts[:-1])),
            held_out=parts[-1],
        )
        write_manifest(work, manifest)
    return manifest


def _vocabulary(work: Path, words: Tokenizer, lm: LMConfig) -> Vocabulary:
    file = described(work, FILE, 0)
    return Vocabulary(kind=lm.data.tokenizer, size=words.vocab_size, end=words.end, file=file)


def _clients(parts: Sequence[TokenPart]) -> Iterator[TokenClient]:
    for client, part in enumerate(parts):
        yield TokenClient(client=client, **part.model_dump())


def _named(clients: Sequence[list[int]]) -> list[tuple[str, list[int]]]:
    return [(client_folder(client), indices) for client, indices in enumerate(clients)]


def _write_part(
    work: Path,
    name: str,
    documents: Sequence[Document],
    indices: Sequence[int],
    words: Tokenizer,
    tick: Tick,
) -> TokenPart:
    """One part's tars, each with at most SHARD_BYTES of tokens unless one document has more."""
    (work / name).mkdir()
    tokens, shards = 0, []
    for number, samples in enumerate(filled(_samples(documents, indices, words))):
        shards.append(write_tar(work, tar_name(name, number), samples))
        tokens += sum(_size(sample, words) for sample in samples) // _width(words)
    tick(name)
    return TokenPart(
        documents=len(indices),
        tokens=tokens,
        bytes=sum(documents[i].bytes for i in indices),
        shards=tuple(shards),
    )


def _samples(
    documents: Sequence[Document], indices: Sequence[int], words: Tokenizer
) -> Iterator[dict[str, Any]]:
    """What stands in a tar for each document."""
    extension, width = DTYPES[dtype_of(words.vocab_size)], _width(words)
    for start in range(0, len(indices), AT_ONCE):
        some = indices[start : start + AT_ONCE]
        for index, ids in zip(some, words.encode([documents[i].text for i in some]), strict=True):
            document = documents[index]
            about = {"name": document.name, "group": document.group, "bytes": document.bytes}
            ended = np.append(ids, words.end).astype(f"<u{width}")
            yield {
                "__key__": f"{index:08d}",
                extension: ended.tobytes(),
                "json": json.dumps(about).encode(),
            }


def _size(sample: dict[str, Any], words: Tokenizer) -> int:
    """Bytes of its tokens."""
    return len(sample[DTYPES[dtype_of(words.vocab_size)]])


def _width(words: Tokenizer) -> int:
    """Bytes of a token."""
    return np.dtype(dtype_of(words.vocab_size)).itemsize
