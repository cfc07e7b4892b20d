"""What is reported of a round: an event for each client, and which lambda is out of bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedcore.algorithms import Algorithm
from fedcore.objective.weighting import LambdaRule
from fedcore.schedule import Progress
from fedcore.server.collective import Collected
from fedcore.telemetry.events import ClientEvent


def of_clients(
    algorithm: Algorithm,
    got: Collected,
    samples: Sequence[int],
    validation: Mapping[int, float],
    round: int,
    at: Progress,
) -> list[ClientEvent]:
    """An event for each client that took part.

    samples: of all clients; validation: accuracy of those that were evaluated on samples of their
    own; at: the last epoch.
    """
    rule, columns = algorithm.rule, got.columns
    equilibrium = rule.equilibrium(
        columns["base"], columns["align"], columns["lambda_raw"], columns["rest"], at
    )
    names = algorithm.term_names
    return [
        ClientEvent(
            round=round,
            client=client,
            samples=samples[client],
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
            validation_accuracy=validation.get(client),
        )
        for i, client in enumerate(got.clients.tolist())
    ]


def exploded(rule: LambdaRule, events: Sequence[ClientEvent]) -> list[ClientEvent]:
    """Clients whose learned raw lambda is above its limit."""
    return [e for e in events if rule.learner is not None and e.lambda_raw > rule.limit]


def explosion(rule: LambdaRule, exploded: Sequence[ClientEvent]) -> str:
    """A warning about clients whose lambda exploded: how many, the worst, and the way out."""
    worst = max(exploded, key=lambda e: e.lambda_raw)
    message = (
        f"raw lambda of {len(exploded)} client(s) is above {rule.limit:g}: client "
        f"{worst.client} has {worst.lambda_raw:.4g}"
    )
    if math.isfinite(worst.lambda_equilibrium):
        message += f", its closed form is {worst.lambda_equilibrium:.4g}"
    if rule.has_sigma_loss:
        message += ". algorithm.rule.guard or algorithm.rule.bound holds it"
    return message
