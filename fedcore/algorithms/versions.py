"""V4...V14 as one table: what each changes in the one before. Formulas: docs/algorithms.md.

The original notes and the later published code disagree on where V12 and V13 put the annealing
factor; both readings stand here by name (`v12` as the note writes it, `v12_log` as corrected).
"""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm
from fedcore.objective.terms import (
    cross_entropy,
    present_proto_to_anchor,
    proto_feature,
    proto_separation,
    supcon,
)
from fedcore.objective.weighting import (
    Fixed,
    FromEntropy,
    Hinge,
    InverseVariance,
    LambdaRule,
    Slot,
)
from fedcore.schedule import Constant, Cosine, Linear

V4 = Algorithm(
    about="four prototype losses, no alignment (FAFI local training, SALT)",
    base=(cross_entropy, supcon, proto_feature, proto_separation),
)
V7 = replace(
    V4,
    about="alignment to ETF anchors, fixed lambda, annealed linearly",
    align=(present_proto_to_anchor,),
    rule=LambdaRule(start=Fixed(5.0), anneal=Linear(), slots=Slot.WEIGHTS),
)
V9 = replace(
    V7,
    about="v7 with lambda from the client's label entropy",
    rule=replace(V7.rule, start=FromEntropy(0.1, 20.0)),
)
V10 = replace(
    V9,
    about="lambda learned by uncertainty weighting, not annealed",
    rule=replace(V9.rule, learned=True, anneal=Constant(), slots=Slot.NONE),
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
V14 = replace(
    V12_LOG,
    about="v12_log with a cosine and a hinge above lambda_max (AURORA)",
    rule=replace(V12_LOG.rule, anneal=Cosine(), guard=Hinge(1e-5, 50.0)),
    readout="iffi",
)

for _name, _version in {
    "v4": V4,
    "v7": V7,
    "v9": V9,
    "v10": V10,
    "v11_linear": V11_LINEAR,
    "v11_cosine": V11_COSINE,
    "v12": V12,
    "v12_log": V12_LOG,
    "v13": V13,
    "v14": V14,
}.items():
    ALGORITHMS.add(_name, _version)
