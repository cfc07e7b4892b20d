"""Does a run report what its clients' stored models get right on samples of their own?"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from data_shards.manifest import Manifest
from fedcore.checkpoint import Checkpoint, candidates
from fedcore.config import RunConfig
from launcher import prepare
from launcher.build import build_objects
from launcher.cli import Request, load_config
from launcher.job import Job

NAME = "validation_accuracy"
ASIDE = {0: 3, 1: 5, 2: 6, 3: 17}  # of 12, 18, 21 and 68; client 4 holds none, client 5 one
DEALT = ("clients.count=6", "data.partition=quantity", "data.alpha=0.3", "data.seed=10")
SETTINGS = ("metrics.enabled=false", "metrics.targets=null", *DEALT, "data.source=npz")
SETTINGS += ("rounds=3", "evaluate.every=2", "precision=fp64", "clients.batch_size=8")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 digits to deal out and 30 to test with."""
    digits, folder = load_digits(), tmp_path_factory.mktemp("raw")
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:150, None]
    parts = {"x_train": images[:120], "x_test": images[120:]}
    parts |= {"y_train": digits.target[:120], "y_test": digits.target[120:150]}
    np.savez(folder / "tiny.npz", **parts)
    return folder / "tiny.npz"


def finished(raw: Path, folder: Path, *changes: str) -> Path:
    """The directory of a small run that is over: its second and third rounds are evaluated."""
    places = [f"data.root={raw}", f"data.store={raw.parent / 'store'}"]
    config = load_config("smoke", [*SETTINGS, *places, *changes])
    prepare.make(config)
    run = folder / "run"
    assert Job(Request(config, "smoke", run, "never"))() == 0
    return run


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    said = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in said if record["event"] == kind]


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def plain_hits(run: Path, tensors: dict[str, torch.Tensor], client: int) -> int:
    """Right answers of one model on what stands in a client's validation tars."""
    config = RunConfig.load(run / "config.yaml")
    store = prepare.store_dir(config)
    manifest = Manifest.load(store)
    _, model, _ = build_objects(config, manifest.shape, manifest.classes)
    model.double().load_state_dict(tensors)
    model.eval()
    right = 0
    for file in sorted((store / f"validation_{client:05d}").glob("*.tar")):
        with tarfile.open(file) as tar:
            parts = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        for name in parts:
            if not name.endswith(".json"):
                continue
            pixels = np.frombuffer(parts[name.replace(".json", ".u8")], np.uint8)
            image = pixels.reshape(manifest.shape) / 255
            image = (image - manifest.mean[0]) / manifest.std[0]
            with torch.no_grad():
                scores = model.prototypes @ model(torch.from_numpy(image)[None])[0]
            right += int(scores.argmax()) == json.loads(parts[name])["label"]
    return right


@pytest.mark.parametrize("algorithm", ["v14", "fedavg"])
def test_what_is_reported_is_what_the_stored_models_do(
    algorithm: str, raw: Path, tmp_path: Path
) -> None:
    run = finished(raw, tmp_path, "data.validation=0.25", f"algorithm.name={algorithm}")
    checkpoint = Checkpoint(candidates(run / "checkpoints")[0])
    own = {}
    for client in ASIDE:
        held = {k.partition("/"): v[0] for k, v in checkpoint.own([client]).items()}
        own[client] = {k[2]: v for k, v in held.items() if k[0] in ("params", "buffers")}
    hits = {k: plain_hits(run, tensors, k) for k, tensors in own.items()}
    accuracy, whole = summary(run)["accuracy"], sum(ASIDE.values())
    assert accuracy["validation_local"] == sum(hits.values()) / whole
    said = [(e["round"], e["client"]) for e in lines(run, "client") if NAME in e]
    assert said == [(round, k) for round in (1, 2) for k in ASIDE]
    last = {e["client"]: e[NAME] for e in lines(run, "client") if e["round"] == 2 and NAME in e}
    assert last == {k: hits[k] / n for k, n in ASIDE.items()}
    samples = {e["client"]: e["samples"] for e in lines(run, "client")}
    assert samples == {0: 9, 1: 13, 2: 15, 3: 51, 5: 1}  # that it trains on
    kept = {k.partition("/"): v for k, v in checkpoint.shared("server").items()}
    averaged = {k[2]: v for k, v in kept.items() if k[0] == "weights"}
    assert bool(averaged) == ("validation_averaged" in accuracy)
    if averaged:
        right = sum(plain_hits(run, averaged, k) for k in ASIDE)
        assert accuracy["validation_averaged"] == right / whole


def test_a_rank_that_streams_reports_the_same(raw: Path, tmp_path: Path) -> None:
    held, streamed = (
        finished(
            raw, tmp_path / reading, "data.validation=0.25", f"data.reading={reading}", "rounds=2"
        )
        for reading in ("resident", "streaming")
    )
    assert summary(streamed)["accuracy"] == summary(held)["accuracy"]
    one, other = ([e.get(NAME) for e in lines(run, "client")] for run in (held, streamed))
    assert one == other


def test_without_validation_samples_no_file_says_anything_of_them(
    raw: Path, tmp_path: Path
) -> None:
    run = finished(raw, tmp_path, "rounds=1")
    assert '"accuracy": {"' in (run / "metrics.jsonl").read_text()
    for file in ("metrics.jsonl", "summary.json"):
        assert "validation_" not in (run / file).read_text()
