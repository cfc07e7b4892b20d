"""Text to token ids and back: bytes, a trained byte-level BPE, or any vocabulary from disk.

Every vocabulary has one id that ends a document. `tokenizer.json` beside the shards keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from data_shards.text.corpus import END
from fedcore.config_lm import LMDataConfig
from fedcore.errors import ConfigError
from fedcore.files import parse_json

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
ENDS = (END, "<|end_of_text|>", "</s>", "<eos>")  # what vocabularies call the end of a document
BYTES = {"kind": "bytes", "end": 256}

Ids = NDArray[np.uint32]


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int  # ids are 0 ... vocab_size - 1
    end: int  # the id that ends a document; no text is encoded as it

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, without `end`."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; `end` as its name, a torn character as U+FFFD."""

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`; the same vocabulary gives the same bytes."""


class ByteTokenizer:
    """The 256 bytes of UTF-8, and the end of a document."""

    vocab_size = 257
    end = 256

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The bytes of each text."""
        return [np.frombuffer(t.encode(), dtype=np.uint8).astype(np.uint32) for t in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the bytes."""
        parts = [END.encode() if i == self.end else bytes([i]) for i in ids]
        return b"".join(parts).decode(errors="replace")

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, which says that tokens are bytes."""
        (folder / FILE).write_text(json.dumps(BYTES) + "\n", encoding="utf-8")


def byte_library() -> LibraryTokenizer:
    """`ByteTokenizer` as other programs read it: a byte-level BPE without merges, the same ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    # byte-level BPE writes the bytes that do not print as the letters from U+0100 on
    letters = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    inner = Tokenizer(models.BPE(letters, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return LibraryTokenizer(inner)


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        known = inner.get_vocab()
        end = next((name for name in ENDS if name in known), END)
        inner.add_special_tokens([end])  # one more id where there was none
        inner.encode_special_tokens = True  # a document that spells `end` does not end there
        inner.no_padding()
        inner.no_truncation()
        self.inner = inner
        self.vocab_size = 1 + max(inner.get_vocab().values())  # ids may have gaps
        self.end = inner.get_vocab()[end]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, on all cores."""
        found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(each.ids, dtype=np.uint32) for each in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids."""
        text: str = self.inner.decode(list(ids), skip_special_tokens=False)
        return text

    def save(self, folder: Path) -> None:
        """Write the library's own format."""
        self.inner.save(str(folder / FILE))


def tokenizer(data: LMDataConfig, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that a configuration asks for; bpe is trained on `texts`."""
    if data.tokenizer == "bytes":
        return ByteTokenizer()
    if data.vocabulary is not None:
        return load(data.vocabulary)
    return train_bpe(texts, data.vocab_size)


def train_bpe(texts: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """Byte-level BPE with at most `vocab_size` ids: fewer where the text has no more pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < ByteTokenizer.vocab_size:
        raise ConfigError(
            "lm.data.vocab_size", vocab_size, "at least 256 bytes and an end", "257, or 8192"
        )
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return LibraryTokenizer(inner)


def load(place: Path) -> Tokenizer:
    """The vocabulary in a `tokenizer.json`, or in a folder with it or with GPT-2's two files.

    Raises `ConfigError` if there is none.
    """
    file = place / FILE if (place / FILE).is_file() else place
    pair = [place / name for name in ("vocab.json", "merges.txt")]
    try:
        if file.is_file():
            return _from_json(file.read_text(encoding="utf-8"))
        if all(part.is_file() for part in pair):
            return _from_pair(*map(str, pair))
        problem = "no such file" if not place.exists() else "neither is in this folder"
    except Exception as error:  # the library raises bare exceptions
        problem = " ".join(str(error).split())
    want = f"a {FILE}, or a folder with vocab.json and merges.txt ({problem})"
    raise ConfigError("lm.data.vocabulary", str(place), want, "lm.data.tokenizer=bytes")


def vocabulary_files(place: Path) -> list[Path]:
    """The files that `load` reads, for their content."""
    if place.is_file():
        return [place]
    own = [place / FILE] if (place / FILE).is_file() else []
    return own or [f for f in (place / "vocab.json", place / "merges.txt") if f.is_file()]


def _from_json(text: str) -> Tokenizer:
    from tokenizers import Tokenizer

    if parse_json(text) == BYTES:
        return ByteTokenizer()
    return LibraryTokenizer(Tokenizer.from_str(text))


def _from_pair(vocabulary: str, merges: str) -> LibraryTokenizer:
    """GPT-2's byte-level BPE."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    inner = Tokenizer(models.BPE.from_file(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return LibraryTokenizer(inner)
