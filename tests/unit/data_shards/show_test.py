"""Does `fedcore shards show` say, and draw, who holds what?"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from data_shards.manifest import Manifest
from data_shards.partition import dirichlet
from data_shards.sources import Arrays, Source
from data_shards.text.manifest import TokenManifest
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from launcher import prepare_text
from launcher.commands import app
from launcher.shard_plot import ROWS, class_map, in_order, plot, shared_rows, text_bars, title
from launcher.shard_tables import distances, effective_classes, label_counts

call = CliRunner().invoke


def dealt(parts: list[np.ndarray]) -> list[Dealt]:
    return [Dealt(rows) for rows in parts]


LABELS = np.arange(300) % 3
ARRAYS = Arrays(np.zeros((300, 1, 4, 4), dtype=np.uint8), LABELS)
SOURCE = Source(lambda root, split: ARRAYS, kind="digits", about="a test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 300 samples, 3 classes and 30 clients, of which some hold none."""
    folder = tmp_path_factory.mktemp("shown") / "toy"
    settings = {"name": "dirichlet", "clients": 30, "seed": 0, "alpha": 0.05}
    write(folder, "toy", SOURCE, ARRAYS, ARRAYS, dealt(dirichlet(LABELS, 30, 0.05, 0)), settings)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TokenManifest:
    """Shards of 12 documents for 3 clients."""
    place = tmp_path_factory.mktemp("texts")
    (place / "own").mkdir()
    for n in range(12):
        (place / "own" / f"{n}.txt").write_text("some words " * (n + 1))
    lm = {"data": {"text": str(place / "own")}, "federated": {"clients": 3}}
    store = {"store": str(place / "store")}
    return TokenManifest.load(prepare_text.make(RunConfig.of({"lm": lm, "data": store})))


def rows(output: str) -> dict[str, list[str]]:
    """The cells of a row by its first one."""
    lines = [line.split() for line in output.splitlines() if line.strip()]
    return {cells[0]: cells[1:] for cells in lines}


def test_twenty_clients_are_listed_and_the_others_are_counted(folder: Path) -> None:
    counts = label_counts(Manifest.load(folder))
    shown = call(app, ["shards", "show", str(folder)]).output
    found = rows(shown)
    assert {str(k) for k in range(20)} <= found.keys()
    assert "20" not in found
    assert "10 more clients: --clients 0 shows all" in shown
    held = [str(int(n)) if n else "·" for n in counts[0]]
    assert found["0"][2:] == held
    assert found["0"][0] == str(int(counts[0].sum()))
    assert found["test"][0] == "300"


def test_the_last_rows_span_all_clients(folder: Path) -> None:
    counts = label_counts(Manifest.load(folder))
    found = rows(call(app, ["shards", "show", str(folder)]).output)
    assert found["min"][0] == "0"
    assert found["max"][0] == str(int(counts.sum(1).max()))
    assert found["max"][2:] == [str(int(n)) for n in counts.max(0)]
    assert found["median"][0] == str(round(np.median(counts.sum(1))))


def test_all_clients_are_listed_on_demand(folder: Path) -> None:
    shown = call(app, ["shards", "show", str(folder), "--clients", "0"]).output
    assert {str(k) for k in range(30)} <= rows(shown).keys()
    assert "more client" not in shown


def test_empty_clients_are_named_below_the_table(folder: Path) -> None:
    shown = call(app, ["shards", "show", str(folder)]).output
    empty = np.flatnonzero(label_counts(Manifest.load(folder)).sum(1) == 0)
    words = re.search(r"30 clients, without samples: ([\d, -]+)[; ]", shown)
    assert words
    ends = [list(map(int, part.split("-"))) for part in words[1].split(", ")][:8]
    assert {n for end in ends for n in range(end[0], end[-1] + 1)} <= set(empty.tolist())
    assert "300 training samples" in shown


def test_unevenness_by_hand() -> None:
    counts = np.array([[4, 4, 0, 0], [0, 0, 8, 0], [3, 3, 3, 3]], dtype=float)
    assert effective_classes(counts) == pytest.approx([2, 1, 4])
    # all: 7, 7, 11, 3 of 28
    whole = np.array([7, 7, 11, 3]) / 28
    first = (abs(0.5 - whole[0]) * 2 + whole[2] + whole[3]) / 2
    assert distances(counts)[0] == pytest.approx(first)
    assert distances(np.array([[2.0, 2.0], [5.0, 5.0]])) == pytest.approx([0, 0])
    assert distances(np.eye(4)) == pytest.approx([0.75] * 4)


def test_the_map_shows_the_counts(folder: Path) -> None:
    counts = label_counts(Manifest.load(folder))
    (drawn,) = class_map(counts, "x").axes[0].images
    assert np.array_equal(np.nan_to_num(np.asarray(drawn.get_array())), counts)


def test_the_picture_is_written_whole_and_its_place_is_told(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.png"
    shown = call(app, ["shards", "show", str(folder), "--png", str(out)])
    assert f"drawn: {out}" in shown.output
    assert imread(out).shape[1] > 900
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize("name", ["map.docx", "none/map.png"])
def test_a_picture_that_cannot_be_written(folder: Path, tmp_path: Path, name: str) -> None:
    shown = call(app, ["shards", "show", str(folder), "--png", str(tmp_path / name)])
    assert shown.exit_code == 2
    assert "--png" in shown.output


def test_the_title_says_what_was_dealt(folder: Path, texts: TokenManifest) -> None:
    assert title(Manifest.load(folder)) == "toy: dirichlet, α = 0.05, 30 clients"
    assert title(texts).endswith(": documents, 3 clients")
    made = {"name": "quantity", "alpha": 2.0, "min_samples": 5, "skew": "none", "seed": 3}
    other = SimpleNamespace(source="alphabet$", made_with=made, clients=[0])
    assert title(other) == r"alphabet\$: quantity, α = 2.0, each ≥ 5, 1 client"


def test_many_clients_stand_by_main_class_and_the_empty_last() -> None:
    counts = np.zeros((100, 4))
    held = np.arange(10, 100)
    counts[held, held % 4] = held
    ordered = in_order(counts)
    main = ordered[:90].argmax(1)
    assert (np.diff(main) >= 0).all()
    assert (ordered[90:] == 0).all()
    assert ordered[0].tolist() == [96, 0, 0, 0]
    assert in_order(counts[:20]) is not ordered
    assert np.array_equal(in_order(counts[:20]), counts[:20])


@pytest.mark.parametrize("clients", [1, ROWS, ROWS + 1, 10_000])
def test_rows_that_clients_share_keep_their_mean(clients: int) -> None:
    counts = np.random.default_rng(0).integers(0, 9, (clients, 3)).astype(float)
    drawn, each = shared_rows(counts)
    assert len(drawn) <= ROWS
    assert (each == 1) == (clients <= ROWS)
    sizes = [len(counts[i : i + each]) for i in range(0, clients, each)]
    assert (drawn * np.array(sizes)[:, None]).sum(0) == pytest.approx(counts.sum(0))


def test_bars_are_as_high_as_the_texts(texts: TokenManifest, tmp_path: Path) -> None:
    sizes = np.array([[part.documents, part.tokens] for part in texts.clients], dtype=float)
    for axes, values in zip(text_bars(sizes, "x").axes, sizes.T, strict=True):
        assert [bar.get_height() for bar in axes.patches] == values.tolist()
    assert plot(texts, tmp_path / "bars.svg").read_text().startswith("<?xml")


def test_bars_of_many_texts_go_down() -> None:
    sizes = np.random.default_rng(0).random((300, 2))
    for axes in text_bars(sizes, "x").axes:
        heights = axes.patches[0].get_data().values
        assert len(heights) == 300
        assert (np.diff(heights) <= 0).all()


def test_many_classes_are_summed_up(tmp_path: Path) -> None:
    labels = np.arange(250) % 25
    arrays = Arrays(np.zeros((250, 1, 4, 4), dtype=np.uint8), labels)
    parts = [np.flatnonzero(labels < 5), np.flatnonzero(labels >= 5)]
    write(tmp_path / "wide", "toy", SOURCE, arrays, arrays, dealt(parts), {})
    found = rows(call(app, ["shards", "show", str(tmp_path / "wide")]).output)
    assert found["client"] == ["samples", "kB", "held", "effective"]
    assert found["0"][0] == "50"
    assert found["0"][2:] == ["5", "5.0"]
    assert found["1"][2:] == ["20", "20.0"]


def test_samples_set_aside_have_a_column(tmp_path: Path) -> None:
    parts = [Dealt(np.arange(0, 8), np.arange(8, 11)), Dealt(np.arange(11, 13), None)]
    write(tmp_path / "toy", "toy", SOURCE, ARRAYS, ARRAYS, parts, {})
    call = CliRunner().invoke(app, ["shards", "show", str(tmp_path / "toy")])
    found = [line.split() for line in call.output.splitlines()]
    assert ["client", "samples", "validation", "kB", "0", "1", "2"] in found
    assert [row[:3] for row in found if row[:1] in (["0"], ["1"])] == [
        ["0", "8", "3"],
        ["1", "2", "0"],
    ]
