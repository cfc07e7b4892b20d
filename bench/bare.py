"""What a careful person would write by hand with plain torch: FedAvg's round, and v14's step.

No shards, no augmentation, no numbers kept, no checkpoints, no faults: only the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bench import models


class FedAvg:
    """This process's clients, one after another on one model; one all_reduce a round."""

    def __init__(
        self,
        images: Tensor,  # [M, 3, 32, 32] float, normalised; this process's
        labels: Tensor,  # [M]
        clients: int,  # of this process, of equal size
        batch_size: int,
        lr: float,
        share: float = 1.0,  # of all samples, that are this process's
        channels_last: bool = False,
    ) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model = models.plain().to(memory_format=layout)
        self.images, self.labels = images.to(memory_format=layout), labels
        self.parts = torch.arange(len(labels)).chunk(clients)
        self.batch_size, self.lr, self.share = batch_size, lr, share
        self.weights = [p.detach().clone() for p in self.model.parameters()]
        if dist.is_initialized():
            for weight in self.weights:
                dist.broadcast(weight, 0)

    @torch.no_grad()
    def round(self) -> None:
        """One local epoch of each client, then the mean weighted by samples."""
        total = [torch.zeros_like(weight) for weight in self.weights]
        for part in self.parts:
            self.train(part)
            share = self.share * len(part) / len(self.labels)
            for mine, value in zip(total, self.model.parameters(), strict=True):
                mine.add_(value, alpha=share)
        flat = torch.cat([value.flatten() for value in total])
        if dist.is_initialized():
            dist.all_reduce(flat)
        sizes = [value.numel() for value in total]
        for weight, value in zip(self.weights, flat.split(sizes), strict=True):
            weight.copy_(value.view(weight.shape))

    @torch.enable_grad()
    def train(self, part: Tensor) -> None:
        """One epoch of a client from the average."""
        for value, weight in zip(self.model.parameters(), self.weights, strict=True):
            value.data.copy_(weight)
        optimiser = torch.optim.SGD(self.model.parameters(), self.lr, momentum=0.9)
        for rows in part[torch.randperm(len(part))].split(self.batch_size):
            loss = F.cross_entropy(self.model(self.images[rows]), self.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def v14_losses(features: Tensor, prototypes: Tensor, anchors: Tensor, y: Tensor) -> list[Tensor]:
    """The four base losses and the alignment loss of unit features [R, D] with labels [R]."""
    logits, own = features @ prototypes.T, torch.eye(len(y), dtype=torch.bool, device=y.device)
    similarity = (features @ features.T / 0.07).masked_fill(own, -1e9)
    log_p = similarity.log_softmax(1)
    positive = (y[:, None] == y) & ~own
    per_anchor = -(log_p * positive).sum(1) / positive.sum(1).clamp(min=1)
    everyone = torch.arange(len(prototypes), device=y.device)
    present = torch.zeros(len(prototypes), device=y.device, dtype=features.dtype)
    present = present.index_fill(0, y, 1.0)
    distance = (prototypes - anchors).square().mean(1)
    return [
        F.cross_entropy(logits, y),
        per_anchor.mean(),
        F.cross_entropy(logits / 1.0, y),
        F.cross_entropy(prototypes @ prototypes.T, everyone),
        (distance * present).sum() / present.sum(),
    ]


def sigma_loss(
    base: Tensor, align: Tensor, log_var: Tensor, s: float, gamma: float = 1e-5, limit: float = 50.0
) -> Tensor:
    """Of two log-variances [2], with the losses held; s(p) on the second's log term."""
    local, other = log_var
    fit = torch.exp(-local) * base.detach() + torch.exp(-other) * align.detach()
    guard = gamma * F.relu(torch.exp(local - other) - limit)
    return 0.5 * fit + 0.5 * (local + s * other) + guard


class V14:
    """One client's steps. learned: lambda's log-variances move too, as in v14; else it is held."""

    def __init__(
        self,
        model: nn.Module,  # images to features; its `prototypes` are a parameter
        anchors: Tensor,
        batches: Sequence[tuple[Tensor, Tensor]],  # views [V, B, ...] and labels [B]
        *,
        learned: bool,
        channels_last: bool,
        lr: float = 0.05,
        first: float = 10.0,
    ) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model, self.anchors = model.to(memory_format=layout), anchors
        self.log_var = torch.tensor([math.log(first), 0.0], device=anchors.device)
        self.learned, self.batches = learned, []
        for images, labels in batches:
            flat = images.flatten(0, 1).contiguous(memory_format=layout)
            self.batches.append((flat, labels.repeat(len(images))))
        groups = [{"params": list(model.parameters()), "lr": lr}]
        if learned:
            self.log_var.requires_grad_()
            groups.append({"params": [self.log_var], "lr": 0.005})
        self.optimiser = torch.optim.SGD(groups, momentum=0.9)

    def moved(self) -> Iterator[Tensor]:
        """All that is clipped together."""
        for group in self.optimiser.param_groups:
            yield from group["params"]

    def steps(self, count: int) -> None:
        """So many steps over the batches."""
        for step in range(count):
            self.step(*self.batches[step % len(self.batches)])

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Views, losses, backward, clip, SGD."""
        features = F.normalize(self.model(images), dim=1)
        prototypes = self.model.get_parameter("prototypes")
        *base, align = v14_losses(features, prototypes, self.anchors, labels)
        whole = torch.stack(base).sum()
        lam = torch.exp(self.log_var[0] - self.log_var[1]).detach()
        loss = whole + lam * align
        if self.learned:
            loss = loss + sigma_loss(whole, align, self.log_var, 0.9)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(list(self.moved()), 1.0)
        self.optimiser.step()
