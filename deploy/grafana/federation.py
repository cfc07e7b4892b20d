"""The dashboard of a federated run: lambda and its rest, s(p), losses, accuracy, speed."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import frame, shared
from deploy.grafana.panels import (
    GREEN,
    RED,
    YELLOW,
    Panel,
    Query,
    band,
    dashed,
    lines,
    number,
)
from deploy.grafana.queries import beside, each_client, largest, median, spread

LAMBDA = "algorithms.md"
ABOUT = "One federated run: its lambda against the closed forms, losses, accuracy and speed."


def dashboard() -> Dashboard:
    """uid fedcore-federation."""
    variables = [
        frame.algorithm("federated"),
        frame.run("federated"),
        frame.client("fedcore_lambda_raw"),
    ]
    rows = {
        "Run": state(),
        "Lambda": lambdas(),
        "Training": training(),
        "Models and prototypes": quality(),
        "Speed": speed(),
        "Side by side: all runs of the algorithms chosen": versions(),
    }
    return frame.framed("fedcore-federation", "fedcore: federation", ABOUT, variables, rows)


def state() -> list[Panel]:
    """How far the run is and whether it is well."""
    best = largest("fedcore_test_accuracy")
    exploded = largest("fedcore_lambda_exploded")
    return [
        *shared.state(),
        number("Round", "The last finished round, counted from 0.", _run("round")),
        number("Clients", "Clients of the whole run, on all ranks.", _run("clients")),
        number(
            "Best accuracy",
            "Share of test samples right by the best read-out, at the last evaluation.",
            Query(best),
            unit="percentunit",
            page=LAMBDA,
        ),
        number(
            "Exploded clients",
            "Clients whose raw lambda is above lambda_max. Their align loss has gone to "
            "nothing, or s(p) has driven it there (v12): the closed forms tell which.",
            Query(exploded),
            steps={1: RED},
            page="operations.md#lambdaexplosion",
        ),
        shared.warnings(),
        shared.pace("Samples", "fedcore_samples_total", "si:samples/s"),
    ]


def lambdas() -> list[Panel]:
    """The learned weight of alignment, beside the value it should come to rest at."""
    limit = Query(largest("fedcore_lambda_limit"), "lambda_max")
    rest = each_client("fedcore_lambda_equilibrium", "{{client}} at rest")
    raw = lines(
        "Raw lambda by client",
        "sigma²_local / sigma²_align of each client (quantiles over clients in large runs). "
        "Dashed: where it would rest for the losses of this moment, in closed form. A learned "
        "lambda runs after its dashed line; one above lambda_max has exploded.",
        each_client("fedcore_lambda_raw"),
        rest,
        limit,
        width=12,
        log=True,
        page="operations.md#lambdaexplosion",
    )
    effective = lines(
        "Effective lambda by client",
        "The weight on the align loss as it was used: raw lambda, times s(p) in versions "
        "that put s on the weights (v6 to v9, v11).",
        each_client("fedcore_lambda_effective"),
        width=12,
        log=True,
        page=LAMBDA,
    )
    return [dashed(dashed(raw, "at rest$"), "^lambda_max$", RED), effective, *_over_clients(limit)]


def _over_clients(limit: Query) -> list[Panel]:
    at_rest = Query(median("fedcore_lambda_equilibrium"), "median at rest")
    ratio = f"{median('fedcore_lambda_raw')} / {median('fedcore_lambda_equilibrium')}"
    raw = lines(
        "Raw lambda over clients",
        "Least, median and largest over all clients; exact in runs with quantiles too, but for "
        "the median, which is of the ranks' medians.",
        *spread("fedcore_lambda_raw"),
        at_rest,
        limit,
        log=True,
        page="operations.md#lambdagrowstenfold",
    )
    return [
        band(dashed(dashed(raw, "^median at rest$", YELLOW), "^lambda_max$", RED)),
        band(
            lines(
                "Effective lambda over clients",
                "Least, median and largest over all clients.",
                *spread("fedcore_lambda_effective"),
                log=True,
                page=LAMBDA,
            )
        ),
        lines(
            "Distance from rest",
            "Median raw lambda over its median closed form. 1 = at rest; far from 1: the sigmas "
            "are slower than the losses, so that the closed form is not reached in this run.",
            Query(ratio, "raw / at rest"),
            log=True,
            steps={1: GREEN},
            page="operations.md#lambdaoffequilibrium",
        ),
        lines(
            "Annealing s(p)",
            "The factor of the schedule and the share of the run that is done (p).",
            Query(largest("fedcore_annealing_factor"), "s(p)"),
            Query(largest("fedcore_progress_ratio"), "p"),
            page=LAMBDA,
        ).max(1),
        lines(
            "Learned variances",
            "Median over clients of sigma² of the local and the alignment task. At rest each is "
            "its own loss; sigma²_align going to 0 is what makes lambda explode.",
            Query(median("fedcore_sigma_sq", by="task"), "{{task}}"),
            log=True,
            page="operations.md#lambdastuck",
        ),
        lines(
            "Exploded clients",
            "Clients whose raw lambda is above lambda_max.",
            Query(largest("fedcore_lambda_exploded"), "clients above lambda_max"),
            steps={1: RED},
            page="operations.md#lambdaexplosion",
        ).decimals(0),
    ]


def training() -> list[Panel]:
    """What the clients minimise."""
    return [
        lines(
            "Losses by term",
            "Median over clients of the mean of the last local epoch. base = the sum of the "
            "terms but align; align is what lambda weighs.",
            Query(median("fedcore_loss", by="term"), "{{term}}"),
            page=LAMBDA,
        ),
        lines(
            "Align loss by client",
            "Distance of prototypes from their anchors. A client near 0 has arrived, and its "
            "lambda at rest is large.",
            each_client("fedcore_loss", labels='term="align"'),
            log=True,
            page="operations.md#alignlossvanished",
        ),
        band(
            lines(
                "Gradient norm over clients",
                "Before clipping (clients.clip). Always above the clip: the step length is that "
                "of the clip, not of the learning rate.",
                *spread("fedcore_gradient_norm"),
                page=LAMBDA,
            )
        ),
    ]


def quality() -> list[Panel]:
    """What the clients' models are worth, and how far they are apart."""
    return [
        lines(
            "Accuracy by read-out",
            "Share of test samples right, at each evaluation (evaluate.every).",
            Query(largest("fedcore_test_accuracy", by="readout"), "{{readout}}"),
            unit="percentunit",
            page=LAMBDA,
        ).max(1),
        lines(
            "Prototype spread",
            "Standard deviation of the prototypes between clients (raw; unit = of unit "
            "prototypes of classes that two clients hold), and of the global ones between "
            "classes. Clients agree as the first two fall; a fall of the third is collapse.",
            Query(largest("fedcore_prototype_std"), "between clients"),
            Query(largest("fedcore_unit_prototype_std"), "between clients, unit"),
            Query(largest("fedcore_global_prototype_std"), "global, between classes"),
            page=LAMBDA,
        ),
        lines(
            "Model variance",
            "Of the clients' models around the averaged one, at each evaluation.",
            Query(largest("fedcore_model_variance"), "variance"),
            page=LAMBDA,
        ),
    ]


def speed() -> list[Panel]:
    """How fast, and who is waited for."""
    return [
        *shared.throughput("Samples", "fedcore_samples_total", "si:samples/s"),
        *shared.phases(),
        *shared.stragglers(),
        *shared.collectives(),
    ]


def versions() -> list[Panel]:
    """The same reading of several runs, so that versions can be told apart."""
    accuracy = largest("fedcore_test_accuracy", 'run!=""')
    weight = median("fedcore_lambda_raw", 'run!=""')
    align = median("fedcore_loss", 'run!="", term="align"')

    def of(expression: str) -> Query:
        return Query(beside(expression, "federated"), "{{algorithm}} {{run}}")

    over = "Over the clients of each run."
    return [
        lines("Best accuracy by run", "By the best read-out.", of(accuracy), unit="percentunit"),
        lines("Median raw lambda by run", over, of(weight), log=True, page=LAMBDA),
        lines("Median align loss by run", over, of(align), log=True, page=LAMBDA),
    ]


def _run(metric: str) -> Query:
    return Query(largest(f"fedcore_{metric}"))
