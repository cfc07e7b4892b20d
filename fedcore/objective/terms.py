"""Loss terms: each maps one client's View to a scalar. Formulas: docs/algorithms.md, section 1.

Rules for a term, so that it runs under vmap: masks instead of boolean indexing, no `.item()`,
rows of weight 0 must not count. Keyword arguments are settings (`algorithm.terms` in YAML).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.objective.view import View
from fedcore.registry import Registry
from fedcore.settings import Divisor

Term = Callable[[View], Tensor]

TERMS: Registry[Term] = Registry("algorithm.base")


def cross_entropy(view: View) -> Tensor:
    """CE(z P^T, y), mean over the samples."""
    return view.mean(F.cross_entropy(view.logits, view.labels, reduction="none"))


def supcon(view: View, temperature: Divisor = 0.07) -> Tensor:
    """Supervised contrastive loss over all views (Khosla et al. 2020, L_out of eq. 2).

    Per anchor: minus the mean over its positives (same label, not itself) of the log softmax over
    all others. An anchor without a positive contributes 0.
    """
    z, weight = view.features, view.weight
    others = (1 - torch.eye(len(z), dtype=z.dtype, device=z.device)) * weight  # [R, R]
    similarity = z @ z.T / temperature
    # finite instead of -inf: a row without any other sample must give 0, not NaN
    log_p = F.log_softmax(similarity.masked_fill(others == 0, torch.finfo(z.dtype).min / 4), dim=1)
    positives = (view.labels[:, None] == view.labels).to(z.dtype) * others
    return view.mean(-(log_p * positives).sum(1) / positives.sum(1).clamp(min=1))


def proto_feature(view: View, temperature: Divisor = 1.0) -> Tensor:
    """CE(z P^T / T, y): equal to `cross_entropy` at the published T = 1."""
    scaled = view.logits / temperature
    return view.mean(F.cross_entropy(scaled, view.labels, reduction="none"))


def proto_separation(view: View, temperature: Divisor = 1.0) -> Tensor:
    """CE(P P^T / T, [0 .. C-1]), diagonal included: prototypes move apart."""
    similarity = view.prototypes @ view.prototypes.T / temperature
    return -F.log_softmax(similarity, dim=1).diagonal().mean()


def proto_to_anchor(view: View) -> Tensor:
    """Mean over all classes and D of (P_c - a_c)^2 (early versions)."""
    return (view.prototypes - view.anchors).square().mean()


def present_proto_to_anchor(view: View) -> Tensor:
    """Mean over the classes present in the batch and over D of (P_c - a_c)^2."""
    per_class = (view.prototypes - view.anchors).square().mean(1)
    present = view.present
    return (per_class * present).sum() / present.sum().clamp(min=1)


def feature_to_anchor(view: View) -> Tensor:
    """Mean of (z_i - a_{y_i})^2: the ablation that shows feature collapse."""
    return view.mean((view.features - view.anchors[view.labels]).square().mean(1))


def feature_to_global(view: View) -> Tensor:
    """Mean over the samples and D of (z_i - G_{y_i})^2 (FedProto, Tan et al. 2022).

    G is the mean embedding of all clients; a class without a global prototype yet contributes 0.
    """
    known = (view.global_prototypes != 0).any(1).to(view.weight.dtype)[view.labels]
    rows = (view.features - view.global_prototypes[view.labels]).square().mean(1)
    return view.mean(rows * known)


def dot_regression(view: View) -> Tensor:
    """Mean of (a_{y_i} . z_i - 1)^2 / 2 (Yang et al. 2022): only the own anchor pulls."""
    return view.mean(0.5 * ((view.features * view.anchors[view.labels]).sum(1) - 1).square())


def balanced_softmax(view: View, scale: Divisor = 10.0, power: float = 1.0) -> Tensor:
    """CE(scale z a^T + power log n, y), n the client's label counts (Li et al. 2023).

    A class the client does not hold is left out of the softmax. scale: the paper's beta.
    """
    counts = view.label_counts.to(view.features.dtype)
    # finite instead of -inf: 0 * inf in the gradient would be NaN
    prior = torch.where(counts > 0, power * counts.clamp(min=1).log(), -1e4)
    logits = scale * view.features @ view.anchors.T + prior
    return view.mean(F.cross_entropy(logits, view.labels, reduction="none"))


def proximal(view: View, mu: float = 0.01) -> Tensor:
    """mu/2 |w - w_t|^2, w_t the model of the round's start (FedProx, Li et al. 2020, eq. 2)."""
    squares = [(w - view.global_params[name]).square().sum() for name, w in view.params.items()]
    return 0.5 * mu * torch.stack(squares).sum()


class _Asked(Exception):
    """The anchors were."""


class _WithoutAnchors(View):
    @property
    def anchors(self) -> Tensor:
        raise _Asked


def reads_anchors(term: Term) -> bool:
    """Whether the term looks at `view.anchors`: it is tried on a batch that has none."""
    try:
        term(_small(_WithoutAnchors))
    except _Asked:
        return True
    except Exception:  # a term that wants more of a batch: training will tell
        return False
    return False


def shape_of(term: Term) -> tuple[int, ...]:
    """The shape of what the term gives for a small batch; () is right, also if it cannot be tried
    on that."""
    try:
        return tuple(term(_small(View)).shape)
    except Exception:
        return ()


def _small(kind: type[View]) -> View:
    """Two samples of two classes in two dimensions."""
    z, P, y, ones = torch.eye(2), torch.eye(2), torch.tensor([0, 1]), torch.ones(2)
    both = {"prototypes": P}
    return kind(z, z @ P.T, P, P, P, y, ones, torch.tensor([1, 1]), both, both)


for _term in (
    cross_entropy,
    supcon,
    proto_feature,
    proto_separation,
    feature_to_global,
    proximal,
    proto_to_anchor,
    present_proto_to_anchor,
    feature_to_anchor,
    dot_regression,
    balanced_softmax,
):
    TERMS.add(_term.__name__, _term)
