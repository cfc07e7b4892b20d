"""Who holds what, as a picture: the heat map of clients and classes, or bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_shards.manifest import Manifest
from data_shards.text.manifest import TokenManifest
from fedcore.errors import ConfigError
from fedcore.telemetry.history import Array
from fedcore.telemetry.plots import BLUE, GREEN, frame, plain_text, save
from launcher.report.draw import WIDE, heat, whole_numbers
from launcher.shard_tables import label_counts, sizes_of_text
from launcher.words import count, shortened

if TYPE_CHECKING:  # loaded on use: it takes half a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDERED = 60  # clients up to which they stand by id; more are sorted
WRITTEN = (20, 20)  # clients and classes up to which the counts are written into the cells
ABREAST = 120  # characters, in all, of class names that have room beside each other
ROWS = 500  # of a heat map: of more clients, neighbours in the order share one
SAID = {  # in the title, of the settings
    "alpha": "α =",
    "labels_per_client": "labels per client:",
    "min_samples": "each ≥",
    "skew": "skew by",
    "validation": "validation",
}


def plot(manifest: Manifest | TokenManifest, out: Path) -> Path:
    """Draw a folder of shards into `out`, a .png, .svg or .pdf."""
    if manifest.kind == "tokens":
        figure = text_bars(sizes_of_text(manifest)[:, :2], title(manifest))
    else:
        figure = class_map(label_counts(manifest), title(manifest), manifest.class_names)
    try:
        return save(figure, out)
    except (OSError, ValueError) as error:
        want = f"a place for a .png, .svg or .pdf ({error})"
        raise ConfigError("--png", str(out), want, "clients.png") from None


def title(manifest: Manifest | TokenManifest) -> str:
    """Source, partition, how uneven it is and for how many clients."""
    made = manifest.made_with
    name = made.get("name", made.get("partition"))
    said = [
        f"{words} {made[key]}" for key, words in SAID.items() if made.get(key, "none") != "none"
    ]
    words = [*([str(name)] if name else []), *said, count(len(manifest.clients), "client")]
    return plain_text(f"{manifest.source}: {', '.join(words)}")


# -- images


def class_map(counts: Array, title: str, names: Sequence[str] | None = None) -> Figure:
    """The heat map of the samples of each client and class. counts: [N, C]; names: [C]."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    many, classes = counts.shape
    rows, each = shared_rows(in_order(counts))
    high = float(np.clip(0.9 + 0.22 * many, 2.2, 6.0))
    figure = Figure(figsize=(WIDE, high), dpi=110, layout="constrained")
    axes = figure.subplots()
    top = max(float(rows.max(initial=0)), 1.0)
    look: dict[str, Any] = {"cmap": "Blues", "norm": PowerNorm(0.5, 0, top)}
    small = many <= WRITTEN[0] and classes <= WRITTEN[1]
    image = heat(axes, np.where(rows > 0, rows, np.nan), ".0f" if small else None, **look)
    _ticks(axes, many, classes, title)
    if classes <= WRITTEN[1]:
        _name(axes, names or [str(label) for label in range(classes)])
    unit = "samples" if each == 1 else f"samples, mean of {each} clients"
    figure.colorbar(image, ax=axes, label=unit, pad=0.01, aspect=30, format="{x:,g}")
    return figure


def in_order(counts: Array) -> Array:
    """Few clients as they are; many by their main class, and those without samples last."""
    if len(counts) <= ORDERED:
        return counts
    most = counts.max(1)
    main = np.where(most > 0, counts.argmax(1), counts.shape[1])
    return np.asarray(counts[np.lexsort((-most, main))])


def shared_rows(counts: Array) -> tuple[Array, int]:
    """At most `ROWS` rows, each the mean of so many clients; fewer in the last."""
    each = -(-len(counts) // ROWS) or 1
    starts = np.arange(0, len(counts), each)
    sizes = np.diff(np.append(starts, len(counts)))
    return np.add.reduceat(counts, starts) / sizes[:, None], each


def _ticks(axes: Axes, many: int, classes: int, title: str) -> None:
    frame(axes, title)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("class", fontsize=9)
    axes.set_ylabel("client" if many <= ORDERED else f"{many:,} clients, sorted", fontsize=9)
    whole_numbers(axes)
    if many <= ORDERED:
        axes.set_yticks(range(0, many, 1 if many <= 24 else 5))
    else:
        axes.set_yticks([])


def _name(axes: Axes, names: Sequence[str]) -> None:
    """Write the classes below their columns, long names of many classes at a slant."""
    texts = [plain_text(shortened(name)) for name in names]
    axes.set_xticks(range(len(texts)), texts)
    if len(texts) * max(map(len, texts)) > ABREAST:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")


# -- text


def text_bars(sizes: Array, title: str) -> Figure:
    """Documents and tokens of each client; of many, the largest first in each. sizes: [N, 2]."""
    from matplotlib.figure import Figure  # no pyplot: it keeps state and may want a display

    many = len(sizes)
    if many > ORDERED:
        sizes = -np.sort(-sizes, axis=0)
    figure = Figure(figsize=(WIDE, 5), dpi=110, layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    colours, units = (BLUE, GREEN), ("documents", "tokens")
    for axes, values, colour, unit in zip(panels, sizes.T, colours, units, strict=True):
        _bars(axes, values, colour)
        frame(axes, title if unit == "documents" else "")
        axes.set_ylabel(unit)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    whole_numbers(panels[1])
    panels[1].set_xlabel("client" if many <= ORDERED else f"{many:,} clients, the largest first")
    return figure


def _bars(axes: Axes, values: Array, colour: str) -> None:
    at = np.arange(len(values))
    if len(values) <= ORDERED:
        axes.bar(at, values, color=colour)
    else:  # thousands of bars would take seconds
        axes.stairs(values, np.arange(len(values) + 1) - 0.5, fill=True, color=colour)
