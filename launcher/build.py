"""The only place that picks concrete parts: RunConfig -> Federation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_shards.folder import Folder
from data_shards.manifest import Manifest
from data_shards.read import ShardedData, TestSamples
from data_shards.sources import SOURCES
from data_shards.validation import ValidationSamples, counts
from fedcore.algorithms import Algorithm, resolve
from fedcore.batch import TrainData, held_out_of
from fedcore.checkpoint_writer import Checkpoints
from fedcore.clients.assign import balance, form_lanes, kept_together
from fedcore.clients.group import ClientGroup
from fedcore.clients.launch import LAUNCHES, How
from fedcore.clients.optim import Hyper
from fedcore.clients.state import ClientState
from fedcore.clients.store import Away, Mapped, Store, bytes_of, on_device
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.evaluate import Evaluator
from fedcore.federation import Federation
from fedcore.models import MODELS, ModelSpec
from fedcore.models.neurons import neuron_groups
from fedcore.models.proto_head import ProtoHead, build_model
from fedcore.objective.anchors import ANCHORS
from fedcore.objective.learners import Hypergradient
from fedcore.readouts import check_readout
from fedcore.schedule import Constant, schedule_of
from fedcore.server.collective import ServerCollective
from fedcore.server.combine import COMBINES
from fedcore.server.comm import together
from fedcore.server.fusion import FUSIONS
from fedcore.settings import check_settings
from fedcore.telemetry.telemetry import Telemetry
from fedcore.telemetry.trackers import check_trackers
from launcher.memory import free_host_memory, free_memory
from launcher.width import Choice, choose
from launcher.world import World

DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


def check_names(config: RunConfig) -> Algorithm:
    """The resolved algorithm, with every name in the configuration looked up."""
    algorithm = resolve(config.algorithm)
    _check_source(config)
    MODELS.get(config.model.name)
    check_settings(
        COMBINES.get(algorithm.combine),
        dict(algorithm.combine_settings),
        "algorithm.combine_settings",
    )
    FUSIONS.get(algorithm.fuse)
    check_trackers(config.metrics.trackers)
    schedule_of(config.clients.lr_schedule, "clients.lr_schedule")
    _check_discarding(config, algorithm)
    check_readout(algorithm, config.clients.keep_models)
    return algorithm


def _check_source(config: RunConfig) -> None:
    """`ConfigError` for a key that the source would pass over in silence."""
    data, source = config.data, SOURCES.get(config.data.source)
    if source.bundled and data.root is not None:
        want = f"nothing: {data.source} comes with a package and reads no folder"
        raise ConfigError("data.root", str(data.root), want, "data.source=image_folder")
    if data.size is not None and "size" not in source.takes:
        want = f"nothing: images of {data.source} have their own size"
        raise ConfigError("data.size", data.size, want, "leaving it out")


def _check_discarding(config: RunConfig, algorithm: Algorithm) -> None:
    """Models may be forgotten after a round only where the next one does not begin from them."""
    if config.clients.keep_models:
        return
    if algorithm.mode == "averaged" and algorithm.fuse != "mean":
        want = f"mean, where clients.keep_models is false: {algorithm.fuse} looks at all models"
        raise ConfigError("algorithm.fuse", algorithm.fuse, want, "clients.keep_models=true")
    if algorithm.mode != "averaged":
        want = f"true: {config.algorithm.name} needs the clients' own models after a round"
        way_out = "clients.keep_models=true with clients.store=disk, or algorithm.name=fedavg"
        raise ConfigError("clients.keep_models", False, want, way_out)


def build_objects(
    config: RunConfig, shape: tuple[int, int, int], classes: int
) -> tuple[Algorithm, ProtoHead, Tensor]:
    """Algorithm, model and anchors [C, D] for images of that shape."""
    algorithm = check_names(config)
    spec = ModelSpec(*shape, classes, config.model.feature_dim)
    model = build_model(config.model.name, spec, config.seed)
    width = model.prototypes.shape[1]
    anchors = torch.zeros(classes, width, dtype=torch.float64)  # any D will do without some
    if algorithm.anchor is not None:
        anchors = ANCHORS.get(algorithm.anchor).points(classes, width, config.seed)
    if algorithm.classifier == "anchors":
        model.prototypes.data.copy_(anchors)
    if algorithm.fuse == "optimal_transport":
        neuron_groups(model)  # raises for a model whose neurons it cannot match
    return algorithm, model, anchors


def build(
    config: RunConfig,
    store: Folder,
    world: World,
    telemetry: Telemetry,
    checkpoints: Checkpoints,
    identity: dict[str, Any],
) -> Federation:
    """Everything of a run on this rank; raises the same error on every rank if any rank fails."""
    comm = world.comm
    with together(comm):
        manifest = Manifest.load(store)
        algorithm, model, anchors = build_objects(config, manifest.shape, manifest.classes)
        samples = [client.samples for client in manifest.clients]
        owned = owned_lanes(config, samples, comm.size)
        clients = [k for lane in owned[comm.rank] for k in lane]
        on: dict[str, Any] = {"device": world.device, "dtype": DTYPES[config.precision]}
        reading = on | {
            "channels_last": config.model.channels_last,
            "streaming": is_streamed(config, manifest, clients, world),
            "workers": config.data.workers,
        }
        data = _train_data(config, store, manifest, clients, algorithm, reading)
        home = partial(at_home, config, world, checkpoints.folder.parent)
        group = _group(
            config, owned[comm.rank], data, algorithm, model.to(world.device, on["dtype"]), home
        )
        test = TestSamples(store, manifest, **on, channels_last=config.model.channels_last)
        validation = None
        if counts(manifest):
            validation = ValidationSamples(store, manifest, clients, **reading)
    server = ServerCollective(
        comm,
        algorithm,
        anchors,
        clients=[k for k, n in enumerate(samples) if n],
        rounds=config.rounds,
        per_round=config.clients.per_round,
        seed=config.seed,
        start=dict(model.named_parameters()),
        row=group.layout.size,
    )
    return Federation(
        config,
        comm,
        group,
        server,
        Evaluator(comm, model, test, config.seed, config.evaluate.batch_size, validation),
        checkpoints,
        telemetry,
        samples=samples,
        pauses=world.pauses,
        identity=identity,
    )


def _train_data(
    config: RunConfig,
    store: Folder,
    manifest: Manifest,
    clients: Sequence[int],
    algorithm: Algorithm,
    reading: dict[str, Any],  # on which device, of which type; held or streamed
) -> ShardedData:
    return ShardedData(
        store,
        manifest,
        clients,
        batch_size=config.clients.batch_size,
        views=config.clients.views,
        seed=config.seed,
        augment=config.data.augment,
        held_out=algorithm.held_out,
        shuffle_buffer=config.data.shuffle_buffer,
        **reading,
    )


def _group(
    config: RunConfig,
    lanes: list[list[int]],
    data: TrainData,
    algorithm: Algorithm,
    model: ProtoHead,
    home: Callable[[ClientState, torch.device], Store],
) -> ClientGroup:
    return ClientGroup(
        lanes,
        data,
        model,
        algorithm,
        hyper(config),
        rounds=config.rounds,
        epochs=config.clients.local_epochs,
        autocast=config.precision == "bf16",
        out_of_memory=config.clients.out_of_memory,
        channels_last=config.model.channels_last,
        keep_models=config.clients.keep_models,
        store=home,
        width=width_of(config),
        launch=LAUNCHES[how_to_launch(config, model.prototypes.device)],
    )


def how_to_launch(config: RunConfig, device: torch.device) -> How:
    """As `clients.step` says."""
    how, cuda = config.clients.step, device.type == "cuda"
    if how == "graph" and not cuda:
        raise ConfigError(
            "clients.step", how, "a CUDA device for a CUDA graph", "clients.step=auto"
        )
    return how if how != "auto" else "graph" if cuda else "eager"


def at_home(
    config: RunConfig, world: World, folder: Path, state: ClientState, device: torch.device
) -> Store:
    """The clients where `clients.store` says, or else where there is room for them."""
    size, free = bytes_of(state), free_host_memory(world)
    home = config.clients.store
    if home == "auto":
        fits = 2 * size <= free_memory(world)
        home = "device" if fits else "memory" if 2 * size <= free else "disk"
    if home == "disk":
        room = Mapped(folder, size)
        return Away(state.each(room.place), device, room.forget)
    if home == "memory" and device.type != "cpu":
        return Away(state.each(_in_host_memory), device)
    return on_device(state, device)


def _in_host_memory(values: Tensor) -> Tensor:
    return values.cpu().clone()


def is_streamed(
    config: RunConfig, manifest: Manifest, clients: Sequence[int], world: World
) -> bool:
    """Whether this rank reads its samples as it trains: asked to, or they would not fit."""
    if config.data.reading != "auto":
        return config.data.reading == "streaming"
    aside = counts(manifest)
    samples = sum(manifest.clients[k].samples + aside.get(k, 0) for k in clients)
    held = samples * math.prod(manifest.shape)
    return 2 * held > free_memory(world)


def hyper(config: RunConfig) -> Hyper:
    """The optimiser settings of a client."""
    clients = config.clients
    return Hyper(
        lr=clients.lr,
        lr_schedule=schedule_of(clients.lr_schedule, "clients.lr_schedule"),
        lr_log_var=clients.lr_log_var,
        momentum=clients.momentum,
        weight_decay=clients.weight_decay,
        max_norm=clients.max_norm,
        carry_momentum=clients.carry_momentum,
    )


def width_of(config: RunConfig) -> int:
    """Clients trained at once; of a configuration in which that is settled."""
    assert config.clients.width != "auto", "settle comes first"
    return config.clients.width


def of_width(config: RunConfig, width: int) -> RunConfig:
    """The same with that width."""
    clients = config.clients.model_copy(update={"width": width})
    return config.model_copy(update={"clients": clients})


def settle_width(config: RunConfig, manifest: Manifest, world: World) -> Choice:
    """The width of `clients.width=auto` on this world. Collective."""
    algorithm, model, anchors = build_objects(config, manifest.shape, manifest.classes)
    dtype = DTYPES[config.precision]
    model = model.to(world.device, dtype)

    def make(lanes: list[list[int]], data: Any) -> ClientGroup:
        return _group(of_width(config, len(lanes[0])), lanes, data, algorithm, model, on_device)

    choice = choose(config, manifest, world, make, anchors, dtype)
    if world.device.type == "cuda":
        torch.cuda.empty_cache()  # what is free decides where clients and samples are held
    return choice


def together_of(config: RunConfig) -> int:
    """Clients that one rank owns together, whatever the number of ranks."""
    clients, width = config.clients, width_of(config)
    return width if width == 1 else kept_together(width, clients.count, clients.per_round)


def owned_lanes(config: RunConfig, samples: list[int], ranks: int) -> list[list[list[int]]]:
    """The lanes of clients that each rank trains."""
    return balance(form_lanes(samples, together_of(config)), samples, ranks)


def warnings(config: RunConfig, manifest: Manifest, ranks: int) -> list[str]:
    """What is unusual about the clients, in words; nothing of it stops a run."""
    empty = [c.client for c in manifest.clients if not c.samples]
    single = [c.client for c in manifest.clients if sum(n > 0 for n in c.label_counts) == 1]
    words = []
    if empty:
        words.append(f"clients without samples, left out: {_few(empty)}")
    if single:
        words.append(f"clients with one class only: {_few(single)}")
    words += _classes_missing(manifest)
    rule = resolve(config.algorithm).rule
    if rule.anneal != Constant() and not rule.slots:
        words.append("algorithm.rule.anneal has no effect: algorithm.rule.slots is empty")
    words += _windows_too_long(config, [c.samples for c in manifest.clients])
    width = together_of(config)
    lanes = len(form_lanes([c.samples for c in manifest.clients], width))
    if ranks > lanes:
        of = f"groups of {width} clients" if width > 1 else "clients"
        words.append(f"{ranks} ranks for {lanes} {of} with samples: {ranks - lanes} idle")
    return words


def _classes_missing(manifest: Manifest) -> list[str]:
    """Classes that nobody trains on, or that are not tested."""
    trained = [sum(n) for n in zip(*(c.label_counts for c in manifest.clients), strict=True)]
    words = []
    for what, held in (("training", trained), ("test", manifest.test.label_counts)):
        if missing := [label for label, n in enumerate(held) if not n]:
            words.append(f"classes without {what} samples: {_few(missing)}")
    return words


def _windows_too_long(config: RunConfig, samples: list[int]) -> list[str]:
    """A window of steps ends with the epoch: a client with fewer steps never moves its lambda."""
    algorithm = resolve(config.algorithm)
    learner = algorithm.rule.learner
    if not isinstance(learner, Hypergradient):
        return []
    trained = [n - held_out_of(n, learner.held_out) for n in samples]
    size = min(config.clients.batch_size, max(samples, default=1))
    short = [k for k, n in enumerate(trained) if n and -(-n // size) < learner.horizon]
    if not short:
        return []
    return [
        f"clients with fewer steps an epoch than the hypergradient's horizon {learner.horizon}, "
        f"whose lambda stays where it starts: {_few(short)}"
    ]


def _few(numbers: list[int]) -> str:
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more
