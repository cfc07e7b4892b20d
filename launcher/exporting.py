"""From a checkpoint in its run to what fedcore/export.py writes."""

from __future__ import annotations

from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from data_shards.folder import Remote
from data_shards.manifest import NAME, Manifest, Side
from data_shards.raw import reading
from data_shards.sources import SOURCES
from fedcore import export, extensions
from fedcore.algorithms import resolve
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, FedError, ShardError
from fedcore.export import Tensors, What
from fedcore.files import sha256_of
from fedcore.registry import nearest
from launcher.checkpoint_stored import is_within, run_of
from launcher.prepare import store_dir
from launcher.rundir import RunDir

OLDER = "an older checkpoint"


class _Model(BaseModel):
    """What a checkpoint says of the model, within what there is memory for."""

    name: str
    shape: tuple[Side, Side, Side]
    classes: Annotated[int, Field(ge=2, le=10_000_000)]
    feature_dim: Annotated[int, Field(ge=1, le=65_536)]


class _Outcome(BaseModel):
    """What a run had come to."""

    model_config = ConfigDict(strict=True, extra="allow")

    rounds: Annotated[int, Field(ge=0, le=1_000_000_000)]


class _Facts(BaseModel):
    """The facts that an export rests on."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: Annotated[_Model, Field(strict=False)]
    outcome: _Outcome
    trained: list[int]
    config: dict[str, Any]


WHATS: tuple[What, ...] = ("averaged", "ensemble", "prototypes")
FORMATS = ("safetensors", "onnx")


class Exporter:
    """A checkpoint of a federated run, with what its run says about clients and data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoint = folder, Checkpoint(folder)
        self.checkpoint.verify()
        self.run = RunDir(run_of(folder))
        self.config = self._config()
        self._check_facts()

    def _check_facts(self) -> None:
        """`ConfigError` for an older checkpoint, `ShardError` for facts that cannot be."""
        facts = self.checkpoint.facts
        if "model" not in facts:
            want = "a checkpoint that says what model it is of; this one is older"
            raise ConfigError("CHECKPOINT", str(self.folder), want, "going on with its run")
        if is_within(self.checkpoint):
            want, way_out = "one between two rounds: this one is within a round", "the run itself"
            raise ConfigError("CHECKPOINT", str(self.folder), want, way_out)
        with reading(self.folder, OLDER):
            said = _Facts.model_validate(facts).model
            held = tuple(self.checkpoint.shared("server")["prototypes"].shape)
        if held != (said.classes, said.feature_dim):
            problem = f"says {said.classes} x {said.feature_dim} prototypes, has {list(held)}"
            raise ShardError(str(self.folder), problem, OLDER)

    def _config(self) -> RunConfig:
        if "run" in self.checkpoint.facts:  # only those of language models have it
            way_out = f"fedcore lm export {self.folder} OUT"
            raise ConfigError("CHECKPOINT", str(self.folder), "of a federated run", way_out)
        file = self.run.path / "config.yaml"
        if not file.is_file():
            want = "config.yaml of the run beside its checkpoints"
            raise ConfigError("CHECKPOINT", str(file), want, "the checkpoint in its run")
        config = RunConfig.load(file)
        copies = self.run.extensions(config)  # where they were named, they may be gone
        extensions.load(copies)
        return config.model_copy(update={extensions.KEY: tuple(copies)})

    def samples(self) -> dict[int, int]:
        """n_k of every client that has trained in a finished round."""
        counts = self.run.read_clients()
        if counts is None:
            file, want = self.run.path / "clients.json", "clients.json of the run"
            raise ConfigError("CHECKPOINT", str(file), want, "the checkpoint in its run")
        held = {k: sum(row) for k, row in enumerate(counts) if sum(row)}
        trained = self.checkpoint.facts["trained"]
        if not trained:
            want = "at least one finished round"
            raise ConfigError("CHECKPOINT", str(self.folder), want, "a later checkpoint")
        return {k: n for k, n in held.items() if k in trained}

    def clients(self) -> export.Clients:
        """The models of the checkpoint's clients."""
        return export.clients_of(self.checkpoint, self.samples())

    def tensors(self, what: What) -> Tensors:
        """The tensors that the exported file is to hold, by name."""
        with reading(self.folder, OLDER):
            return self._tensors(what)

    def _tensors(self, what: What) -> Tensors:
        if what == "prototypes":
            return export.prototypes(self.checkpoint)
        if what == "averaged" and (own := export.servers_own(self.checkpoint)):
            return own
        if not self.config.clients.keep_models:
            want = "true, for a file of the clients' models"
            raise ConfigError("clients.keep_models", False, want, "--what averaged")
        clients = self.clients()
        if what == "ensemble":
            return export.ensemble(self.checkpoint, clients)
        model = export.empty_model(self.checkpoint.facts, clients.models["prototypes"].dtype)
        return export.fused(model, clients, resolve(self.config.algorithm).fuse)

    def facts(self, what: What) -> dict[str, Any]:
        """What the header says, JSON values."""
        mean, std = self.normalisation()
        facts = self.checkpoint.facts
        return {
            "what": what,
            "model": facts["model"],
            "mean": mean,  # per channel, of images in 0...1
            "std": std,
            "labels": self.labels(),  # names of the classes; None = not known
            "clients": sorted(self.samples()),
            "algorithm": self.config.algorithm.name,
            "dataset": self.config.data.source,
            "rounds": facts["outcome"]["rounds"],
            "checkpoint": self.folder.name,
            "checkpoint_sha256": sha256_of(self.folder / "index.json"),
            "fedcore": metadata.version("fedcore"),
        }

    def normalisation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation a channel: of the run's shards, or as the dataset says."""
        if self._manifest is not None:
            return list(self._manifest.mean), list(self._manifest.std)
        source = SOURCES.get(self.config.data.source)
        if source.mean is None or source.std is None:
            folder, want = store_dir(self.config), "the run's shards, from its working directory"
            raise ConfigError("data.store", str(folder), want, "fedcore shards make")
        return list(source.mean), list(source.std)

    def labels(self) -> list[str] | None:
        """Names of the classes [C], in the order of labels: of the shards, or of the dataset."""
        names = self._manifest.class_names if self._manifest is not None else None
        names = names or SOURCES.get(self.config.data.source).class_names or ()
        return list(names) if len(names) == self.checkpoint.facts["model"]["classes"] else None

    @cached_property
    def _manifest(self) -> Manifest | None:
        """Of the shards that the run was trained on; None if they are not there any more."""
        folder = store_dir(self.config)
        wanted = self.checkpoint.facts["config"].get("data (sha256 of the shards)")
        if not isinstance(folder, Remote) and not (folder / NAME).is_file():
            return None
        try:
            found = Manifest.load(folder)
        except FedError:
            return None
        return found if wanted in (None, found.digest()) else None

    def write(self, what: What, form: str, out: Path | None) -> Path:
        """The file, whole; `ConfigError` for what ONNX has no word for."""
        if form == "onnx":
            from fedcore.export_onnx import check_installed, write_onnx

            if what != "averaged":
                raise ConfigError("--what", what, "averaged, with --format onnx", "averaged")
            check_installed()
        name = f"{what}-{self.folder.name}.{form}"
        target = out or self.run.path / name
        tensors, facts = self.tensors(what), self.facts(what)
        if form == "onnx":
            return write_onnx(target, tensors, facts)
        return export.write(target, tensors, facts)


def what_of(word: str) -> What:
    """The content of that name; `ConfigError` with the nearest one."""
    for what in WHATS:
        if what == word:
            return what
    raise ConfigError("--what", word, "one of " + ", ".join(WHATS), nearest(word, list(WHATS)))


def format_of(word: str) -> str:
    """The format, if there is one of that name."""
    if word not in FORMATS:
        want = " or ".join(FORMATS)
        raise ConfigError("--format", word, want, nearest(word, list(FORMATS)))
    return word
