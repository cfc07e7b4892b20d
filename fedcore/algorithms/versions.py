"""V4...V14 as one table: what each changes in the one before. Formulas: docs/algorithms.md.

The original notes and the later published code disagree on where V12 and V13 put the annealing
factor; both readings stand here by name (`v12` as the note writes it, `v12_log` as corrected).
"""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm
from fedcore.objective.guards import Bounded, Hinge, InverseVariance, NoGuard
from fedcore.objective.learners import GradNorm, Hypergradient, Uncertainty
from fedcore.objective.terms import (
    cross_entropy,
    present_proto_to_anchor,
    proto_feature,
    proto_separation,
    proto_to_anchor,
    supcon,
)
from fedcore.objective.weighting import Fixed, FromEntropy, LambdaRule, Slot
from fedcore.schedule import Constant, Cosine, Linear

V4 = Algorithm(
    about="four prototype losses, no alignment (FAFI local training, SALT)",
    base=(cross_entropy, supcon, proto_feature, proto_separation),
)
V5 = replace(
    V4,
    about="all prototypes drawn to random anchors, lambda fixed at 1",
    align=(proto_to_anchor,),
    anchor="gaussian",
    rule=LambdaRule(start=Fixed(1.0)),
)
V6 = replace(
    V5,
    about="v5 with lambda 5, annealed linearly",
    rule=LambdaRule(start=Fixed(5.0), anneal=Linear(), slots=Slot.WEIGHTS),
)
V7 = replace(
    V6,
    about="v6 with ETF anchors, for the classes present in the batch",
    align=(present_proto_to_anchor,),
    anchor="etf",
)
V8 = replace(
    V7,
    about="v7 on a path: the target walks from the round's first prototypes to the anchors",
    anchor="consensus_path",
)
V9 = replace(
    V7,
    about="v7 with lambda from the client's label entropy",
    rule=replace(V7.rule, start=FromEntropy(0.1, 20.0)),
)
V10 = replace(
    V9,
    about="lambda learned by uncertainty weighting, not annealed",
    rule=replace(V9.rule, learner=Uncertainty(), anneal=Constant(), slots=Slot.NONE),
)
V11_LINEAR = replace(
    V10,
    about="v10 on one annealed align loss, by rounds: learning cancels the annealing",
    rule=replace(V10.rule, anneal=Linear(), slots=Slot.WEIGHTS | Slot.ALIGN, clock="round"),
)
V11_COSINE = replace(
    V11_LINEAR,
    about="v11_linear with a cosine",
    rule=replace(V11_LINEAR.rule, anneal=Cosine()),
)
V11_DETACHED = replace(
    V11_COSINE,
    about="v11_cosine whose sigma loss sees the raw align loss: only the weight is annealed",
    rule=replace(V11_COSINE.rule, slots=Slot.WEIGHTS),
)
V12 = replace(
    V10,
    about="annealing inside the sigma loss's align term: lambda grows as 1/s",
    rule=replace(V10.rule, anneal=Linear(), slots=Slot.ALIGN),
)
V12_LOG = replace(
    V12,
    about="annealing on the sigma loss's log term: lambda falls as s (published correction)",
    rule=replace(V12.rule, slots=Slot.LOG),
)
V13 = replace(
    V12,
    about="v12 with gamma / sigma^2_align as a guard",
    rule=replace(V12.rule, guard=InverseVariance(1e-5)),
)
V13_LOG = replace(
    V12_LOG,
    about="v12_log with gamma / sigma^2_align as a guard",
    rule=replace(V12_LOG.rule, guard=InverseVariance(1e-5)),
)
V14 = replace(
    V12_LOG,
    about="v12_log with a cosine and a hinge above lambda_max (AURORA)",
    rule=replace(V12_LOG.rule, anneal=Cosine(), guard=Hinge(1e-5, 50.0)),
    readout="iffi",
)
BOUNDED = replace(
    V14,
    about="v14 with lambda = 50 sigmoid(theta) in place of the hinge: it cannot explode",
    rule=replace(V14.rule, guard=NoGuard(), form=Bounded(50.0)),
)
GRADNORM = replace(
    V9,
    about="lambda balances the gradient norms of base and align loss at the prototypes",
    rule=replace(V9.rule, learner=GradNorm(), anneal=Constant(), slots=Slot.NONE),
)
HYPERGRADIENT = replace(
    V9,
    about="lambda follows the hypergradient of the client's held-out loss",
    rule=replace(V9.rule, learner=Hypergradient(), anneal=Constant(), slots=Slot.NONE),
)

for _name, _version in {
    "v4": V4,
    "v5": V5,
    "v6": V6,
    "v7": V7,
    "v8": V8,
    "v9": V9,
    "v10": V10,
    "v11_linear": V11_LINEAR,
    "v11_cosine": V11_COSINE,
    "v11_detached": V11_DETACHED,
    "v12": V12,
    "v12_log": V12_LOG,
    "v13": V13,
    "v13_log": V13_LOG,
    "v14": V14,
    "bounded": BOUNDED,
    "gradnorm": GRADNORM,
    "hypergradient": HYPERGRADIENT,
}.items():
    ALGORITHMS.add(_name, _version)
