"""The dashboard of a language-model run: loss, speed, rates, what the weights remember."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard, DynamicConfigValue

from deploy.grafana import frame, shared
from deploy.grafana.panels import (
    GREEN,
    Panel,
    Query,
    band,
    dashed,
    lines,
    number,
)
from deploy.grafana.queries import RUN, beside, each_client, largest, rate, spread

THEORY = "lm_theory.md"
ABOUT = "One language-model run: loss, speed, rates, the size and the memory of its weights."


def dashboard() -> Dashboard:
    """uid fedcore-lm."""
    variables = [frame.algorithm("lm"), frame.run("lm"), frame.client("fedcore_lm_client_loss")]
    rows = {
        "Run": state(),
        "Loss and rates": loss(),
        "Weights": weights(),
        "Speed": speed(),
        "Side by side: all runs of the optimisers chosen": versions(),
    }
    folded = {"Clients (runs with lm.federated)": clients()}
    return frame.framed("fedcore-lm", "fedcore: language models", ABOUT, variables, rows, folded)


def state() -> list[Panel]:
    """How far the run is and whether it is well."""
    held_out = largest("fedcore_lm_loss", f'{RUN}, split="held_out"')
    return [
        *shared.state(),
        number("Step", "Optimiser steps done.", Query(largest("fedcore_lm_step")), page="lm.md"),
        number(
            "Held-out loss",
            "Cross-entropy in nats per token at the last evaluation.",
            Query(held_out),
            page="lm.md",
        ).decimals(3),
        number(
            "Perplexity",
            "exp of the held-out loss: of how many tokens the model is undecided.",
            Query(f"exp({held_out})"),
            page="lm.md",
        ).decimals(1),
        number(
            "Tokens",
            "Trained on by all ranks together since this attempt of the run began.",
            Query(f"sum by (run) (fedcore_lm_tokens_total{{{RUN}}})"),
        ),
        shared.warnings(),
        shared.pace("Tokens", "fedcore_lm_tokens_total", "si:tokens/s"),
    ]


def loss() -> list[Panel]:
    """What is minimised, and with which rates."""
    rates = lines(
        "Learning rate and weight decay",
        "eta (left) and lam (right) of the last step. With equal memory lam moves so that the "
        "weights always remember the same number of steps.",
        Query(largest("fedcore_lm_learning_rate"), "learning rate"),
        Query(largest("fedcore_lm_weight_decay"), "weight decay"),
        page=THEORY,
    )
    right = [DynamicConfigValue("custom.axisPlacement", "right")]
    return [
        lines(
            "Loss",
            "Cross-entropy in nats per token. held_out far above train and rising: it learns by "
            "heart. Spikes of train with the gradient norm: smaller lm.optimizer.lr, longer "
            "lm.schedule.warmup.",
            Query(largest("fedcore_lm_loss", by="split"), "{{split}}"),
            zero=False,
            page="operations.md#lmlossspike",
        ),
        rates.override_by_name("weight decay", right),
        lines(
            "Gradient norm",
            "Of all parameters together, before clipping (lm.optimizer.clip).",
            Query(largest("fedcore_lm_gradient_norm"), "gradient norm"),
            page="lm.md",
        ),
    ]


def weights() -> list[Panel]:
    """Their size against the theory, and how far back they remember."""
    rms = "fedcore_lm_weight_rms"
    predicted = f"{largest(rms, by='group')} / {largest(f'{rms}_ratio', by='group')}"
    measured = lines(
        "Weight RMS by group",
        "Root mean square of the weights of each parameter group. Dashed: what the theory of "
        "weight decay predicts from the rates so far.",
        Query(largest(rms, by="group"), "{{group}}"),
        Query(predicted, "{{group}} predicted"),
        page=THEORY,
    )
    panels = [
        dashed(measured, "predicted$"),
        lines(
            "Weight RMS over its prediction",
            "1 = as predicted; of federated runs nothing is. Away from 1 for long: gradients are "
            "not the noise that the theory takes them for, or warm-up is not over.",
            Query(largest(f"{rms}_ratio", by="group"), "{{group}}"),
            steps={1: GREEN},
            page="operations.md#lmweightrmsdrift",
        ),
        lines(
            "Update ratio",
            "RMS of the change of a step over that of the weights: how fast directions turn. "
            "At equilibrium about sqrt(2 eta lam); some 1e-3 is usual.",
            Query(largest("fedcore_lm_update_ratio", by="group"), "{{group}}"),
            log=True,
            page=THEORY,
        ),
        lines(
            "Memory",
            "In steps: T1 and T2 of the optimiser's moments, T3 = 1/(eta lam) of the weights. "
            "T3 above the steps of the run: the start is never forgotten.",
            Query(largest("fedcore_lm_memory_steps", by="kind"), "{{kind}}"),
            log=True,
            page=THEORY,
        ),
    ]
    return [panel.span(12) for panel in panels]


def clients() -> list[Panel]:
    """Only of runs with lm.federated."""
    page = "lm_federated.md"
    return [
        lines(
            "Loss by client",
            "Mean over the steps of the newest round, nats per token. One client far above the "
            "others has other text.",
            each_client("fedcore_lm_client_loss"),
            zero=False,
            page=page,
        ),
        lines(
            "Drift by client",
            "RMS of the change of a client's weights in a round. Clients that drift far apart "
            "average badly: fewer lm.federated.local_steps.",
            each_client("fedcore_lm_client_drift"),
            page=page,
        ),
        band(
            lines(
                "Loss over clients",
                "Least, median and largest over all clients.",
                *spread("fedcore_lm_client_loss"),
                zero=False,
                page=page,
            )
        ),
    ]


def speed() -> list[Panel]:
    """How fast, and who is waited for."""
    return [
        *shared.throughput("Tokens", "fedcore_lm_tokens_total", "si:tokens/s"),
        *shared.phases(),
        *shared.stragglers(),
        *shared.collectives(),
    ]


def versions() -> list[Panel]:
    """The same reading of several runs."""
    legend = "{{algorithm}} {{run}}"
    found = []
    for split in ("train", "held_out"):
        one = beside(largest("fedcore_lm_loss", f'run!="", split="{split}"'), "lm")
        meaning = "Nats per token, of each run."
        title = f"Loss by run, {split.replace('_', '-')}"
        found.append(lines(title, meaning, Query(one, legend), zero=False, page="lm.md"))
    pace = beside(rate("fedcore_lm_tokens_total", labels='run!=""'), "lm")
    query = Query(pace, legend)
    found.append(
        lines("Tokens per second by run", "All ranks of each run.", query, unit="si:tokens/s")
    )
    return [panel.span(8) for panel in found]
