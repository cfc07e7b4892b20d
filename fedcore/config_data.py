"""The `data:` section: which samples there are, how they are dealt out, stored and read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from fedcore.config_section import (
    Count,
    Place,
    PlaceOrUrl,
    Positive,
    Section,
    Share,
)

Side = Annotated[int, Field(ge=4, le=4096)]
Part = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class SyntheticConfig(Section):
    """Class-conditional images (data.source: synthetic)."""

    samples: Positive = 10_000
    """Training images."""
    test_samples: Positive = 2_000
    """Test images."""
    classes: Annotated[int, Field(ge=2, le=100_000)] = 10
    """Classes C."""
    channels: Literal[1, 3] = 1
    """1 = grey, 3 = colour."""
    size: Side = 8
    """Height and width in pixels."""
    difficulty: Share = 1.0
    """Noise: at 0 images of a class are alike; at 1 two standard deviations of it lie between a
    class and its boundary to another; at 20 hardly anything can be learned."""


class DataConfig(Section):
    """Which samples there are and how they are dealt out to the clients."""

    source: str = "mnist5k"
    """Dataset: a module of data_shards/sources (`fedcore shards make --help` lists them)."""
    root: Place | None = None
    """Where the raw files lie, for sources that do not come with a package."""
    size: Side | None = None
    """Height and width that images of files are brought to (shorter side, centre crop); null = they
    have one size."""
    synthetic: SyntheticConfig = SyntheticConfig()
    store: PlaceOrUrl = Path("data_shards/store")
    """Folder of the generated shards, relative to the working directory; or a remote one to read
    from: http(s)://, s3://, gs://."""
    shards: PlaceOrUrl | None = None
    """One folder of shards, made of these settings, wherever it came from; null = the folder in
    `store` that is named after the settings. The raw files need not be there."""
    cache: Place = Path("~/.cache/fedcore/shards")
    """Folder where files of a remote store are kept once they are read."""
    partition: Literal["dirichlet", "iid", "by_label", "quantity", "natural"] = "dirichlet"
    """How samples are dealt out. dirichlet: per class; quantity: sizes are Dirichlet, labels IID;
    natural: by the dataset's own users (writers)."""
    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 0.1
    """Dirichlet concentration, per class or of the sizes; small = each client sees few classes, or
    has few samples."""
    min_samples: Count = 0
    """Smallest client under `dirichlet` and `quantity`: they are drawn again until all have so
    many; 0 = drawn once, as published."""
    labels_per_client: Positive = 2
    """Classes of each client under `by_label`."""
    skew: Literal["none", "rotation", "colour", "noise"] = "none"
    """How images differ from client to client, beside the partition. rotation: by domain / domains
    of a circle; colour: a tint (grey images become colour); noise: up to `strength`."""
    domains: Annotated[int, Field(ge=2, le=10_000)] = 4
    """Kinds of images under a `skew`: client k's are of domain k mod this."""
    strength: Annotated[float, Field(gt=0, le=100)] = 0.1
    """Standard deviation of the noise of the last domain (images in 0...1); of `skew: noise`."""
    validation: Part = 0.0
    """Share of each client's samples, rounded up, that is set aside when they are dealt out, in
    shards of its own: the client is evaluated on them, and never trains on them. It keeps one."""
    seed: int | None = None
    """Seed of the partition; null = the run's seed."""
    encoding: Literal["raw", "original"] = "raw"
    """How images are stored. raw: uint8 pixels; original: the bytes of their files, if they came as
    jpg, png or webp (smaller, but decoded each time they are read)."""
    augment: bool = True
    """Draw random views (as the source's kind of image wants); false = plain images."""
    reading: Literal["auto", "resident", "streaming"] = "auto"
    """resident: a rank holds its clients' samples on its device; streaming: it reads them as they
    are trained on; auto: resident if they take at most half of the free memory. Equal batches."""
    shuffle_buffer: Annotated[int, Field(ge=1, le=100_000_000)] = 16_384
    """Samples of a client that are shuffled at a time; all, if it has no more."""
    workers: Annotated[int, Field(ge=1, le=256)] = 2
    """Threads of a rank that read shards ahead of training."""

    @field_validator("min_samples")
    @classmethod
    def _is_used(cls, value: int, info: ValidationInfo) -> int:
        """A key that would do nothing is a mistake."""
        partition = info.data.get("partition")
        if value and partition not in ("dirichlet", "quantity", None):
            raise ValueError(f"0 with partition: {partition}; it is of dirichlet and quantity")
        return value

    @field_validator("encoding")
    @classmethod
    def _is_kept(cls, value: str, info: ValidationInfo) -> str:
        skew = info.data.get("skew", "none")
        if value == "original" and skew != "none":
            raise ValueError(f"raw: the files would be kept, and skew: {skew} changes images")
        return value
