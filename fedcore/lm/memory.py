"""What weight decay remembers: theta_j = (1 - lam_j eta_j) theta_{j-1} - eta_j u_j as an average.

All in float64 and O(T). The update of step j stands in theta_T with the weight
eta_j prod_{i>j} (1 - lam_i eta_i), the initialisation with prod_i (1 - lam_i eta_i).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from fedcore.config_lm import OptimizerConfig

Array = npt.NDArray[np.float64]

MUON_RMS = 0.874  # of sqrt(columns) u: five Newton-Schulz steps leave singular values near 1


def kept(eta: Array, lam: Array) -> Array:
    """Share of theta_j that is left in theta_T, for j = 0 ... T: [T + 1], the last is 1.

    eta, lam: [T]. A running product, not a sum of logarithms: lam eta >= 1 is allowed, and
    underflow means 0.
    """
    factors = np.append(1 - lam * eta, 1.0)
    return np.cumprod(factors[::-1])[::-1]


def update_weights(eta: Array, lam: Array) -> Array:
    """Weight of each step's update u_j in theta_T: [T], from eta and lam [T]."""
    weights: Array = eta * kept(eta, lam)[1:]
    return weights


def gradient_weights(eta: Array, lam: Array, beta1: float = 0.0) -> Array:
    """Weight of each step's *gradient* in theta_T: [T].

    With a first moment m_i = (1 - beta1) sum_j beta1^(i-j) g_j the gradient of step j enters all
    later updates: a running sum from the end. (The closed form is 0/0 at lam eta = 1 - beta1.)
    Adam's bias correction, which lifts the first 1/(1 - beta1) steps, is left out.
    """
    weights = update_weights(eta, lam)
    if beta1 == 0:
        return weights
    summed: Array = lfilter([1 - beta1], [1, -beta1], weights[::-1])[::-1]
    return summed


def effective_share(weights: Array) -> float:
    """Effective sample size over T: (sum w)^2 / (T sum w^2) of weights w [T]; 1 = all equal."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / (weights.size * squares) if squares else 0.0


def flatness(weights: Array) -> float:
    """Largest of the weights [T] over the smallest; infinite if that is 0."""
    low = float(weights.min())
    return float(weights.max()) / low if low > 0 else math.inf


def per_part(weights: Array, parts: int = 10, epoch: int | None = None) -> list[float]:
    """Weight of each of `parts` equal parts of the data, over its uniform share.

    weights: of each step [T]. epoch: steps of one pass over the data, where there are several: the
    passes add up, and data that were not read have no weight.
    """
    length = epoch or weights.size
    part = np.arange(length) * parts // length  # of each step of a pass
    sums = np.bincount(part[np.arange(weights.size) % length], weights, minlength=parts)
    even = weights.sum() / length * np.bincount(part, minlength=parts)
    return [float(x) for x in np.divide(sums, even, out=np.zeros(parts), where=even > 0)]


@dataclass(frozen=True)
class Memory:
    """What one parameter group remembers of its run at the end."""

    steps: int  # T
    x: float  # lam eta_max T, peaks of both
    initialisation_left: float
    flatness: float  # largest over smallest weight of a gradient, over all steps
    flatness_inner: float  # the same of updates after the warm-up: beta1 and T_w left aside
    effective_share: float  # ESS / T
    first_half: float  # share of the weight that the first half of the steps has
    t1: float | None  # steps: first moment
    t2: float | None  # steps: second moment
    t3: float  # steps: the weights, 1 / (lam eta) at both peaks
    t3_last: float  # the same at the last step

    @classmethod
    def of(
        cls,
        eta: Array,
        lam: Array,
        moments: tuple[float | None, float | None] = (None, None),
        peak: int = 0,
    ) -> Memory:
        """From eta and lam of each step [T] and (beta1, beta2), None where there is no such moment.

        peak: the step at which the warm-up has reached its peak.
        """
        weights = gradient_weights(eta, lam, moments[0] or 0.0)
        total = float(weights.sum())
        pull = float(lam.max() * eta.max())
        return cls(
            steps=eta.size,
            x=pull * eta.size,
            initialisation_left=float(kept(eta, lam)[0]),
            flatness=flatness(weights),
            flatness_inner=flatness(update_weights(eta, lam)[min(peak, eta.size - 1) :]),
            effective_share=effective_share(weights),
            first_half=float(weights[: eta.size // 2].sum()) / total if total else 0.0,
            t1=_steps(moments[0]),
            t2=_steps(moments[1]),
            t3=inverse(pull),
            t3_last=inverse(float(lam[-1] * eta[-1])),
        )


def _steps(beta: float | None) -> float | None:
    return None if beta is None else 1 / (1 - beta)


def inverse(pull: float) -> float:
    """How many steps a pull lam eta remembers: 1 / (lam eta); infinite without a pull."""
    return 1 / pull if pull > 0 else math.inf


def moments(optimizer: OptimizerConfig) -> tuple[float | None, float | None]:
    """(beta1, beta2), None where the optimiser has no such moment."""
    first = None if optimizer.name == "rmsprop" else optimizer.beta1
    second = optimizer.beta2 if optimizer.name in ("adamw", "rmsprop", "muon") else None
    return first, second


# -- the size of the weights


def predicted_rms(
    eta: Iterable[float], lam: Iterable[float], std: float, start: float
) -> list[float]:
    """RMS after each step if gradients have no mean: R^2 <- (1 - lam eta)^2 R^2 + (eta c)^2.

    eta, lam: of each step. std: c, the long-run standard deviation of the update; start: RMS of
    the initialisation.
    """
    square, path = start * start, []
    for e, w in zip(eta, lam, strict=True):
        square = (1 - w * e) ** 2 * square + (e * std) ** 2
        path.append(math.sqrt(square))
    return path


def law(eta: float, lam: float, std: float = 1.0) -> float:
    """RMS at rest under constant rates: c sqrt(eta / (2 lam)); infinite without decay.

    std: c (`long_run_std`).
    """
    return std * math.sqrt(eta / (2 * lam)) if lam > 0 else math.inf


def with_mean(at_rest: float, mean: float, lam: float, variance: float = 1.0) -> float:
    """RMS at rest when updates have a mean: sqrt(V law^2 + (mean / lam)^2).

    at_rest: the `law`. variance: V, the update's about its mean over the long-run variance that the
    law assumes.
    """
    return math.sqrt(variance * at_rest**2 + (mean / lam) ** 2)


def scale_invariant(eta: float, lam: float, unit_gradient: float) -> float:
    """RMS at rest of a layer whose scale does not matter, under SGD: (eta g^2 / (2 lam))^(1/4).

    Its gradient is g over its RMS, with g = unit_gradient that at RMS 1.
    """
    return math.sqrt(unit_gradient * law(eta, lam))


def long_run_std(
    optimizer: OptimizerConfig,
    shape: Sequence[int] = (),
    gradient_std: float | None = None,
) -> float | None:
    """c, the root of the long-run variance of the update u, for gradients without memory or mean.

    None for sgdm unless the standard deviation of its gradient is given: c is linear in it. shape:
    of the parameter. Only muon looks at it, for matrices [rows, columns]; to anything else muon
    applies AdamW.
    """
    if optimizer.name == "sgdm":
        return gradient_std
    if optimizer.name == "signsgdm":
        return _sign_std(optimizer.beta1)
    if optimizer.name == "muon" and len(shape) == 2:
        return _muon_std(optimizer.beta1, *shape)
    return 1.0


def _muon_std(beta: float, rows: int, columns: int) -> float:
    """c of torch's Muon (Nesterov, factor sqrt(max(1, rows / columns)) on the update).

    Its update RMS over that of the momentum it orthogonalises, whose long-run variance is 1, times
    what making it orthogonal costs: measured, 3% for slim matrices and for square ones 18% at 48,
    15% at 64 and 13% at 100 rows.
    """
    momentum = (1 - beta) * math.sqrt((1 + beta) ** 2 + beta**4 / (1 - beta**2))
    square = min(rows, columns) / max(rows, columns)
    return (0.975 - 0.125 * square**2) / momentum * MUON_RMS / math.sqrt(columns)


def averaged_std(beta: float) -> float:
    """c over the RMS of an exponential average of white noise: sqrt((1 + beta) / (1 - beta))."""
    return math.sqrt((1 + beta) / (1 - beta))


def _sign_std(beta: float) -> float:
    """Normal averages k steps apart correlate by beta^k, their signs by 2/pi arcsin of that."""
    if beta == 0:
        return 1.0
    lags = np.arange(1, math.ceil(-40 / math.log(beta)) + 1)
    return math.sqrt(1 + 4 / math.pi * float(np.arcsin(beta**lags).sum()))


def update_rms(optimizer: OptimizerConfig, shape: Sequence[int] = ()) -> float | None:
    """RMS of a single update u under such gradients; None for sgdm, where it is the gradient's."""
    if optimizer.name == "sgdm":
        return None
    if optimizer.name == "muon" and len(shape) == 2:
        return MUON_RMS / math.sqrt(shape[1])
    return 1 / averaged_std(optimizer.beta1) if optimizer.name in ("adamw", "muon") else 1.0


def resting_update_ratio(eta: float, lam: float, std: float, rms: float) -> float:
    """eta |u| / |theta| at rest: sqrt(2 lam eta) rms / c.

    rms: of a single update (`update_rms`); std: c (`long_run_std`).
    """
    return rms / std * math.sqrt(2 * lam * eta)


def federated_shrink(
    local_steps: int,
    local: tuple[float, float],
    outer: tuple[float, float],
    weight: float = 1.0,
) -> float:
    """Share of the global weights that is left after a round: (1 - eta_l lam_l)^K - eta_g lam_g.

    local_steps: K. local, outer: (eta, lam) of clients and server. weight: of the clients' mean
    change (1 in FedAvg, the lr of an outer optimiser without momentum). The server's pull acts on
    the weights that the round began with.
    """
    change = (1 - local[0] * local[1]) ** local_steps - 1
    return float(1 + weight * change - outer[0] * outer[1])
