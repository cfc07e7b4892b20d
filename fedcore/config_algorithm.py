"""The `algorithm:` section: a declared algorithm by name, and what a run changes in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator, model_validator

from fedcore.config_section import Named, Number, Positive, PositiveFloat, Section, Share


class EntropyStart(Section):
    """lambda0 = low + (high - low) H / log2 C, H the label entropy of the client in bits."""

    low: Share = 0.1
    """lambda0 of a client that holds one class."""
    high: PositiveFloat = 20.0
    """lambda0 of a client whose classes are balanced."""

    @model_validator(mode="after")
    def _ordered(self) -> EntropyStart:
        if self.low > self.high:
            raise ValueError(f"low <= high, and {self.low} > {self.high}")
        return self


class StartConfig(Section):
    """Where lambda starts: one of the two."""

    fixed: Share | None = None
    """The same lambda0 for every client."""
    entropy: EntropyStart | None = None
    """lambda0 from the client's label entropy."""

    @model_validator(mode="after")
    def _one(self) -> StartConfig:
        if (self.fixed is None) == (self.entropy is None):
            raise ValueError("exactly one of `fixed` and `entropy`")
        return self


class HingeConfig(Section):
    """gamma * relu(raw lambda - lambda_max) added to the sigma loss."""

    gamma: PositiveFloat = 1e-5
    """Strength (1e-5 in the code, 1e-3 in the paper)."""
    lambda_max: PositiveFloat = 50.0
    """Raw lambda above which the guard acts."""


class GuardConfig(Section):
    """What keeps a learned lambda from exploding: at most one; none = nothing."""

    inverse_variance: PositiveFloat | None = None
    """gamma of gamma / sigma^2_align added to the sigma loss."""
    hinge: HingeConfig | None = None
    """Hinge on the raw lambda."""

    @model_validator(mode="after")
    def _one(self) -> GuardConfig:
        if self.inverse_variance is not None and self.hinge is not None:
            raise ValueError("at most one of `inverse_variance` and `hinge`")
        return self


class UncertaintyConfig(Section):
    """Descent on the sigma loss of two log-variances. It has no settings."""


class GradNormConfig(Section):
    """Gradient norms of the base and the align loss at the prototypes are balanced."""

    asymmetry: Share = 0.0
    """GradNorm's alpha: 0 = equal norms; more = the loss that falls slower pulls harder."""


class HypergradientConfig(Section):
    """log lambda descends the client's held-out base loss, differentiated through its steps."""

    horizon: Positive = 1
    """Steps after which lambda moves; more than one costs a Hessian-vector product a step."""
    rate: PositiveFloat = 10.0
    """Step of log lambda per unit of the gradient."""
    held_out: Annotated[float, Field(gt=0, le=0.5)] = 0.2
    """Share of each client's samples that is kept back from its training."""


class LearnedConfig(Section):
    """Who moves lambda: at most one; none = it stays where it starts. `true` = uncertainty."""

    uncertainty: UncertaintyConfig | None = None
    """The sigma loss (v10...v14)."""
    gradnorm: GradNormConfig | None = None
    """Balanced gradient norms."""
    hypergradient: HypergradientConfig | None = None
    """The held-out loss."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"uncertainty": {}} if value else {}
        if isinstance(value, str):
            return {value: {}}
        return value

    @model_validator(mode="after")
    def _one(self) -> LearnedConfig:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) > 1:
            raise ValueError("at most one of `uncertainty`, `gradnorm` and `hypergradient`")
        return self


class RuleConfig(Section):
    """The weight lambda of the align loss. A key left null keeps the algorithm's own value."""

    start: StartConfig | None = None
    """Where lambda starts."""
    learned: LearnedConfig | None = None
    """Who moves lambda: uncertainty (or true), gradnorm, hypergradient; false = nobody."""
    anneal: Named | None = None
    """s(p): constant, linear, cosine, consensus, or one of yours, by name or with settings,
    {NAME: {SETTING: value}}."""
    slots: tuple[Literal["weights", "align", "log"], ...] | None = None
    """Where s(p) enters: the weight loss, the sigma loss's align term, its log term."""
    clock: Literal["epoch", "round"] | None = None
    """Whether p counts local epochs or rounds."""
    guard: GuardConfig | None = None
    """What keeps lambda from exploding; `{}` = nothing."""
    bound: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """lambda = bound * sigmoid(theta), with theta learned; 0 = no bound."""


def _number_or_switch(value: Any) -> float | bool:
    """As `Number`, and true and false stay what they are."""
    if isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("a number, or true or false") from None


class AlgorithmConfig(Section):
    """A declared algorithm by name, and what this run changes in it (null = as declared)."""

    name: str = "v14"
    """`fedcore algorithms` lists them."""
    mode: Literal["one_shot", "averaged"] | None = None
    """one_shot: client models persist. averaged: parameters are averaged after each round."""
    base: tuple[str, ...] | None = None
    """Loss terms of the base loss."""
    align: tuple[str, ...] | None = None
    """Loss terms of the align loss, which lambda weighs."""
    terms: dict[str, dict[str, Number]] = Field(default_factory=dict)
    """Settings of single terms, e.g. {supcon: {temperature: 0.1}}."""
    anchor: str | None = None
    """etf, gaussian, spread or consensus_path."""
    rule: RuleConfig = RuleConfig()
    """The lambda rule."""
    classifier: Literal["prototypes", "anchors"] | None = None
    """prototypes: learnable. anchors: the prototypes are the anchors, and stay (FedETF)."""
    upload: Literal["prototypes", "mean_features"] | None = None
    """What stands for a class: the learned prototype, or its mean feature (FedProto)."""
    control_variates: bool | None = None
    """Correct each local gradient by SCAFFOLD's control variates."""
    combine: str | None = None
    """How prototypes are combined: mean_of_present, mean, by_samples, server_optimised."""
    combine_settings: dict[str, Number] = Field(default_factory=dict)
    """Settings of that rule, e.g. {steps: 200, gamma: 1} of server_optimised."""
    fuse: str | None = None
    """How whole models become one: mean (by samples), optimal_transport (neurons matched first)."""
    server: dict[str, dict[str, Annotated[float, PlainValidator(_number_or_switch)]]] | None = None
    """The server's step from the clients' mean: momentum, adagrad, yogi, adam, or one of them with
    settings, e.g. {adam: {lr: 0.1}}; {} = it takes the mean as it is."""
    readout: str | None = None
    """The read-out that `test_accuracy` reports."""

    @field_validator("server", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {value: {}} if isinstance(value, str) else value

    @field_validator("server")
    @classmethod
    def _one_rule(cls, value: dict[str, dict[str, float]] | None) -> Any:
        if value is not None and len(value) > 1:
            raise ValueError("one rule: its name, or {name: {setting: value}}")
        return value
