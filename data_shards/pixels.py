"""uint8 images to network input: views of each, normalised, in the layout the network wants."""

from __future__ import annotations

import torch
from torch import Tensor

from data_shards import augment as views_of
from data_shards.manifest import Manifest

CHUNK = 2**20  # numbers of images that a CPU works on at a time: they stay in its cache


class Pixels:
    """(x/255 - mean)/std per channel, of images or of drawn views of them.

    channels_last: channels lie innermost in memory. Shapes and values are the same.
    """

    def __init__(
        self,
        manifest: Manifest,
        device: torch.device,
        dtype: torch.dtype,
        *,
        channels_last: bool = False,
        augment: bool = False,
    ) -> None:
        self.dtype, self.kind, self.shape = dtype, manifest.kind, manifest.shape
        self.channels_last = channels_last
        channels, height, width = manifest.shape
        # colour is changed in planes; what is never changed lies from the start as it is to lie
        self.innermost = channels_last and not augment
        self.stored = (height, width, channels) if self.innermost else manifest.shape
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (manifest.mean, manifest.std))
        top = 1 if augment else 255
        self._scale, self._shift = (
            self._per_channel(x).to(device) for x in (1 / (top * std), -mean / std)
        )

    def _per_channel(self, values: Tensor) -> Tensor:
        """As stored images are; channels that lie innermost are repeated for each pixel, since
        loops over three numbers are slow."""
        values = values.to(self.dtype)[:, None, None]
        if not self.innermost:
            return values
        return values.expand(self.shape).permute(1, 2, 0).contiguous()

    def plain(self, images: Tensor) -> Tensor:
        """Stored images [R, *stored] as they are: [R, channels, height, width]."""
        rows = self._at_a_time(images)
        if len(images) <= rows:
            found = self._normalise(images.to(self.dtype))
        else:
            found = torch.empty(images.shape, dtype=self.dtype, device=images.device)
            for place, some in zip(*(torch.split(x, rows) for x in (found, images)), strict=True):
                self._normalise(place.copy_(some))
        return found.permute(0, 3, 1, 2) if self.innermost else found

    def _normalise(self, images: Tensor) -> Tensor:
        """In their place."""
        return images.mul_(self._scale).add_(self._shift)

    def _at_a_time(self, images: Tensor) -> int:
        """Rows that go through all operations before the next do."""
        return len(images) if images.is_cuda else max(1, CHUNK // images[0].numel())

    def views(self, images: Tensor, number: int, parameters: Tensor | None) -> Tensor:
        """Views [K, V, B, channels, height, width] of stored images [K, B, *stored].

        parameters: of each view, [K*V*B, 11] on the device; None: all are plain.
        """
        k, b, *stored = images.shape
        flat = images.view(-1, *stored)
        if number > 1:  # views of an image are changed on their own
            flat = images[:, None].expand(k, number, b, *stored).reshape(-1, *stored)
        found = self.plain(flat) if parameters is None else self._drawn(flat, parameters)
        return found.view(k, number, b, *self.shape)

    def _drawn(self, images: Tensor, parameters: Tensor) -> Tensor:
        """A view of each image, normalised, in the layout."""
        rows = self._at_a_time(images)
        if len(images) <= rows and not self.channels_last:
            return self._some(images, parameters)
        found = self._room(len(images), images.device)
        for place, some, theirs in zip(
            *(torch.split(x, rows) for x in (found, images, parameters)), strict=True
        ):
            place.copy_(self._some(some, theirs))
        return found

    def _some(self, images: Tensor, parameters: Tensor) -> Tensor:
        unit = images.to(self.dtype).div_(255)
        found = views_of.apply(unit, parameters.to(self.dtype), self.kind)
        return self._normalise(found)

    def _room(self, rows: int, device: torch.device) -> Tensor:
        channels, height, width = self.shape
        if not self.channels_last:
            return torch.empty(rows, *self.shape, dtype=self.dtype, device=device)
        return torch.empty(rows, height, width, channels, dtype=self.dtype, device=device).permute(
            0, 3, 1, 2
        )
