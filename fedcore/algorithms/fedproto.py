"""FedProto (Tan et al. 2022): clients exchange mean embeddings per class, never models."""

from __future__ import annotations

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm
from fedcore.objective.terms import cross_entropy, feature_to_global
from fedcore.objective.weighting import Fixed, LambdaRule

FEDPROTO = ALGORITHMS.add(
    "fedproto",
    Algorithm(
        about="features drawn to the mean embedding of their class over all clients",
        base=(cross_entropy,),
        align=(feature_to_global,),
        rule=LambdaRule(start=Fixed(1.0)),
        upload="mean_features",
        combine="by_samples",
        readout="nearest_prototype",
    ),
)
