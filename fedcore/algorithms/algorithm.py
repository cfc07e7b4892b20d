"""Algorithm: a declaration of what a client minimises and what the server does with its upload."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, get_args

from fedcore.algorithms.server_rules import ServerRule
from fedcore.errors import ConfigError
from fedcore.objective.learners import Hypergradient
from fedcore.objective.terms import Term
from fedcore.objective.weighting import LambdaRule
from fedcore.registry import Registry, nearest

Mode = Literal["one_shot", "averaged"]
Classifier = Literal["prototypes", "anchors"]
UploadPart = Literal["prototypes", "mean_features"]
MODES, CLASSIFIERS, UPLOADS = get_args(Mode), get_args(Classifier), get_args(UploadPart)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Client half (terms, anchor, rule) and server half (mode, combine, readout) as data."""

    about: str  # one line for `fedcore algorithms`
    base: tuple[Term, ...]
    align: tuple[Term, ...] = ()
    anchor: str | None = None  # in ANCHORS; None = nothing looks at anchors
    rule: LambdaRule = LambdaRule()
    mode: Mode = "one_shot"
    classifier: Classifier = "prototypes"  # learned, or fixed at the anchors
    upload: UploadPart = "prototypes"
    control_variates: bool = False  # SCAFFOLD's correction of each local gradient
    combine: str = "mean_of_present"  # of prototypes: in server.combine.COMBINES
    combine_settings: tuple[tuple[str, float], ...] = ()
    fuse: str = "mean"  # of whole models: in server.fusion.FUSIONS
    server: ServerRule | None = None  # its step from their mean; None = it takes the mean
    readout: str = "feature_ensemble"  # the read-out that test_accuracy reports

    def __post_init__(self) -> None:
        for name in ("base", "align"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, known in (("mode", MODES), ("classifier", CLASSIFIERS), ("upload", UPLOADS)):
            got = getattr(self, name)
            if got not in known:
                key = f"algorithm.{name}"
                raise ConfigError(key, got, "a known one", nearest(str(got), list(known)))

    @property
    def held_out(self) -> float:
        """Share of each client's samples kept back from training, for the learner of lambda."""
        learner = self.rule.learner
        return learner.held_out if isinstance(learner, Hypergradient) else 0.0

    @property
    def terms(self) -> tuple[Term, ...]:
        """All loss terms, base first."""
        return self.base + self.align

    @property
    def term_names(self) -> tuple[str, ...]:
        """The names of all loss terms, base first."""
        return tuple(term_name(term) for term in self.terms)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm.name", "fedcore.algorithms")


def term_name(term: Term) -> str:
    """The name a term is known by, with or without settings."""
    function = term.func if isinstance(term, functools.partial) else term
    return str(function.__name__)
