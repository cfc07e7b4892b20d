"""The manifest of a folder of shards: what is in each file, and where it came from."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from data_shards.folder import Folder, words_of
from data_shards.names import trouble_with
from fedcore.errors import ShardError
from fedcore.files import other_format

NAME = "manifest.json"
TEST = "test"  # folder of the test split
WAY_OUT = "`fedcore shards make CONFIG`"
MOST_PIXELS = 2**28  # numbers of an image; one blank image is made of a client without any
MOST_DECODED = 2**30  # bytes of a tar's images (ours have SHARD_BYTES), unless it has one only
LEAST_BYTES = 2048  # of a sample in a tar: an image and a json, each with its header
Count = Annotated[int, Field(ge=0, lt=2**53)]
SourceName = Annotated[str, Field(pattern=r"^[\w.+ -]{1,80}$")]  # it is printed
Side = Annotated[int, Field(ge=1, le=2**16)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Record(BaseModel):
    """A record of a manifest: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def client_folder(client: int) -> str:
    """The folder of the tars that a client trains on."""
    return f"client_{client:05d}"


def validation_folder(client: int) -> str:
    """The folder of the tars that a client is evaluated on."""
    return f"validation_{client:05d}"


def tar_name(folder: str, number: int) -> str:
    """The name of a part's tar, as the manifest has it."""
    return f"{folder}/{number:05d}.tar"


class Shard(Record):
    """One tar file, or the tokenizer of shards of text."""

    # inside the folder: never a way out of it
    file: str = Field(pattern=r"^([\w]+/\d{5}\.tar|tokenizer\.json)$")
    samples: Count
    bytes: Count
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Part(Record):
    """The shards of one client, or of the test split."""

    samples: Count
    label_counts: tuple[Count, ...]  # [C]
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        in_shards = sum(shard.samples for shard in self.shards)
        if not self.samples == in_shards == sum(self.label_counts):
            raise ValueError(
                f"{self.samples} samples, but {in_shards} in its shards "
                f"and {sum(self.label_counts)} labels"
            )
        return self


class ClientPart(Part):
    """One client's shards: those it trains on, and those set aside to evaluate it."""

    client: int = Field(ge=0)
    validation: Part | None = None


class Stored(Record, ABC):
    """A manifest: `manifest.json` in a folder of shards."""

    @property
    @abstractmethod
    def shards(self) -> tuple[Shard, ...]:
        """Every file of the folder but the manifest."""

    @property
    @abstractmethod
    def made_with(self) -> dict[str, Any]:
        """All settings that the shards depend on."""

    def digest(self) -> str:
        """SHA-256 of all that a run depends on, the hash of every shard included.

        Names of classes are shown and not trained on: shards that were made before manifests had
        them, and the same made again, are the same data for a run that resumes.
        """
        said = self.model_dump_json(exclude={"class_names"})
        return hashlib.sha256(said.encode()).hexdigest()

    def _is_whole(self, clients: int, parts: Mapping[str, Sequence[Shard]]) -> None:
        """As many clients as it was dealt out to; a tar belongs to the part in whose folder it
        lies, so that nobody trains on another's."""
        dealt = self.made_with.get("clients", clients)
        if dealt != clients:
            raise ValueError(f"{clients} clients, and it was dealt out to {dealt}")
        for folder, shards in parts.items():
            for number, shard in enumerate(shards):
                if shard.file != tar_name(folder, number):
                    raise ValueError(f"{shard.file} among the tars of {folder}")

    @classmethod
    def load(cls, folder: Folder) -> Self:
        """Read and check a folder's manifest; `ShardError` if it is missing or damaged."""
        path = folder / NAME
        try:
            return cls.model_validate_json(words_of(folder, NAME))
        except OSError as error:
            raise ShardError(str(path), error.strerror or str(error), WAY_OUT) from None
        except ValidationError as error:
            raise cls._refused(path, error) from None

    @classmethod
    def _refused(cls, path: Any, error: ValidationError) -> ShardError:
        """Why: a format of another fedcore, or else the first fault."""
        faults = {".".join(map(str, fault["loc"])): fault for fault in error.errors()}
        if (other := faults.get("format_version")) is not None:
            ours = get_args(cls.model_fields["format_version"].annotation)
            problem, reader = other_format(other["input"], ours)
            return ShardError(str(path), problem, f"{reader}, or {WAY_OUT}")
        where, first = next(iter(faults.items()))
        problem = first["msg"].replace("Input should be", "want")
        return ShardError(str(path), f"{where or 'whole file'}: {problem}", WAY_OUT)


class Manifest(Stored):
    """Everything about a folder of shards."""

    format_version: Literal[1, 2] = 2  # 2: encodings, validation shards
    source: SourceName
    kind: Literal["digits", "natural"]
    encoding: Literal["raw", "original"] = "raw"
    classes: int = Field(ge=2)
    class_names: tuple[str, ...] | None = None  # in the order of labels; None = not known
    shape: tuple[Side, Side, Side]  # channels, height, width
    mean: tuple[Finite, ...]  # per channel, of images in 0...1
    std: tuple[Spread, ...]
    partition: dict[str, Any]  # the settings it was dealt out with
    clients: tuple[ClientPart, ...]
    test: Part

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # clients are looked up by position: another order would hand out other people's samples
        if [part.client for part in self.clients] != list(range(len(self.clients))):
            raise ValueError("clients are not numbered 0, 1, 2, ... in order")
        if any(len(part.label_counts) != self.classes for part in self.parts):
            raise ValueError(f"label_counts are not all of {self.classes} classes")
        parts = {name: part.shards for name, part in self.folders.items()}
        self._is_whole(len(self.clients), parts)
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError(f"mean and std are not of {self.shape[0]} channels")
        if self.class_names is not None and (why := trouble_with(self.class_names, self.classes)):
            raise ValueError(why)
        self._has_room()
        return self

    def _has_room(self) -> None:
        """Memory is taken for as many samples as are claimed: they must be in the tars."""
        size = math.prod(self.shape)
        if size > MOST_PIXELS:
            raise ValueError(f"images of {size:,} numbers, want at most {MOST_PIXELS:,}")
        each = size if self.encoding == "raw" else LEAST_BYTES
        for part in self.parts:
            held = sum(shard.bytes for shard in part.shards)
            if part.samples * each > held:
                raise ValueError(f"{part.samples:,} samples of {each:,} bytes in {held:,} bytes")
        most = max((shard.samples for shard in self.shards), default=0)
        # raw images are as large as their tar; of files, few bytes may be a large image
        if self.encoding == "original" and most > 1 and most * size > MOST_DECODED:
            raise ValueError(f"{most:,} images of {size:,} numbers in a tar")

    @property
    def folders(self) -> dict[str, Part]:
        """All parts by folder: the two of each client, and the test split."""
        own = {client_folder(part.client): part for part in self.clients}
        aside = {validation_folder(p.client): p.validation for p in self.clients if p.validation}
        return {**own, **aside, TEST: self.test}

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, without the names of their folders."""
        return tuple(self.folders.values())

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Shards of all parts: clients, their validation samples, the test split."""
        return tuple(shard for part in self.parts for shard in part.shards)

    @property
    def made_with(self) -> dict[str, Any]:
        """How the samples were dealt out."""
        return self.partition
