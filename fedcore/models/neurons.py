"""Which tensor axes belong to the same hidden neurons: what may be reordered without a change.

A group of n neurons is an axis of several tensors. Permuting all of them alike leaves the model's
output as it was; optimal-transport fusion uses that freedom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from fedcore.errors import ConfigError
from fedcore.models.proto_head import ProtoHead

WITHOUT_NEURONS = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)


@dataclass
class NeuronGroup:
    """Tensors that carry the same neurons, by name and axis."""

    by: list[str] = field(default_factory=list)  # tensors that make the neurons, neurons on axis 0
    axes: list[tuple[str, int]] = field(
        default_factory=list
    )  # all that are permuted, `by` included

    def made_by(self, name: str, module: nn.Module) -> None:
        """Add a layer whose outputs are these neurons."""
        own = [f"{name}.{key}" for key, _ in module.named_parameters()]
        self.by += own
        self.axes += [(key, 0) for key in own]
        self.axes += [(f"{name}.{k}", 0) for k, v in module.named_buffers() if v.dim()]

    def used_by(self, name: str) -> None:
        """Add a layer whose inputs are these neurons."""
        self.axes.append((f"{name}.weight", 1))


def neuron_groups(model: ProtoHead) -> list[NeuronGroup]:
    """The groups from input to output: a layer's inputs come before its outputs.

    Knows chains of convolutions, batch norms and linear layers, and ResNets of basic blocks; raises
    `ConfigError` for another model.
    """
    from torchvision.models import ResNet  # on use: importing it takes longer than torch

    groups: list[NeuronGroup] = []
    last: NeuronGroup | None = None  # the neurons that reach this far
    for name, module in _chain("encoder", model.encoder):
        if isinstance(module, ResNet) and last is None:
            last = _add_resnet(name, module, groups)
        elif isinstance(module, nn.Linear) or (
            isinstance(module, nn.Conv2d) and module.groups == 1
        ):
            if last:
                last.used_by(name)
            last = NeuronGroup()
            last.made_by(name, module)
            groups.append(last)
        elif isinstance(module, nn.BatchNorm2d) and last:
            last.made_by(name, module)
        elif not isinstance(module, WITHOUT_NEURONS):
            got = type(module).__name__
            want = "chains of Conv2d, BatchNorm2d and Linear, or a ResNet, to match neurons"
            raise ConfigError("model.name", got, want, "small_cnn, or algorithm.fuse=mean")
    if last:
        last.axes.append(("prototypes", 1))
    return groups


def _chain(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        yield name, module
        return
    for key, child in module.named_children():
        yield from _chain(f"{name}.{key}", child)


def _add_resnet(name: str, network: nn.Module, groups: list[NeuronGroup]) -> NeuronGroup:
    """Per stage one group that its blocks add to, and one group within each block; the last."""
    stream = NeuronGroup()
    stream.made_by(f"{name}.conv1", network.get_submodule("conv1"))
    stream.made_by(f"{name}.bn1", network.get_submodule("bn1"))
    groups.append(stream)
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        for number, block in enumerate(getattr(network, stage)):
            stream = _of_block(f"{name}.{stage}.{number}", block, stream, groups)
    return stream


def _of_block(
    name: str, block: nn.Module, stream: NeuronGroup, groups: list[NeuronGroup]
) -> NeuronGroup:
    """Adds the block's inner group; the stream that leaves the block, a new one where it widens."""
    from torchvision.models.resnet import BasicBlock

    if not isinstance(block, BasicBlock):
        raise ConfigError("model.name", type(block).__name__, "basic blocks", "resnet18")
    inner = NeuronGroup()
    stream.used_by(f"{name}.conv1")
    inner.made_by(f"{name}.conv1", block.conv1)
    inner.made_by(f"{name}.bn1", block.bn1)
    inner.used_by(f"{name}.conv2")
    groups.append(inner)
    leaving = stream
    if block.downsample is not None:
        stream.used_by(f"{name}.downsample.0")
        leaving = NeuronGroup()
        leaving.made_by(f"{name}.downsample.0", block.downsample[0])
        leaving.made_by(f"{name}.downsample.1", block.downsample[1])
        groups.append(leaving)
    known = list(leaving.by)
    leaving.made_by(f"{name}.conv2", block.conv2)
    leaving.made_by(f"{name}.bn2", block.bn2)
    if block.downsample is None:  # later blocks follow the order that the first ones made
        leaving.by = known
    return leaving
