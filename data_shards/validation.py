"""A client's validation samples: of its own data, evaluated and never trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import torch
from torch import Tensor

from data_shards.folder import Folder
from data_shards.manifest import Manifest
from data_shards.order import Order
from data_shards.pixels import Pixels
from data_shards.resident import Held, Reader, Resident
from data_shards.stream import Streaming


class ValidationSamples:
    """`ValidationData` from shards: of one rank's clients, whose own files are all that is opened.

    streaming: read them when they are asked for, a few tars at a time, instead of holding them on
    the device. The chunks are the same.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        clients: Sequence[int],
        *,
        device: torch.device,
        dtype: torch.dtype,
        streaming: bool = False,
        workers: int = 2,  # threads that read tars
        channels_last: bool = False,  # how images lie in memory
    ) -> None:
        self.samples: Mapping[int, int] = counts(manifest)
        self.pixels = Pixels(manifest, device, dtype, channels_last=channels_last)
        own = {k: manifest.clients[k].validation for k in clients if k in self.samples}
        self._parts = {k: part for k, part in own.items() if part is not None}
        reader = Streaming if streaming else Resident
        self._reader: Reader = reader(
            folder, manifest, self._parts, device, workers, self.pixels.innermost
        )

    def chunks(self, client: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels of that client, in the order of the tars."""
        part = self._parts[client]
        starts = range(0, part.samples, size)
        order = Order(
            torch.arange(part.samples), tuple(starts), tuple(range(len(part.shards)))
        )  # a window for each chunk: no more is held
        with closing(self._reader.epoch([client], [order], min(size, part.samples), 0)) as lane:
            for start, held in zip(starts, lane, strict=True):
                own = Held(*(x[0] for x in held)).between(0, part.samples - start)  # no filling
                yield self.pixels.plain(own.images), own.labels


def counts(manifest: Manifest) -> dict[int, int]:
    """Validation samples of each client that has some."""
    parts = {part.client: part.validation for part in manifest.clients}
    return {k: part.samples for k, part in parts.items() if part is not None and part.samples}
