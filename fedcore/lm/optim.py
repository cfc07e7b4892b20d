"""Parameter groups and optimisers; weight decay is decoupled: theta <- (1 - eta lam) theta - eta u.

Everything is ordinary torch: a loop that writes `lr` and `weight_decay` into each group at each
step drives every one of them. Muon apart, which needs whole matrices, they may be handed flat
partitions of the parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedcore.config_lm import OptimizerConfig
from fedcore.lm.layers import RMSNorm

Kind = Literal["matrix", "embedding", "norm", "bias"]
Group = dict[str, Any]


def kind_of(module: nn.Module, name: str) -> Kind:
    """The kind of the parameter `name` of that module."""
    if name == "bias":
        return "bias"
    if isinstance(module, nn.Embedding):
        return "embedding"
    return "norm" if isinstance(module, RMSNorm | nn.LayerNorm) else "matrix"


def kinds(model: nn.Module) -> dict[str, Kind]:
    """The kind of each parameter by name; a parameter that is used twice is there once."""
    return {
        name: kind_of(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
        for name, _ in model.named_parameters()
    }


def group_of(name: str, kind: Kind, config: OptimizerConfig) -> str:
    """The name of a parameter's group: muon (hidden matrices), decay or no_decay."""
    if config.name == "muon" and kind == "matrix" and not name.endswith("lm_head.weight"):
        return "muon"
    decayed = {
        "matrix": True,
        "embedding": config.decay_embeddings,
        "norm": config.decay_norms,
        "bias": config.decay_biases,
    }
    return "decay" if decayed[kind] else "no_decay"


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[Group]:
    """Groups "muon", "decay" and "no_decay", as far as they have members.

    Each has its members (`params`, `names`), its `name`, and the peaks of `lr` and `weight_decay`.
    """
    members: dict[str, list[tuple[str, nn.Parameter]]] = {"muon": [], "decay": [], "no_decay": []}
    parameters = dict(model.named_parameters())
    for name, kind in kinds(model).items():
        members[group_of(name, kind, config)].append((name, parameters[name]))
    return [
        {
            "params": [parameter for _, parameter in found],
            "names": [name for name, _ in found],
            "name": group,
            "lr": config.muon_lr if group == "muon" else config.lr,
            "weight_decay": 0.0 if group == "no_decay" else config.weight_decay,
        }
        for group, found in members.items()
        if found
    ]


class Decoupled(torch.optim.Optimizer, ABC):
    """theta <- (1 - eta lam) theta - eta u, where `update` gives u; memory starts at zero."""

    memory: str  # name of the one moving average in the state

    @abstractmethod
    def update(self, group: Group, grads: list[Tensor], memory: list[Tensor]) -> list[Tensor]:
        """The update u of each parameter; `memory` moves on."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            memory = [self._memory(p) for p in params]
            updates = self.update(group, [p.grad for p in params], memory)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
        return loss

    def _memory(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if self.memory not in state:
            state[self.memory] = torch.zeros_like(parameter)
        kept: Tensor = state[self.memory]
        return kept


class SGDM(Decoupled):
    """u = m, m <- beta1 m + (1 - beta1) g: an average, so that eta does not depend on beta1."""

    memory = "exp_avg"

    def update(self, group: Group, grads: list[Tensor], memory: list[Tensor]) -> list[Tensor]:
        torch._foreach_lerp_(memory, grads, 1 - group["beta1"])
        return memory


class SignSGDM(Decoupled):
    """u = sign(m), m <- beta1 m + (1 - beta1) g (arXiv 1802.04434)."""

    memory = "exp_avg"

    def update(self, group: Group, grads: list[Tensor], memory: list[Tensor]) -> list[Tensor]:
        torch._foreach_lerp_(memory, grads, 1 - group["beta1"])
        return list(torch._foreach_sign(memory))


class RMSProp(Decoupled):
    """u = g / (sqrt(v) + eps), v <- beta2 v + (1 - beta2) g^2; v is 0 at first, as in torch.

    In the long run u has RMS 1. The first steps are longer, by 1 / sqrt(1 - beta2^t): warm up.
    """

    memory = "exp_avg_sq"

    def update(self, group: Group, grads: list[Tensor], memory: list[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(memory, group["beta2"])
        torch._foreach_addcmul_(memory, grads, grads, 1 - group["beta2"])
        roots = torch._foreach_sqrt(memory)
        torch._foreach_add_(roots, group["eps"])
        return list(torch._foreach_div(grads, roots))


class Muon(torch.optim.Optimizer):
    """torch's Muon on the group "muon" and torch's AdamW on the others, as one optimiser."""

    def __init__(self, groups: list[Group], config: OptimizerConfig) -> None:
        self._muon = torch.optim.Muon(
            [g for g in groups if g["name"] == "muon"], momentum=config.beta1
        )
        self._adamw = adamw([g for g in groups if g["name"] != "muon"], config)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of each on its own groups, with this optimiser's groups and memory."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.param_groups = [g for g in self.param_groups if g["name"] == "muon"]
        self._adamw.param_groups = [g for g in self.param_groups if g["name"] != "muon"]
        parts: tuple[torch.optim.Optimizer, ...] = (self._muon, self._adamw)
        for part in parts:  # anew each step: load_state_dict replaces groups and memory
            part.state = self.state
            part.step()
        return loss


def adamw(groups: list[Group], config: OptimizerConfig) -> torch.optim.AdamW:
    """torch's AdamW in its fused form, the quickest on GPU and CPU."""
    return torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def apart(groups: list[Group]) -> list[Group]:
    """Every decayed parameter as a group of its own, under the same name: each has its own lam."""
    single = [
        g | {"params": [p], "names": [n]}
        for g in groups
        if g["weight_decay"] > 0
        for p, n in zip(g["params"], g["names"], strict=True)
    ]
    return single + [g for g in groups if g["weight_decay"] == 0]


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, *, one_each: bool = False
) -> torch.optim.Optimizer:
    """The configured optimiser on `parameter_groups(model, config)`, or on these taken apart."""
    groups = parameter_groups(model, config)
    if one_each:
        groups = apart(groups)
    match config.name:
        case "adamw":
            return adamw(groups, config)
        case "muon":
            return Muon(groups, config)
        case "rmsprop":
            return RMSProp(groups, {"beta2": config.beta2, "eps": config.eps})
        case "sgdm":
            return SGDM(groups, {"beta1": config.beta1})
        case "signsgdm":
            return SignSGDM(groups, {"beta1": config.beta1})
