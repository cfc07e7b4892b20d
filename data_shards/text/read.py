"""Token shards to sequences: `TokenStream` is the `TokenData` of one training stream.

Memory: 2 bytes a token (4 above 65,536 ids) of the stream's own text and of the held-out text, in
each process; 8 bytes a window for the order of an epoch. Only batches are int64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from data_shards.folder import Folder
from data_shards.manifest import WAY_OUT
from data_shards.raw import reading
from data_shards.tars import check, read_tars
from data_shards.text.manifest import DTYPES, TokenManifest, TokenPart
from fedcore.errors import ShardError
from fedcore.seeds import generator

Order = Literal["shuffled", "random", "ordered"]


def read_tokens(folder: Folder, part: TokenPart, dtype: Literal["uint16", "uint32"]) -> Tensor:
    """All documents of a part, each with its end: uint16 or int32 [tokens], in corpus order."""
    samples = read_tars(folder, part.shards)  # checked, before there is room for what they claim
    flat = np.empty(part.tokens, dtype=np.uint16 if dtype == "uint16" else np.int32)
    filled, documents, file = 0, 0, f"{folder}/{part.shards[0].file}"
    for sample in samples:
        documents, file = documents + 1, sample["__url__"]
        with reading(file, WAY_OUT):
            ids = np.frombuffer(sample[DTYPES[dtype]], dtype=np.dtype(dtype).newbyteorder("<"))
            flat[filled : filled + len(ids)] = ids[: len(flat) - filled]
            filled += len(ids)
    if (documents, filled) != (part.documents, part.tokens):
        problem = f"{filled} tokens in {documents} documents, want {part.tokens} in"
        raise ShardError(file, f"{problem} {part.documents}", WAY_OUT)
    return torch.from_numpy(flat)


def windows(tokens: Tensor, context: int) -> Tensor:
    """Every sequence of T + 1 tokens, as a view: [tokens - T, T + 1]."""
    return tokens.unfold(0, context + 1, 1)


def get_batch(
    tokens: Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(x, y) int64 [batch, T]: windows drawn uniformly with replacement; y is x one token later."""
    starts = torch.randint(len(tokens) - context, (batch,), generator=generator)
    drawn = windows(tokens, context)[starts].long()
    return drawn[:, :-1], drawn[:, 1:]


class TokenStream:
    """`TokenData` of one client (client 0 of a run that is not federated).

    - `shuffled`: the text is a ring of n tokens, cut into n // T windows from a random token on,
      in random order, anew each epoch: each token is predicted once an epoch, but for n mod T of
      them, others each time. A batch may hold the end of one epoch and the start of the next.
    - `ordered`: the same windows from the first token on, in the order of the text, each epoch.
    - `random`: `get_batch`, drawn anew each step.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: TokenManifest,
        client: int = 0,
        *,
        context: int,
        order: Order,
        seed: int,
    ) -> None:
        self.context, self.order, self.seed, self.client = context, order, seed, client
        part = manifest.clients[client]
        _long_enough(folder, f"client {client}", part, context)
        _long_enough(folder, "held-out text", manifest.held_out, context)
        check(folder, manifest.vocabulary.file)
        self.vocab_size, self.tokens = manifest.vocab_size, part.tokens
        self.bytes_per_token = manifest.bytes_per_token
        text = _known(folder, part, read_tokens(folder, part, manifest.dtype), self.vocab_size)
        ring = torch.cat([text, text[:context]])  # a window near the end goes on at the beginning
        self._text, self._ring = ring[: part.tokens], windows(ring, context)
        self._held_out = _read_once(folder, manifest.held_out, manifest.dtype, self.vocab_size)
        self._epochs: dict[int, tuple[Tensor, int]] = {}

    @property
    def windows_per_epoch(self) -> int:
        """Sequences of one pass through the text: n // T for n tokens."""
        return self.tokens // self.context

    def batch(self, step: int, size: int, rows: range) -> Tensor:
        """Rows `rows` of step `step`'s batch of `size` sequences: int64 [len(rows), T + 1]."""
        if self.order == "random":
            return self._drawn(step, size)[rows.start : rows.stop : rows.step]
        first = step * size
        numbers = torch.arange(first + rows.start, first + rows.stop, rows.step)
        epochs, places = numbers // self.windows_per_epoch, numbers % self.windows_per_epoch
        starts = torch.empty_like(numbers)
        for epoch in sorted(set(epochs.tolist())):
            order, phase = self._epoch(epoch)
            here = epochs == epoch
            starts[here] = (phase + order[places[here]] * self.context) % self.tokens
        return self._ring[starts].long()

    def held_out(self) -> Tensor:
        """All held-out text in order: int64 [windows, T + 1]; a window's last token is the first
        of the next. The last tokens, fewer than T, that fill no window are left out."""
        return self._held_out.unfold(0, self.context + 1, self.context).long()

    def _drawn(self, step: int, size: int) -> Tensor:
        draws = generator(self.seed, self.client, step, "windows")
        x, y = get_batch(self._text, size, self.context, draws)
        return torch.cat([x, y[:, -1:]], dim=1)

    def _epoch(self, epoch: int) -> tuple[Tensor, int]:
        """(order of the windows [W], first token of window 0); the two newest epochs are kept."""
        if epoch not in self._epochs:
            while len(self._epochs) > 1:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = self._new_epoch(epoch)
        return self._epochs[epoch]

    def _new_epoch(self, epoch: int) -> tuple[Tensor, int]:
        if self.order == "ordered":
            return torch.arange(self.windows_per_epoch), 0
        draws = generator(self.seed, self.client, epoch, "windows")
        phase = int(torch.randint(self.tokens, (), generator=draws))
        return torch.randperm(self.windows_per_epoch, generator=draws), phase


@lru_cache(maxsize=1)
def _read_once(
    folder: Folder, part: TokenPart, dtype: Literal["uint16", "uint32"], vocab_size: int
) -> Tensor:
    """Held-out text, which all clients of a process share."""
    return _known(folder, part, read_tokens(folder, part, dtype), vocab_size)


def _known(folder: Folder, part: TokenPart, text: Tensor, vocab_size: int) -> Tensor:
    """The text, all of whose ids are of the vocabulary: a model has no row for another."""
    least, most = int(text.numpy().min()), int(text.numpy().max())
    if least < 0 or most >= vocab_size:
        problem = f"a token {most if least >= 0 else least} of {vocab_size}"
        raise ShardError(f"{folder}/{part.shards[0].file}", problem, WAY_OUT)
    return text


def _long_enough(folder: Folder, name: str, part: TokenPart, context: int) -> None:
    if part.tokens <= context:
        problem = f"{name} has {part.tokens} tokens, and a window of this context {context + 1}"
        way_out = (
            f"a smaller lm.model.context, more text, or another lm.data.held_out; {WAY_OUT} anew"
        )
        raise ShardError(str(folder), problem, way_out)
