"""What the server makes of the clients' mean: rules as data, with the step that each one takes.

w are the weights that a round began from, D = mean - w the way that the clients went: what the
papers call the pseudo-gradient, turned round. Elementwise on one parameter of any shape, in its own
type: D is a difference of rounded weights, so wider moments would but keep that rounding, at twice
the memory. Each operation rounds once, whatever the strides: all ranks come to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedcore.errors import ConfigError
from fedcore.registry import Registry
from fedcore.settings import Divisor

Tensors = Mapping[str, Tensor]
Moments = dict[str, Tensor]
"""What a rule keeps of one parameter from round to round, by name, each of its shape."""


class ServerRule(Protocol):
    """A frozen dataclass, whose fields are its settings; the first paragraph of its docstring is
    the formula that `fedcore algorithms` prints."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def start(self, like: Tensor) -> Moments:
        """Moments before the first round, of a parameter like this."""

    def step(self, change: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """What is added to w for a change D, and the moments from then on."""


def stepped(
    rule: ServerRule | None, before: Tensors, mean: Tensors, moments: Mapping[str, Moments]
) -> tuple[dict[str, Tensor], dict[str, Moments]]:
    """The server's model after a round, and the moments of each parameter.

    before: the parameters that the round began from. mean: the clients' mean model; what is in it
    alone, batch statistics and counters, is taken as it is. Without a rule all of it is.
    """
    model, after = dict(mean), dict[str, Moments]()
    if rule is None:
        return model, after
    for name, start in before.items():
        change = mean[name] - start
        update, after[name] = rule.step(change, moments.get(name) or rule.start(start))
        # not start + update, which rounds: with lr 1 and no momentum this is the mean bit for bit
        model[name] = mean[name] + (update - change)
    return model, after


@dataclass(frozen=True)
class Momentum:
    """m <- momentum m + D; w <- w + lr m, with nesterov w + lr (D + momentum m).

    Hsu et al. 2019 (FedAvgM). Without momentum lr is the server's learning rate (SCAFFOLD's eta_g).
    lm/outer.py has a step like it with weight decay: the wing of language models imports no
    algorithms.
    """

    lr: Divisor = 1.0
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def start(self, like: Tensor) -> Moments:
        return {"m": torch.zeros_like(like)}

    def step(self, change: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        m = self.momentum * moments["m"] + change
        way = change + self.momentum * m if self.nesterov else m
        return self.lr * way, {"m": m}


@dataclass(frozen=True)
class Adagrad:
    """m <- beta1 m + (1 - beta1) D; v <- v + D^2, from tau^2; w <- w + lr m / (sqrt v + tau).

    Reddi et al. 2021, algorithm 2 (FedAdagrad).
    """

    lr: Divisor = 0.01
    beta1: float = 0.0
    tau: Divisor = 1e-3

    def __post_init__(self) -> None:
        _check(self)

    def start(self, like: Tensor) -> Moments:
        return _start(like, self.tau)

    def step(self, change: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        return _adaptive(self, change, moments["m"], moments["v"] + change.square())


@dataclass(frozen=True)
class Adam:
    """m <- beta1 m + (1 - beta1) D; v <- beta2 v + (1 - beta2) D^2, from tau^2;
    w <- w + lr m / (sqrt v + tau).

    Reddi et al. 2021, algorithm 2 (FedAdam): m and v are not corrected for where they start.
    """

    lr: Divisor = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: Divisor = 1e-3

    def __post_init__(self) -> None:
        _check(self)

    def start(self, like: Tensor) -> Moments:
        return _start(like, self.tau)

    def step(self, change: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        return _adaptive(self, change, moments["m"], self.second(moments["v"], change.square()))

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v after a change of that square."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """m <- beta1 m + (1 - beta1) D; v <- v - (1 - beta2) D^2 sign(v - D^2), from tau^2;
    w <- w + lr m / (sqrt v + tau).

    Reddi et al. 2021, algorithm 2 (FedYogi): unlike Adam's, v shrinks no faster than D^2 is large.
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v after a change of that square."""
        return v - (1 - self.beta2) * square * (v - square).sign()


def _start(like: Tensor, tau: float) -> Moments:
    return {"m": torch.zeros_like(like), "v": torch.full_like(like, tau**2)}


def _adaptive(rule: Adagrad | Adam, change: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Moments]:
    """The step along m, scaled by what v has become."""
    m = rule.beta1 * m + (1 - rule.beta1) * change
    return rule.lr * m / (v.sqrt() + rule.tau), {"m": m, "v": v}


DECAYS = ("momentum", "beta1", "beta2")
"""Settings that are the share of a moment which is kept."""


def _check(rule: ServerRule) -> None:
    """`ConfigError` for a share outside of 0...1, or another number that is not above 0."""
    for field in fields(rule):
        value, key = getattr(rule, field.name), f"{type(rule).__name__.lower()}.{field.name}"
        if field.name in DECAYS and not 0 <= value < 1:
            want = "a number from 0 to below 1"
            raise ConfigError(f"algorithm.server.{key}", value, want, str(field.default))
        if not isinstance(value, bool) and field.name not in DECAYS and not value > 0:
            raise ConfigError(f"algorithm.server.{key}", value, "a number > 0", str(field.default))


SERVER_RULES: Registry[type[ServerRule]] = Registry("algorithm.server")

for _rule in (Momentum, Adagrad, Yogi, Adam):
    SERVER_RULES.add(_rule.__name__.lower(), _rule)


def name_of(rule: ServerRule) -> str:
    """The name that a configuration knows the rule by."""
    names = [name for name, kind in SERVER_RULES if type(rule) is kind]
    return names[0] if names else repr(rule)
