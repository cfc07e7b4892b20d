"""What `fedcore shards show` prints: who holds what, and how uneven it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table

from data_shards.manifest import ClientPart, Manifest, Part, Shard
from data_shards.text.manifest import TokenManifest, TokenPart
from fedcore.objective.weighting import label_entropy
from fedcore.telemetry.history import Array
from launcher.words import count, ranges, shortened

WIDE = 20  # classes above which a row says how many are held and not how many of each
Form = Callable[[float], str]


@dataclass(frozen=True)
class Columns:
    """Titles and forms of the numbers of a client; `numbers` of all clients [N, columns]."""

    titles: Sequence[str]
    forms: Sequence[Form]
    numbers: Array
    rest: Sequence[float]  # of what is not trained on

    def row(self, values: Iterable[float]) -> list[str]:
        """The cells of a row."""
        return [form(value) for form, value in zip(self.forms, values, strict=True)]


def table(manifest: Manifest | TokenManifest, most: int = 0) -> Table:
    """A row for each of the first `most` clients (0 = all), what all span, and what is held out."""
    columns = _of_tokens(manifest) if manifest.kind == "tokens" else _of_images(manifest)
    many = len(manifest.clients)
    shown = min(most or many, many)
    found = Table("client", *columns.titles, box=SIMPLE, padding=0, pad_edge=False)
    for column in found.columns[1:]:
        column.justify = "right"
    for client, values in enumerate(columns.numbers[:shown]):
        found.add_row(str(client), *columns.row(values))
    if shown < many:
        found.add_row("⋮")
    found.add_section()
    if many > 1:
        for name, of_all in (("min", np.min), ("median", np.median), ("max", np.max)):
            found.add_row(name, *columns.row(of_all(columns.numbers, axis=0)))
        found.add_section()
    found.add_row("held out" if manifest.kind == "tokens" else "test", *columns.row(columns.rest))
    return found


def remarks(manifest: Manifest | TokenManifest, most: int = 0) -> list[str]:
    """The lines below the table of shards: what it leaves out, and what is unusual."""
    many = len(manifest.clients)
    hidden = many - min(most or many, many)
    lines = [f"{count(hidden, 'more client')}: --clients 0 shows all"] if hidden else []
    return lines + (_on_tokens(manifest) if manifest.kind == "tokens" else _on_images(manifest))


# -- images


def label_counts(manifest: Manifest) -> Array:
    """Samples of each client and class [N, C]."""
    held = [part.label_counts for part in manifest.clients]
    return np.array(held, dtype=np.float64).reshape(len(held), manifest.classes)


def effective_classes(counts: Array) -> Array:
    """Of each client [..., C] the exponential of its label entropy: C if all are held equally."""
    return np.asarray(2 ** label_entropy(torch.from_numpy(counts)))


def distances(counts: Array) -> Array:
    """Total variation between the labels of each client [N, C] and those of all: 0...1."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    whole = counts.sum(0) / max(counts.sum(), 1)
    return np.asarray(np.abs(share - whole).sum(1) / 2)


def _of_images(manifest: Manifest) -> Columns:
    wide = manifest.classes > WIDE
    titles = ["held", "effective"] if wide else [str(c) for c in range(manifest.classes)]
    forms = [_whole, "{:.1f}".format] if wide else [_or_dot] * manifest.classes
    of_labels = _spread if wide else np.atleast_2d
    counts = of_labels(label_counts(manifest))
    named = ["samples", *(["validation"] if _aside(manifest) else []), "kB"]
    sizes = np.array([_size(part, named) for part in manifest.clients]).reshape(-1, len(named))
    test = of_labels(np.array([manifest.test.label_counts], float))[0]
    numbers = np.concatenate([sizes, counts], axis=1)
    forms = [*[_whole] * len(named), *forms]
    return Columns([*named, *titles], forms, numbers, [*_size(manifest.test, named), *test])


def _aside(manifest: Manifest) -> bool:
    """Whether samples were set aside for validation."""
    return any(part.validation for part in manifest.clients)


def _spread(counts: Array) -> Array:
    """Classes held, and how many that is in effect [N, 2]; none for a client without samples."""
    held = (counts > 0).sum(1)
    return np.stack([held, np.where(held, effective_classes(counts), 0.0)], axis=1)


def _size(part: Part, named: Sequence[str]) -> list[float]:
    """Samples, those set aside for validation, and kB of both: as many as are named."""
    aside = part.validation if isinstance(part, ClientPart) else None
    shards = (*part.shards, *(aside.shards if aside else ()))
    found = {
        "samples": part.samples,
        "validation": aside.samples if aside else 0,
        "kB": _kilobytes(shards),
    }
    return [found[name] for name in named]


def _names(manifest: Manifest) -> str:
    """What the columns are called, if they are and there is one for each class: 0 cat, 1 dog."""
    names = manifest.class_names or ()
    numbers = [str(label) for label in range(len(names))]
    if len(names) > WIDE or list(names) == numbers:
        return ""
    return ", ".join(f"{n} {shortened(name, 40)}" for n, name in zip(numbers, names, strict=True))


def _on_images(manifest: Manifest) -> list[str]:
    counts = label_counts(manifest)
    sizes = counts.sum(1)
    empty, some = np.flatnonzero(sizes == 0).tolist(), counts[sizes > 0]
    without = f"without samples: {ranges(empty)}" if empty else "none without samples"
    samples = count(int(sizes.sum()), "training sample")
    lines = [f"classes: {named}"] if (named := _names(manifest)) else []
    lines.append(f"{count(len(counts), 'client')}, {without}; {samples}")
    if len(some):
        effective, apart = effective_classes(some).mean(), distances(some).mean()
        lines.append(
            f"mean over clients: {effective:.2f} of {manifest.classes} classes (exp of the label "
            f"entropy), total variation from the whole {apart:.2f}"
        )
    return lines


# -- tokens


def sizes_of_text(manifest: TokenManifest) -> Array:
    """Documents, tokens, bytes of text and kB of shards of each client [N, 4]."""
    return np.array([_text(part) for part in manifest.clients], dtype=np.float64)


def _of_tokens(manifest: TokenManifest) -> Columns:
    titles = ("documents", "tokens", "bytes of text", "kB")
    return Columns(titles, [_whole] * 4, sizes_of_text(manifest), _text(manifest.held_out))


def _text(part: TokenPart) -> tuple[float, ...]:
    return part.documents, part.tokens, part.bytes, _kilobytes(part.shards)


def _on_tokens(manifest: TokenManifest) -> list[str]:
    words, sizes = manifest.vocabulary, sizes_of_text(manifest).sum(0)
    documents, tokens = count(int(sizes[0]), "document"), count(int(sizes[1]), "token")
    clients = count(len(manifest.clients), "client")
    return [
        f"{clients}; {documents}, {tokens} to train on",
        f"{words.kind}: a vocabulary of {words.size:,}, stored as {manifest.dtype}",
    ]


# -- numbers


def _kilobytes(files: Sequence[Shard]) -> float:
    return sum(file.bytes for file in files) / 1000


def _whole(value: float) -> str:
    return f"{round(value):,}"


def _or_dot(value: float) -> str:
    """A count, a median perhaps; a dot stands for none."""
    return f"{value:,.1f}".removesuffix(".0") if value else "·"
