"""One-shot baselines: ensembles of clients that train alone, and models fused after matching."""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm
from fedcore.algorithms.versions import V4
from fedcore.objective.terms import cross_entropy

ENSEMBLE = ALGORITHMS.add(
    "ensemble",
    Algorithm(
        about="cross-entropy clients that never meet, their softmax outputs averaged",
        base=(cross_entropy,),
        readout="output_ensemble",
    ),
)
OTFUSION = ALGORITHMS.add(
    "otfusion",
    replace(
        ENSEMBLE,
        about="cross-entropy clients, neurons matched by optimal transport, then averaged once",
        fuse="optimal_transport",
        readout="averaged",
    ),
)
FAFI = ALGORITHMS.add(
    "fafi", replace(V4, about="v4 read out by feature informativeness (FAFI)", readout="iffi")
)
