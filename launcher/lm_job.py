"""The language-model kind of job."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from data_shards.folder import Folder
from data_shards.tars import check
from data_shards.text.manifest import TokenManifest
from data_shards.text.read import TokenStream
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.lm.engine import Engine, PlainEngine, Trained
from fedcore.lm.engines import build_engine
from fedcore.lm.federated import LMFederation
from fedcore.lm.ledger import Ledger, LMOutcome
from fedcore.lm.model import TransformerLM
from fedcore.lm.monitors import Monitor
from fedcore.lm.optim import build_optimizer
from fedcore.lm.rates import GroupRates
from fedcore.lm.scale import scaled
from fedcore.lm.schedules import rates
from fedcore.lm.train import LMRun
from fedcore.lm.turns import Turns, dealt
from fedcore.server.comm import together
from fedcore.telemetry.telemetry import Telemetry
from fedcore.telemetry.trackers import check_trackers
from launcher import prepare_text
from launcher.entry import Identity
from launcher.lm_stored import keep_vocabulary
from launcher.reporting import lm_info, lm_telemetry
from launcher.rundir import RunDir
from launcher.world import World

DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


def check_names(config: RunConfig) -> None:
    """Look up what only the registries know: the schedules; and the trackers."""
    lm = config.lm
    assert lm is not None
    check_trackers(config.metrics.trackers)
    rates(lm.model_copy(update={"steps": 1}))
    optimizer = scaled(lm)
    names = ("lr", "muon_lr") if optimizer.name == "muon" else ("lr",)
    eta, name = max((getattr(optimizer, name), name) for name in names)
    if eta * optimizer.weight_decay >= 1:  # a step would turn the weights round
        want = f"below 1 / {name}: a step keeps 1 - {name} weight_decay, and {name} is {eta:g}"
        key, way_out = "lm.optimizer.weight_decay", f"at most {0.1 / eta:.3g}, or a smaller {name}"
        raise ConfigError(key, optimizer.weight_decay, want, way_out)


def check_batch(config: RunConfig, ranks: int) -> None:
    """`ConfigError` unless the batch can be cut into equal parts for the ranks that share it."""
    lm = config.lm
    assert lm is not None
    ranks = 1 if lm.federated else ranks  # a client is trained by one rank
    parts = ranks * lm.accumulate
    if lm.batch_size % parts:
        want = f"a multiple of {ranks} rank(s) x lm.accumulate {lm.accumulate}"
        way_out = f"lm.batch_size={-(-lm.batch_size // parts) * parts}"
        raise ConfigError("lm.batch_size", lm.batch_size, want, way_out)


def build_model(config: RunConfig, vocab_size: int) -> TransformerLM:
    """The model at its initial weights, on the CPU."""
    assert config.lm is not None
    model = TransformerLM(config.lm.model, vocab_size, config.seed)
    model.activation_checkpointing = config.lm.activation_checkpointing
    return model


class LanguageModel:
    """One language model, trained by all ranks."""

    name = "lm"

    def __init__(self, config: RunConfig) -> None:
        assert config.lm is not None
        self.config, self.lm = config, config.lm
        self.store: Folder = Path()
        self.manifest: TokenManifest | None = None
        self.outcome = LMOutcome()
        self.engine: Engine | None = None

    def prepare(self) -> Folder:
        check_names(self.config)
        return prepare_text.ensure(self.config)

    def open(self, store: Folder) -> str:
        self.store, self.manifest = store, TokenManifest.load(store)
        check(store, self.manifest.vocabulary.file)
        return self.manifest.digest()

    @property
    def _opened(self) -> TokenManifest:
        assert self.manifest is not None, "open comes first"
        return self.manifest

    def settle(self, world: World, checkpoint: Checkpoint | None) -> str:
        return ""

    def title(self, world: World) -> str:
        lm, info = self.lm, lm_info(self.config)
        stage = f" ZeRO {lm.zero_stage}" if lm.engine == "deepspeed" else ""
        return (
            f"{info['model']} on {info['dataset']} ({self._opened.vocab_size:,} tokens in the "
            f"vocabulary), {lm.steps:,} steps of {lm.batch_size} x {lm.model.context}, "
            f"{lm.optimizer.name} {lm.schedule.name}, {self._trained_by()}{lm.engine}{stage}, "
            f"{world.comm.size} rank(s) on {world.device.type}"
        )

    def _trained_by(self) -> str:
        """The federated part of the title."""
        federated = self.lm.federated
        if federated is None:
            return ""
        outer = federated.outer
        kind = "Nesterov" if outer.nesterov else "momentum"
        means = f"{kind} {outer.momentum:g}" if outer.momentum else "mean"
        return (
            f"by {len(self._clients)} clients in rounds of {federated.local_steps} steps, outer "
            f"{means} lr {outer.lr:g}, "
        )

    @property
    def _clients(self) -> list[int]:
        """The clients that have a window of text; if none, the first, whose text is refused."""
        context = self.lm.model.context
        return [part.client for part in self._opened.clients if part.tokens > context] or [0]

    def telemetry(self, run: RunDir, world: World) -> Telemetry:
        return lm_telemetry(self.config, run, world)

    def warnings(self, ranks: int) -> list[str]:
        """Text that is gone through again and again, clients without, and idle ranks."""
        parts, clients = self._opened.clients, self._clients
        trained = self.lm.steps * self.lm.batch_size * self.lm.model.context
        held = sum(part.tokens for part in parts)
        if self.lm.federated:
            takers = min(self.lm.federated.per_round or len(clients), len(clients))
            trained *= takers
        found = []
        if self.lm.schedule.warmup >= self.lm.steps:
            rise = f"lm.schedule.warmup {self.lm.schedule.warmup} is not over after lm.steps"
            found.append(f"{rise} {self.lm.steps}: eta never reaches its peak")
        if trained >= 20 * held:
            times = f"{trained / held:.0f} epochs"
            found.append(f"{times}: the run goes that often through {held:,} tokens")
        if left_out := sorted({part.client for part in parts} - {*clients}):
            found.append(f"clients {left_out} have no window of text and are left out")
        if self.lm.federated and ranks > len(clients):
            found.append(f"{ranks - len(clients)} rank(s) stay idle: {len(clients)} clients")
        return found

    def build(
        self, world: World, telemetry: Telemetry, run: RunDir, identity: Identity
    ) -> LMRun | LMFederation:
        comm, manifest, config = world.comm, self._opened, self.config
        with together(comm):
            check_batch(config, comm.size)
            if comm.rank == 0:
                keep_vocabulary(check(self.store, manifest.vocabulary.file), run)
            clients = self._clients
            own = dealt(clients, comm.rank, comm.size)
            streams = {k: self._stream(manifest, k) for k in own or clients[:1]}
            data = next(iter(streams.values()))  # an idle rank takes part in evaluations
            model = build_model(config, manifest.vocab_size).to(
                world.device, DTYPES[config.precision]
            )
            each = self.lm.monitor.target_rms is not None
            optimiser = build_optimizer(model, scaled(self.lm), one_each=each)
            group_rates = GroupRates(self.lm, rates(self.lm), model, optimiser)
        engine = self._engine(model, optimiser, world)
        checkpoints = run.checkpoints_of(config, world, "step")
        alone = self.lm.federated is None
        monitor = Monitor(self.lm, group_rates.rates, group_rates.monitored(), predicts=alone)
        ledger = Ledger(config, comm, data, checkpoints, telemetry, world.pauses, identity)
        self.outcome, self.engine = ledger.outcome, engine
        if not isinstance(engine, PlainEngine) or self.lm.federated is None:
            return LMRun(engine, data, group_rates, monitor, ledger)
        turns = Turns(self.lm, engine, group_rates, {k: streams[k] for k in own})
        return LMFederation(turns, clients, monitor, ledger)

    def _engine(self, model: TransformerLM, optimiser: Optimizer, world: World) -> Engine:
        """An engine of all ranks, or of this rank alone for its clients."""
        comm = world.comm
        if self.lm.federated:
            return PlainEngine(Trained(self.config, model, optimiser, world.device))
        return build_engine(
            Trained(self.config, model, optimiser, world.device, comm.size, comm.rank)
        )

    def _stream(self, manifest: TokenManifest, client: int) -> TokenStream:
        context, order = self.lm.model.context, self.lm.data.order
        seed = self.config.seed
        return TokenStream(self.store, manifest, client, context=context, order=order, seed=seed)

    def facts(self) -> dict[str, Any]:
        return {**lm_info(self.config), **self.outcome.facts()}

    def show(self, summary: dict[str, Any], path: Path) -> None:
        print(
            f"{summary['steps']:,} steps, {summary['tokens']:,} tokens: loss "
            f"{summary['final_loss']:.4f}, held-out loss {summary['final_eval_loss']:.4f}, "
            f"perplexity {summary['perplexity']:.2f}, {summary['bits_per_byte']:.3f} bits/byte; "
            f"{summary['wall_seconds']:.1f} s, {summary['tokens_per_second']:,.0f} tokens/s; "
            f"results in {path}",
            flush=True,
        )

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None
            gc.collect()
            if self.lm.compile:  # the next run of this process compiles another model
                torch.compiler.reset()

    def dry_run(self) -> str:
        check_names(self.config)
        check_batch(self.config, int(os.environ.get("WORLD_SIZE", "1")))
        ids = prepare_text.ids_of(self.lm.data)
        with torch.device("meta"):
            model = build_model(self.config, ids)
        parameters = sum(p.numel() for p in model.parameters())
        return (
            f"{lm_info(self.config)['model']} with {parameters:,} parameters (for a vocabulary of "
            f"{ids:,}), {self.lm.steps:,} steps, {self.lm.optimizer.name} "
            f"{self.lm.schedule.name}, {self.lm.engine}"
        )
