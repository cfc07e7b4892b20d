"""Does an exported model give the labels that its run reported, and can nobody mistake it?"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from data_shards.manifest import Manifest
from data_shards.resident import read_part
from fedcore import export
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from fedcore.exported import Exported
from launcher.cli import Request, load_config
from launcher.commands import app
from launcher.exporting import Exporter
from launcher.job import Job
from launcher.prepare import store_dir
from launcher.rundir import RunDir
from tests.lm_toy import built, config_of

pytestmark = pytest.mark.broad

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.S)
QUIET = ["metrics.enabled=false", "metrics.targets=null"]


def trained(folder: Path, *changes: str) -> Path:
    """The directory of a small run that is over; of its clients two take part in a round."""
    settings = [*QUIET, f"data.store={folder / 'store'}", "rounds=2", "clients.per_round=2"]
    config = load_config("smoke", [*settings, *changes])
    run = folder / "run"
    assert Job(Request(config, "smoke", run, "never"))() == 0
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("exported"))


def exported(run: Path, out: Path, *words: str) -> Path:
    done = CliRunner().invoke(app, ["checkpoint", "export", str(run), *words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def of_the_test_split(run: Path) -> tuple[torch.Tensor, torch.Tensor]:
    store = store_dir(RunConfig.load(run / "config.yaml"))
    manifest = Manifest.load(store)
    return read_part(store, manifest, manifest.test)


def read_as_documented(run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the lines of docs/export.md leave behind, run on the test set."""
    for what in ("averaged", "ensemble"):
        exported(run, folder / f"{what}.safetensors", "--what", what)
    monkeypatch.chdir(folder)
    images, labels = of_the_test_split(run)
    names: dict[str, Any] = {"images": images, "labels": labels}
    exec(BLOCKS[0], names)
    return names


@pytest.mark.parametrize("algorithm", ["v14", "otfusion", "fedavg"])
def test_the_documented_lines_give_the_accuracy_that_the_run_reported(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, f"algorithm.name={algorithm}")
    found = read_as_documented(run, tmp_path, monkeypatch)
    said = json.loads((run / "summary.json").read_text())["accuracy"]
    wanted = {"averaged": "averaged", "ensemble": "feature_ensemble"}
    for mine, readout in wanted.items():
        assert int((found[mine] == found["labels"]).sum()) / len(found["labels"]) == said[readout]
    assert said["averaged"] != said["feature_ensemble"], "else one would do for the other"
    assert float(found["accuracy"]) == pytest.approx(said["feature_ensemble"])
    facts, tensors = export.read(tmp_path / "ensemble.safetensors")
    assert facts["clients"] == sorted(set(facts["clients"]))
    assert float(tensors["weights"].sum()) == pytest.approx(1)


def labels_in(path: Path) -> list[str] | None:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["fedcore"])["labels"]


def test_folders_of_images_name_the_labels_of_the_exported_model(tmp_path: Path) -> None:
    for name, grey in (("dog", 200), ("cat", 40)):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(20):
            picture = Image.new("L", (8, 8), grey + i)
            picture.save(tmp_path / "own" / name / f"{i}.png")
    own = ["data.source=image_folder", f"data.root={tmp_path / 'own'}"]
    own += [f"data.store={tmp_path / 'store'}", "data.alpha=10"]
    made = CliRunner().invoke(app, ["shards", "make", "smoke", *(f"--set={x}" for x in own)])
    assert made.exit_code == 0, made.output
    run = trained(tmp_path, *own)
    assert labels_in(exported(run, tmp_path / "a.safetensors")) == ["cat", "dog"]
    assert RunDir(run).read_class_names(2) == ["cat", "dog"]
    without_names(store_dir(RunConfig.load(run / "config.yaml")))
    assert labels_in(exported(run, tmp_path / "b.safetensors")) is None


def without_names(store: Path) -> None:
    """The manifest as it was written before it had the names."""
    said = json.loads((store / "manifest.json").read_text())
    assert said.pop("class_names")
    (store / "manifest.json").write_text(json.dumps(said))


def test_labels_of_a_dataset_with_fixed_names_need_no_shards(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = RunConfig.load(run / "config.yaml").model_dump_json()
    config = config.replace(str(run.parent / "store"), str(tmp_path / "none"))
    (tmp_path / "run" / "config.yaml").write_text(config)
    wanted = list("0123456789")
    assert labels_in(exported(run, tmp_path / "a.safetensors")) == wanted
    exporter = Exporter(tmp_path / "run" / "checkpoints" / "round_00002")
    assert exporter._manifest is None
    assert exporter.labels() == wanted


def test_prototypes_are_those_of_the_server(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "p.safetensors", "--what", "prototypes")
    with safe_open(out, framework="pt") as file:
        (name,), facts = file.keys(), json.loads(file.metadata()["fedcore"])
        kept = Checkpoint(run / "checkpoints" / "round_00002").shared("server")["prototypes"]
        assert torch.equal(file.get_tensor(name), kept)
    assert facts["model"] == {
        "name": "small_cnn",
        "shape": [1, 8, 8],
        "classes": 10,
        "feature_dim": 64,
    }
    assert facts["rounds"] == 2
    assert facts["checkpoint"] == "round_00002"
    assert out.stat().st_mode & 0o777 == 0o600


def test_onnx_agrees_with_torch_for_any_number_of_images(run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from fedcore.export_onnx import Network

    out = exported(run, tmp_path / "a.onnx", "--format", "onnx")
    with safe_open(exported(run, tmp_path / "a.safetensors"), framework="pt") as file:
        facts = json.loads(file.metadata()["fedcore"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    network, session = Network(tensors, facts).eval(), onnxruntime.InferenceSession(str(out))
    assert json.loads(session.get_modelmeta().custom_metadata_map["fedcore"]) == facts
    images, _ = of_the_test_split(run)
    for count in (1, 2, 77):
        with torch.no_grad():
            wanted = network(images[:count])
        found = session.run(None, {"images": images[:count].numpy()})
        for mine, theirs in zip(wanted, found, strict=True):
            assert np.abs(mine.numpy() - theirs).max() < 1e-5
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_onnx_without_its_packages_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcore.export_onnx.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["checkpoint", "export", str(run), "--format", "onnx"])
    assert done.exit_code == 2
    assert "pip install 'fedcore[export]'" in done.output


def test_a_language_model_is_sent_to_its_own_command(tmp_path: Path) -> None:
    built(config_of(tmp_path), tmp_path)[0].run()
    for words in (["verify"], ["show"]):
        done = CliRunner().invoke(app, ["checkpoint", *words, str(tmp_path / "run")])
        assert done.exit_code == 0, done.output
        assert "step_00000012" in done.output
    one = str(tmp_path / "run" / "checkpoints" / "step_00000012")
    done = CliRunner().invoke(app, ["checkpoint", "show", one])
    assert "token_embeddings.weight" in done.output.replace("\n", "")
    done = CliRunner().invoke(app, ["checkpoint", "export", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "fedcore lm export" in done.output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["export", "{run}", "--what", "avereged"], 2, "Try averaged"),
        (["export", "{run}", "--format", "onxx"], 2, "Try onnx"),
        (["export", "{run}", "--format", "onnx", "--what", "ensemble"], 2, "averaged"),
        (["export", "{empty}"], 2, "run directory"),
        (["export", "{moved}"], 2, "config.yaml"),
        (["export", "{run}", "--out", "{file}/x"], 2, "cannot write"),
        (["export", "{bestless}", "--best"], 2, "best"),
        (["verify", "{empty}"], 2, "run directory with checkpoints"),
        (["show", "{empty}"], 2, "run directory with checkpoints"),
    ],
)
def test_a_mistake_is_told(
    words: list[str], code: int, told: str, run: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "a" / "b" / "c"
    shutil.copytree(run / "checkpoints" / "round_00002", moved)
    shutil.copytree(run, tmp_path / "bestless")
    (tmp_path / "bestless" / "checkpoints" / "best").unlink()
    (tmp_path / "none").mkdir()
    (tmp_path / "file").touch()
    names = ("bestless", "file")
    places = {"run": run, "empty": tmp_path / "none", "moved": moved}
    places |= {name: tmp_path / name for name in names}
    done = CliRunner().invoke(app, ["checkpoint", *(w.format(**places) for w in words)])
    assert done.exit_code == code, done.output
    assert told in done.output


def test_every_damaged_file_is_named_and_the_code_is_3(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "round_00002"
    server, clients = newest / "server-00000.safetensors", newest / "clients-00000.safetensors"
    server.write_bytes(server.read_bytes()[:-1] + b"\0")
    clients.unlink()
    for place in (tmp_path / "run", newest):
        done = CliRunner().invoke(app, ["checkpoint", "verify", str(place)])
        assert done.exit_code == 3
        said = done.output.replace("\n", "")
        assert "server-00000.safetensors: does not match its sha256" in said
        assert "clients-00000.safetensors: missing" in said
        assert "2 bad of" in said
    wide = CliRunner(env={"COLUMNS": "120"})
    done = wide.invoke(app, ["checkpoint", "show", str(tmp_path / "run")])
    scores = [
        f"{Checkpoint(folder).facts['score']:.4f}"
        for folder in sorted((tmp_path / "run" / "checkpoints").glob("round_*"))
    ]
    assert [line.split("  4  ")[1].split() for line in done.output.splitlines()[1:]] == [
        [scores[0], "good"],
        [scores[1], "bad", "latest", "best"],
    ]
    assert CliRunner().invoke(app, ["checkpoint", "show", str(newest)]).exit_code == 3
    assert CliRunner().invoke(app, ["checkpoint", "export", str(newest)]).exit_code == 3
    (newest / "index.json").write_text("{")
    done = CliRunner().invoke(app, ["checkpoint", "verify", str(tmp_path / "run")])
    assert done.exit_code == 3
    assert "index.json" in done.output


def test_of_a_run_with_a_damaged_newest_checkpoint_the_one_before_is_exported(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "round_00002" / "server-00000.safetensors").write_bytes(b"")
    out = exported(tmp_path / "run", tmp_path / "x.safetensors")
    with safe_open(out, framework="pt") as file:
        assert json.loads(file.metadata()["fedcore"])["checkpoint"] == "round_00001"
    (tmp_path / "run" / "checkpoints" / "best").write_text("round_00001")
    assert exported(tmp_path / "run", tmp_path / "best.safetensors", "--best").is_file()


def test_a_run_in_fp64_is_read_out_in_fp64(tmp_path: Path) -> None:
    run = trained(tmp_path, "precision=fp64", "rounds=1")
    images, labels = of_the_test_split(run)
    said = json.loads((run / "summary.json").read_text())["accuracy"]
    for what, readout in (("averaged", "averaged"), ("ensemble", "feature_ensemble")):
        model = Exported.load(exported(run, tmp_path / f"{what}.safetensors", "--what", what))
        assert model.features(images).dtype == torch.float64
        assert float((model.predict(images) == labels).double().mean()) == said[readout]


def test_images_of_another_type_or_shape_are_refused(run: Path, tmp_path: Path) -> None:
    model = Exported.load(exported(run, tmp_path / "a.safetensors", "--what", "averaged"))
    images, _ = of_the_test_split(run)
    for wrong in (images.float() / 255, images[0], images.repeat(1, 3, 1, 1)):
        with pytest.raises(ConfigError, match="not divided by 255"):
            model.predict(wrong)


def test_a_file_without_models_is_refused(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "p.safetensors", "--what", "prototypes")
    with pytest.raises(ShardError, match="holds prototypes"):
        Exported.load(out)
    save_file({"prototypes": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(ShardError, match="says nothing about itself"):
        Exported.load(tmp_path / "other.safetensors")
