"""The manifest of a folder of token shards, and of a folder of shards of either kind."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from data_shards.folder import Folder, words_of
from data_shards.manifest import NAME, Manifest, Record, Shard, SourceName, Stored, client_folder
from fedcore.files import parse_json

HELD_OUT = "held_out"  # folder of the text that nobody trains on
DTYPES = {"uint16": "u16", "uint32": "u32"}  # of tokens -> extension in a tar; little-endian


class TokenPart(Record):
    """The shards of one client, or of the held-out text."""

    documents: int = Field(ge=1, lt=2**53)
    tokens: int = Field(ge=1, lt=2**53)  # one more for each document, its end
    bytes: int = Field(ge=1)  # of the text in UTF-8; an end has none
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        in_shards = sum(shard.samples for shard in self.shards)
        if self.documents != in_shards:
            raise ValueError(f"{self.documents} documents, but {in_shards} in its shards")
        return self


class TokenClient(TokenPart):
    """The shards of one client, and how many tokens they hold."""

    client: int = Field(ge=0)


class Vocabulary(Record):
    """The tokenizer beside the shards."""

    kind: Literal["bytes", "bpe", "file"]
    size: int = Field(ge=2, lt=2**31)
    end: int = Field(ge=0)
    file: Shard


class TokenManifest(Stored):
    """Everything about a folder of token shards."""

    format_version: Literal[1] = 1
    kind: Literal["tokens"] = "tokens"
    source: SourceName
    skipped: dict[str, int]  # files of the corpus that are no text: reason -> how many
    vocabulary: Vocabulary
    dtype: Literal["uint16", "uint32"]
    settings: dict[str, Any]  # all that the shards depend on
    clients: tuple[TokenClient, ...] = Field(min_length=1)  # one, unless the run is federated
    held_out: TokenPart

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if [part.client for part in self.clients] != list(range(len(self.clients))):
            raise ValueError("clients are not numbered 0, 1, 2, ... in order")
        if self.vocabulary.end >= self.vocabulary.size:
            raise ValueError(f"end {self.vocabulary.end} of {self.vocabulary.size} tokens")
        if self.dtype != dtype_of(self.vocabulary.size):
            raise ValueError(f"{self.vocabulary.size} tokens as {self.dtype}")
        own = {client_folder(part.client): part.shards for part in self.clients}
        self._is_whole(len(self.clients), own | {HELD_OUT: self.held_out.shards})
        for name, part in self.parts.items():  # memory is taken for as many as are claimed
            held = sum(shard.bytes for shard in part.shards)
            if part.tokens * (2 if self.dtype == "uint16" else 4) > held:
                raise ValueError(f"{part.tokens:,} tokens of {name} in {held:,} bytes")
        return self

    @property
    def vocab_size(self) -> int:
        """Number of token ids: they are 0 ... vocab_size - 1."""
        return self.vocabulary.size

    @property
    def parts(self) -> dict[str, TokenPart]:
        """Every client and the held-out text, by name."""
        return {str(p.client): p for p in self.clients} | {"held out": self.held_out}

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The tokenizer, those of the clients, then those of the held-out text."""
        of_parts = [shard for part in self.parts.values() for shard in part.shards]
        return (self.vocabulary.file, *of_parts)

    @property
    def made_with(self) -> dict[str, Any]:
        """All settings that the shards depend on."""
        return self.settings

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a token of the held-out text; ends count as tokens without bytes."""
        return self.held_out.bytes / self.held_out.tokens


def dtype_of(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def load_any(folder: Folder) -> Manifest | TokenManifest:
    """The manifest of a folder of images or of tokens."""
    try:
        record = parse_json(words_of(folder, NAME))
    except (OSError, ValueError):
        record = None  # told by `load`
    tokens = isinstance(record, dict) and record.get("kind") == "tokens"
    return TokenManifest.load(folder) if tokens else Manifest.load(folder)
