"""Federation: the round loop. Every rank runs it; two records travel, Order and Upload."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedcore.batch import held_out_of
from fedcore.checkpoint import Checkpoint, Checkpoints, flatten_state
from fedcore.clients.group import ClientGroup
from fedcore.clients.state import Tensors
from fedcore.config import RunConfig
from fedcore.errors import Stopped, StorageError
from fedcore.evaluate import Evaluator
from fedcore.schedule import progress
from fedcore.server import consensus
from fedcore.server.average import average_models
from fedcore.server.collective import Collected, ServerCollective
from fedcore.server.comm import Comm, on_any
from fedcore.server.fusion import FUSIONS, ClientModel
from fedcore.server.participants import participants
from fedcore.telemetry.events import ClientEvent, ResumeEvent, RoundEvent, WarningEvent
from fedcore.telemetry.telemetry import Telemetry


@dataclass
class Outcome:
    """What summary.json reports; the same on every rank, and up to date after each round."""

    rounds: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    test_accuracy: float | None = None
    best_test_accuracy: float | None = None
    lambda_effective: dict[str, float] = field(default_factory=dict)
    prototypes_sha256: str | None = None
    parameters_sha256: str | None = None
    samples: int = 0
    bytes_communicated: int = 0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dict(vars(self))


class Federation:
    """One federated run on this rank's clients, together with the other ranks."""

    def __init__(
        self,
        config: RunConfig,
        comm: Comm,
        group: ClientGroup,
        server: ServerCollective,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        telemetry: Telemetry,
        *,
        samples: Sequence[int],  # of every client of the run, in id order
        stopping: Callable[[], bool],
        identity: dict[str, Any],  # stored with each checkpoint, to know the run again
    ) -> None:
        self.config, self.comm, self.group, self.server = config, comm, group, server
        self.evaluator, self.checkpoints, self.telemetry = evaluator, checkpoints, telemetry
        self.samples, self.stopping, self.identity = list(samples), stopping, identity
        share = group.algorithm.held_out
        self.trained = [n - held_out_of(n, share) for n in self.samples]  # in one local epoch
        self.outcome = Outcome()
        self._traffic = 0
        self._seconds: dict[str, float] = {}
        self._trained: set[int] = set()
        self._saved = -1
        self._variance = 0.0
        self._told = False  # that lambda has exploded
        comm.watcher = self._watch

    def run(self) -> Outcome:
        """All remaining rounds. Raises `Stopped` after a checkpoint when asked to stop."""
        for round in range(self.outcome.rounds, self.config.rounds):
            if on_any(self.comm, self.stopping()):
                self._save(round)
                raise Stopped(round, str(self.checkpoints.folder / "latest"))
            self._round(round)
            if (round + 1) % self.config.checkpoint.every == 0 or self._last(round):
                self._try_to_save(round + 1)
        self._sign()
        return self.outcome

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: the run then equals one that was never stopped."""
        checkpoint.load_into(self.group.state, self.group.clients)
        held, facts, state = checkpoint.shared("server"), checkpoint.facts, self.server.state
        state.prototypes = held["prototypes"]
        weights = {
            k.removeprefix("weights/"): v for k, v in held.items() if k.startswith("weights/")
        }
        like = self.group.state.params["prototypes"]
        state.weights = {k: v.to(like.device) for k, v in weights.items()} or None
        state.control = {k: held[f"control/{k}"].to(like.device) for k in state.control}
        state.first_spread, state.prototype_std = facts["first_spread"], facts["prototype_std"]
        self.outcome = Outcome(**facts["outcome"])
        for round in range(self.outcome.rounds):
            self._trained |= self._participants(round)
        if checkpoint.folder.parent == self.checkpoints.folder:
            self._saved = self.outcome.rounds
        self.telemetry.write([ResumeEvent(self.outcome.rounds, str(checkpoint.folder))])

    def _round(self, round: int) -> None:
        self._seconds, self._traffic, began = {}, 0, time.monotonic()
        with self._phase("order"):
            order = self.server.order(round)
        with self._phase("train"):
            upload = self.group.train(order, self.telemetry.trained)
        with self._phase("collect"):
            got = self.server.collect(upload, round)
            self._trained |= order.participants
            self._fold_models(order.participants)
        found = None
        if (round + 1) % self.config.evaluate.every == 0 or self._last(round):
            with self._phase("evaluate"):
                found = self._evaluate()
        self._account(order.participants, began)
        self.outcome.rounds = round + 1  # and only now: a rank may be lost on the way
        if found is not None:
            self._take(found)
        self._report(round, order.spread, got, order.participants)

    def _fold_models(self, clients: frozenset[int]) -> None:
        """What the server keeps of whole models, in the modes in which it does."""
        algorithm, state = self.group.algorithm, self.server.state
        if algorithm.mode == "averaged":
            state.weights = self._fuse(clients)
        if algorithm.control_variates:  # c is the mean of all c_k, at every time
            own, share = self.group.state.kept_under("control"), self._shares(self.server.clients)
            rows = enumerate(self.group.clients)
            parts = [({n: v[row] for n, v in own.items()}, share[k]) for row, k in rows]
            state.control = average_models(self.comm, parts, self.server.start)

    def _models(self, clients: Collection[int]) -> list[ClientModel]:
        """Those of this rank's models that are among `clients`."""
        share, tensors = self._shares(clients), self.group.state.model_tensors()
        return [
            ClientModel(k, {name: v[row] for name, v in tensors.items()}, share[k])
            for row, k in enumerate(self.group.clients)
            if k in share
        ]

    def _fuse(self, clients: Collection[int]) -> Tensors:
        """One model of all of `clients`, as the algorithm says."""
        fuse = FUSIONS.get(self.group.algorithm.fuse)
        return fuse(self.comm, self.group.model, self._models(clients), self._shares(clients))

    def _shares(self, clients: Collection[int]) -> dict[int, float]:
        total = sum(self.samples[k] for k in clients)
        return {k: self.samples[k] / total for k in clients}

    def _evaluate(self) -> dict[str, float]:
        """Accuracy by read-out of all clients that have trained so far."""
        averaged = self.server.state.weights or self._fuse(self._trained)
        accuracy = self.evaluator(
            self.group, self._shares(self._trained), self.server.state.prototypes, averaged
        )
        self._variance = consensus.model_variance(
            self.comm, self._models(self._trained), averaged, self.server.start
        )
        return accuracy

    def _take(self, accuracy: dict[str, float]) -> None:
        """It is that of the finished round."""
        main = accuracy[self.group.algorithm.readout]
        self.outcome.accuracy, self.outcome.test_accuracy = accuracy, main
        self.outcome.best_test_accuracy = max(main, self.outcome.best_test_accuracy or 0.0)

    def _report(self, round: int, spread: float, got: Collected, clients: frozenset[int]) -> None:
        events = self._client_events(round, spread, got)
        exploded = self._exploded(events)
        self._tell_explosion(exploded, round)
        used = torch.tensor([e.lambda_effective for e in events], dtype=torch.float64)
        self.outcome.lambda_effective = {
            "min": float(used.min()),
            "median": float(used.quantile(0.5)),
            "max": float(used.max()),
        }
        trained = sum(self.trained[k] for k in clients) * self.config.clients.local_epochs
        evaluated = "evaluate" in self._seconds
        summary = RoundEvent(
            round=round,
            rounds=self.config.rounds,
            progress=(round + 1) / self.config.rounds,
            annealing_factor=events[0].annealing_factor,
            accuracy=dict(self.outcome.accuracy) if evaluated else {},
            prototype_std=self.server.state.prototype_std,
            unit_prototype_std=consensus.unit_prototype_std(got.prototypes, got.counts),
            global_prototype_std=consensus.global_prototype_std(self.server.state.prototypes),
            model_variance=self._variance if evaluated else None,
            lambda_exploded=len(exploded),
            seconds=dict(self._seconds),
            samples_per_second=trained
            / max(self._seconds["train"] + self._seconds["collect"], 1e-9),
            bytes_communicated=self._traffic * self.comm.size,
        )
        self.telemetry.write([*events, summary], own=set(self.group.clients))

    def _exploded(self, events: Sequence[ClientEvent]) -> list[ClientEvent]:
        """Clients whose learned raw lambda is above its limit."""
        rule = self.group.algorithm.rule
        return [e for e in events if rule.learner is not None and e.lambda_raw > rule.limit]

    def _tell_explosion(self, exploded: Sequence[ClientEvent], round: int) -> None:
        """A warning when the first lambda is above its limit, and not every round after."""
        if not exploded or self._told:
            return
        rule, worst = self.group.algorithm.rule, max(exploded, key=lambda e: e.lambda_raw)
        message = (
            f"raw lambda of {len(exploded)} client(s) is above {rule.limit:g}: client "
            f"{worst.client} has {worst.lambda_raw:.4g}"
        )
        if math.isfinite(worst.lambda_equilibrium):
            message += f", its closed form is {worst.lambda_equilibrium:.4g}"
        if rule.has_sigma_loss:
            message += ". algorithm.rule.guard or algorithm.rule.bound holds it"
        self.telemetry.write([WarningEvent(round, message)])
        self._told = True

    def _client_events(self, round: int, spread: float, got: Collected) -> list[ClientEvent]:
        epochs, rule = self.config.clients.local_epochs, self.group.algorithm.rule
        at = progress(round, self.config.rounds, epochs - 1, epochs, spread, like=got.prototypes)
        columns = got.columns
        equilibrium = rule.equilibrium(
            columns["base"], columns["align"], columns["lambda_raw"], columns["rest"], at
        )
        names = self.group.algorithm.term_names
        return [
            ClientEvent(
                round=round,
                client=client,
                samples=self.samples[client],
                base_loss=float(columns["base"][i]),
                align_loss=float(columns["align"][i]),
                lambda_raw=float(columns["lambda_raw"][i]),
                lambda_effective=float(columns["lambda_effective"][i]),
                lambda_equilibrium=float(equilibrium[i]),
                sigma_sq_local=float(columns["log_var_local"][i].exp()),
                sigma_sq_align=float(columns["log_var_align"][i].exp()),
                annealing_factor=float(rule.factor(at)),
                gradient_norm=float(columns["norm"][i]),
                terms=dict(zip(names, got.terms[i].tolist(), strict=True)),
            )
            for i, client in enumerate(got.clients.tolist())
        ]

    def _account(self, clients: frozenset[int], began: float) -> None:
        """Add this round to the totals of the run."""
        out = self.outcome
        out.samples += sum(self.trained[k] for k in clients) * self.config.clients.local_epochs
        out.bytes_communicated += self._traffic * self.comm.size
        out.wall_seconds += time.monotonic() - began
        for phase, seconds in self._seconds.items():
            out.phase_seconds[phase] = out.phase_seconds.get(phase, 0.0) + seconds

    def _try_to_save(self, round: int) -> None:
        """A checkpoint; if the disk is full it is told, and the run goes on."""
        try:
            self._save(round)
        except StorageError as error:
            message = f"no checkpoint of round {round}: {error}. Older ones stay; the run goes on"
            self.telemetry.checkpoint_failed()
            self.telemetry.write([WarningEvent(round, message)])

    def _save(self, round: int) -> None:
        """A checkpoint of the state before `round`, unless there is one."""
        if self._saved == round:
            return
        state = self.server.state
        tensors = {"prototypes": state.prototypes, "anchors": self.server.anchors}
        tensors |= {f"weights/{k}": v for k, v in (state.weights or {}).items()}
        tensors |= {f"control/{k}": v for k, v in state.control.items()}
        facts = {
            "config": self.identity,
            "first_spread": state.first_spread,
            "prototype_std": state.prototype_std,
            "outcome": self.outcome.facts(),
            "score": self.outcome.test_accuracy,
            "model": {
                "name": self.config.model.name,
                "shape": list(self.evaluator.test.shape),
                "classes": state.prototypes.shape[0],
                "feature_dim": state.prototypes.shape[1],
            },
        }
        began = time.monotonic()
        own = flatten_state(self.group.state)
        self.checkpoints.save(round, {"server": tensors}, facts, self.group.clients, own)
        self._saved = round
        self.telemetry.checkpointed(time.monotonic() - began)

    def _sign(self) -> None:
        """SHA-256 of prototypes and parameters in client-id order: equal on any number of ranks."""
        state, out = self.group.state, self.outcome
        mine = {
            client: (
                digest([state.params["prototypes"][row]]),
                digest([v[row] for v in state.model_tensors().values()]),
            )
            for row, client in enumerate(self.group.clients)
        }
        everyone = {int(k): v for part in self.comm.gather_json(mine) for k, v in part.items()}
        server = self.server.state
        prototypes = [digest([server.prototypes])] + [everyone[k][0] for k in sorted(everyone)]
        # in the model's order: a checkpoint may give them back in another one
        held = server.weights or {}
        parameters = [digest([held[k] for k in state.model_tensors() if k in held])]
        parameters += [everyone[k][1] for k in sorted(everyone)]
        out.prototypes_sha256 = hashlib.sha256("".join(prototypes).encode()).hexdigest()
        out.parameters_sha256 = hashlib.sha256("".join(parameters).encode()).hexdigest()

    def _participants(self, round: int) -> set[int]:
        config = self.config
        return set(participants(self.server.clients, config.clients.per_round, config.seed, round))

    def _last(self, round: int) -> bool:
        return round + 1 == self.config.rounds

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = time.monotonic() - began
        self.telemetry.phase(name, self._seconds[name])

    def _watch(self, operation: str, size: int, seconds: float) -> None:
        self._traffic += size
        self.telemetry.traffic(operation, size, seconds)


def digest(tensors: Sequence[Tensor]) -> str:
    """SHA-256 of the tensors' little-endian bytes, in order."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
