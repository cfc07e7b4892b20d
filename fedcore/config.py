"""RunConfig: everything a run depends on, frozen and complete. YAML in, YAML out.

After `RunConfig.load` nobody asks whether a key is there. What a name stands for
(`algorithm.name`, `model.name`, ...) is looked up in the registries when the run is built, with the
same kind of error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedcore.config_algorithm import AlgorithmConfig
from fedcore.config_data import DataConfig
from fedcore.config_lm import LMConfig
from fedcore.config_section import Named, Place, Positive, PositiveFloat, Section, Share
from fedcore.config_text import explain, flatten, read_yaml, with_overrides
from fedcore.extensions import hashes


class ClientConfig(Section):
    """What one client does in a round."""

    count: Positive = 16
    """Number of clients N."""
    per_round: Positive | None = None
    """Clients that take part in a round, drawn by seed; null = all."""
    local_epochs: Positive = 2
    """Passes over a client's own data in a round."""
    batch_size: Positive = 32
    """Samples per step B (each gives `views` images)."""
    views: Positive = 2
    """Augmented views V of each sample in a step."""
    width: Positive | Literal["auto"] = 1
    """Clients trained at once in a lane; 1 = one after another, auto = the fastest of a short
    measurement, once for a model, batch and device. Another width rounds differently (1e-12 of a
    round in fp64); for a given width any number of ranks gives the same bits."""
    step: Literal["auto", "eager", "graph", "compile"] = "auto"
    """How a step is launched: graph = captured as a CUDA graph, compile = by torch.compile; auto =
    a graph on CUDA devices, eager on a CPU. What cannot be captured runs eagerly, and a
    warning says so."""
    store: Literal["auto", "device", "memory", "disk"] = "auto"
    """Where clients rest between their turns: on the device, in host memory, or in a file that is
    mapped into memory; auto = the first that has room."""
    keep_models: bool = True
    """Keep each client's model after a round; false, for algorithms whose clients all start from
    the averaged model = forget it: memory is then bounded by the lane. Read-outs of single clients
    need their models."""
    lr: PositiveFloat = 0.05
    """SGD learning rate of the weights and prototypes, at its peak."""
    lr_schedule: Named = "constant"
    """Schedule of the learning rate over the run: constant, linear, cosine, or one of yours, by
    name or with settings, {NAME: {SETTING: value}}."""
    lr_log_var: PositiveFloat = 0.005
    """SGD learning rate of the two log-variances behind a learned lambda."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD momentum."""
    carry_momentum: bool = False
    """Keep the momentum from round to round; false = it starts at zero each round (published)."""
    weight_decay: Share = 0.0
    """L2 decay added to the gradient of weights and prototypes."""
    max_norm: PositiveFloat = 1.0
    """Gradient norm of all of a client's parameters together is clipped to this."""
    out_of_memory: Literal["shrink", "skip", "fail"] = "shrink"
    """When a lane does not fit: shrink = train its halves, skip = and leave out a client that does
    not fit alone, for that round; fail = end the run."""

    @field_validator("per_round")
    @classmethod
    def _of_count(cls, value: int | None, info: ValidationInfo) -> int | None:
        count = info.data.get("count")
        if value is not None and count is not None and value > count:
            raise ValueError(f"at most clients.count={count}")
        return value

    @field_validator("width", mode="before")
    @classmethod
    def _auto_or_a_number(cls, value: Any) -> Any:
        if value == "auto" or (type(value) is int and 1 <= value <= 1_000_000):
            return value
        raise ValueError("auto, or a whole number from 1 to 1,000,000")

    @field_validator("views")
    @classmethod
    def _two_images(cls, value: int, info: ValidationInfo) -> int:
        if value * info.data.get("batch_size", 2) < 2:  # batch norm has no variance of one image
            raise ValueError("at least two images a step: batch_size=2, or views=2")
        return value


class ModelConfig(Section):
    """Encoder with prototype head."""

    name: str = "small_cnn"
    """Encoder: small_cnn, resnet18 or mobilenet_v2."""
    feature_dim: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Feature width D; null = the encoder's own. Another width adds a linear projector."""
    channels_last: bool = True
    """Images and convolution weights lie channels last in memory, which most kernels prefer;
    rounds differently."""


class EvaluateConfig(Section):
    """Reading out the test set. Nothing is ever chosen by it."""

    every: Positive = 1
    """Rounds (LM: steps; a tenth of the run unless set) between evaluations; the last round is
    always evaluated."""
    batch_size: Positive = 256
    """Test images in one forward pass of one model."""


class ServerConfig(Section):
    """The collectives between the ranks."""

    timeout: Annotated[float, Field(gt=0, le=604_800)] = 1800.0
    """Seconds a rank waits in a collective for the others; at most a week."""
    heartbeat: Annotated[float, Field(ge=3, le=86_400)] = 15.0
    """Seconds without a sign of life (one a second) after which a rank counts as lost."""


class MetricsConfig(Section):
    """The Prometheus endpoint of each rank."""

    enabled: bool = True
    """Serve metrics at all."""
    port: Annotated[int, Field(ge=0, le=65535)] = 9400
    """Port of local rank 0; local rank r takes port + r. 0 = any free port."""
    bind: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on; loopback unless set. 0.0.0.0 = all, for a Prometheus elsewhere."""
    per_client_limit: Annotated[int, Field(ge=0)] = 100
    """Clients of a run with a series each; with more clients, quantiles per rank instead."""
    targets: Place | None = Path("runs/targets")
    """Folder with a target file of each running job, for Prometheus; null = only the one in the
    run directory."""
    credentials: Place | None = None
    """File with one line `user:password` that a scraper must give; null = anyone may read."""
    certificate: Place | None = None
    """PEM certificate (with its chain) for TLS; null = plain HTTP."""
    key: Place | None = None
    """PEM private key of the certificate; null = in the same file."""
    linger: Annotated[float, Field(ge=0, le=3600)] = 20.0
    """Seconds at most that a run waits at its end for a last scrape, if it was being scraped."""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Experiment trackers that get the same readings, in the folder `trackers` of the run."""

    @field_validator("key")
    @classmethod
    def _of_a_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("certificate") is None:
            raise ValueError("beside metrics.certificate, without which there is no TLS")
        return value


class CheckpointConfig(Section):
    """Saving the run, so that it can go on after a stop."""

    every: Positive = 1
    """Rounds (LM: steps; a tenth of the run unless set) between checkpoints; one is also written
    on SIGTERM and SIGUSR1."""
    minutes: Annotated[float, Field(gt=0, le=10_080)] | None = 30.0
    """Minutes after which a checkpoint is also written in the middle of a round (LM: between two
    steps); null = never. What a lost rank can cost is at most the smaller of both."""
    keep: Positive = 2
    """Newest checkpoints kept."""
    keep_best: bool = True
    """Keep the one with the best `test_accuracy` (LM: held-out loss) as well; `best` names it."""
    asynchronous: bool = True
    """Training goes on while a copy is written; false = it waits until the files are complete."""


class RunConfig(Section):
    """One run."""

    format: Literal[1] = 1
    """Format of the configuration and of a run directory; others are refused."""
    seed: int = 0
    """Run seed: with the client, round and purpose it addresses every random draw."""
    rounds: Positive = 10
    """Rounds: local training and then one aggregation."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = one CUDA device per rank where there are any, else the CPU."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """Number format; bf16 = forward pass under autocast, weights in fp32."""
    tf32: bool = True
    """Let fp32 products on CUDA devices round their factors to TensorFloat-32 (10 bits)."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads per rank. Fixed, since the order of a sum on a CPU depends on it."""
    data: DataConfig = DataConfig()
    clients: ClientConfig = ClientConfig()
    model: ModelConfig = ModelConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    server: ServerConfig = ServerConfig()
    metrics: MetricsConfig = MetricsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    lm: LMConfig | None = None
    """A language-model run instead of a federated one."""
    extensions: tuple[Place, ...] = ()
    """Your own Python files: each is imported on every rank before names are looked up, and may
    register algorithms, loss terms, schedules, models, datasets. A copy is kept with the run."""

    @field_validator("extensions", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        """One path needs no brackets."""
        return [value] if isinstance(value, str | Path) else value

    @field_validator("extensions")
    @classmethod
    def _of_different_names(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        names = [file.name for file in value]
        if len(set(names)) < len(names):
            raise ValueError("files of different names, since copies lie in one folder")
        return value

    @model_validator(mode="before")
    @classmethod
    def _steps_not_rounds(cls, values: Any) -> Any:
        """A language model is not evaluated and saved after each step unless it is said."""
        lm = values.get("lm") if isinstance(values, Mapping) else None
        if not isinstance(lm, Mapping):
            return values
        steps = lm.get("steps", LMConfig().steps)
        tenth = {"every": max(1, steps // 10)} if isinstance(steps, int) else {}
        parts = {name: values.get(name, {}) for name in ("evaluate", "checkpoint")}
        return dict(values) | {
            k: tenth | dict(v) if isinstance(v, Mapping) else v for k, v in parts.items()
        }

    @model_validator(mode="after")
    def _one_job(self) -> RunConfig:
        """What a language-model run would leave unread must not be set: it would do nothing."""
        if self.lm is None:
            return self
        usual = RunConfig()
        idle = [k for k in FEDERATED if getattr(self, k) != getattr(usual, k)]
        if self.data.model_dump(exclude=STORING) != usual.data.model_dump(exclude=STORING):
            idle.append("data")
        if idle:
            raise ValueError(
                f"nothing of {', '.join(idle)}, for which a language-model run has no use: "
                "its keys are below lm, as in --config lm_small"
            )
        return self

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> RunConfig:
        """A YAML file with `a.b=value` overrides; every error names key, value, way out."""
        return cls.of(with_overrides(read_yaml(path), overrides))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunConfig:
        """Check plain values; raises `ConfigError` (one mistake) or `ConfigErrors` (several)."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise explain(error, cls) from None

    @property
    def partition_seed(self) -> int:
        """Seed of the partition: data.seed, or the run's."""
        return self.seed if self.data.seed is None else self.data.seed

    def plain(self) -> dict[str, Any]:
        """The configuration as JSON-able values, without the sections of the other kind of job."""
        if self.lm is None:
            return self.model_dump(mode="json", exclude={"lm"})
        values = self.model_dump(mode="json", exclude=set(FEDERATED))
        return values | {"data": self.data.model_dump(mode="json", include=STORING)}

    def dump(self) -> str:
        """The configuration as YAML."""
        return yaml.safe_dump(self.plain(), sort_keys=False)

    def decisive(self) -> dict[str, Any]:
        """Flat `a.b: value` of all keys that the numbers of the run depend on."""
        return {k: v for k, v in flatten(self.plain()).items() if is_decisive(k)}

    def digest(self) -> str:
        """Eight hex digits that change when a decisive key or an extension's text does.

        Defaults are left out: a key that is new in fedcore, and does what was done before unless it
        is set, leaves the names of runs as they were.
        """
        unusual = flatten(self.model_dump(mode="json", exclude_defaults=True))
        values: dict[str, Any] = {k: v for k, v in unusual.items() if is_decisive(k)}
        places = {"data.root": self.data.root, "lm.data.text": self.lm and self.lm.data.text}
        values |= {key: str(place) for key, place in places.items() if place is not None}
        text = json.dumps(values | hashes(self.extensions), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_decisive(key: str) -> bool:
    """Whether the numbers of a run depend on that dotted key."""
    return key.split(".")[0] not in OPERATIONAL and key not in OPERATIONAL


STORING = {"store", "shards", "cache"}
"""Keys of `data` that a language-model run reads."""

FEDERATED = ("rounds", "clients", "model", "algorithm")
"""Keys that a language-model run does not read."""

OPERATIONAL = frozenset(
    {
        *(
            "format",
            "device",
            "evaluate",
            "server",
            "metrics",
            "checkpoint",
            "data.store",
            "data.root",
        ),
        *("data.shards", "data.cache", "data.reading", "data.workers"),
        *("lm.log_every", "lm.eval_batches", "lm.compile", "lm.activation_checkpointing"),
        *("lm.engine", "lm.zero_stage", "lm.offload", "lm.accumulate", "lm.data.text"),
        *("lm.data.vocabulary", "lm.monitor.per_layer", "clients.out_of_memory"),
        *("clients.store", "extensions"),
    }
)
"""Sections and keys that may differ between a run and its resumption."""
