"""Do imports go down only, and do the heavy libraries stay behind their one door?"""

from __future__ import annotations

import ast
import fnmatch
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = {
    "fedcore.errors": 0,
    "fedcore.config": 0,
    "fedcore.config_text": 0,
    "fedcore.config_words": 0,
    "fedcore.config_yaml": 0,
    "fedcore.config_section": 0,
    "fedcore.config_lm": 0,
    "fedcore.config_data": 0,
    "fedcore.config_algorithm": 0,
    "fedcore.registry": 0,
    "fedcore.settings": 0,
    "fedcore.extensions": 0,
    "fedcore.schedule": 0,
    "fedcore.seeds": 0,
    "fedcore.batch": 0,
    "fedcore.files": 0,
    "fedcore.telemetry.catalogue": 0,
    "fedcore.telemetry.events": 0,
    "fedcore.objective": 1,
    "fedcore.models": 1,
    "data_shards": 1,
    "fedcore.algorithms": 2,
    "fedcore.clients": 2,
    "fedcore.server": 3,
    "fedcore.readouts": 3,
    "fedcore.tally": 3,
    "fedcore.evaluate": 3,
    "fedcore.checkpoint": 3,
    "fedcore.checkpoint_writer": 3,
    "fedcore.round_events": 4,
    "fedcore.saving": 4,
    "fedcore.checkpoint_index": 3,
    "fedcore.export": 3,
    "fedcore.exported": 3,
    "fedcore.export_onnx": 3,
    "fedcore.federation": 4,
    "fedcore.models_of": 4,
    "fedcore.telemetry": 4,
    "fedcore.lm": 4,
    "launcher": 5,
}

# a library, and the only modules that may import it
DOORS = {
    "torch.distributed": {
        "fedcore.server.comm",
        "launcher.agent",
        "launcher.world",
        "launcher.doctor.group",
    },
    "webdataset": {"data_shards.tars", "data_shards.tar_writer", "data_shards.stream"},
    "fsspec": {"data_shards.transport"},
    "gcsfs": {"data_shards.transport"},
    "prometheus_client": {"fedcore.telemetry.exporter_main"},
    "safetensors": {
        "fedcore.checkpoint",
        "fedcore.checkpoint_writer",
        "fedcore.export",
        "fedcore.lm.export",
    },
    "pickle": {"data_shards.unpickle"},
    "PIL": {"data_shards.decode"},
    "deepspeed": {"fedcore.lm.engine_deepspeed"},
    "tokenizers": {"data_shards.text.tokenizers"},
    "accelerate": {"fedcore.lm.engine_accelerate", "fedcore.telemetry.tracker_kinds"},
    "wandb": {"fedcore.telemetry.tracker_kinds"},
    "mlflow": {"fedcore.telemetry.tracker_kinds"},
}

# what runs code, or unpickles, or hands a name to a shell, whatever the file or peer it came from
NO_IMPORTS = re.compile(
    r"(_pickle|dill|cloudpickle|joblib|marshal|shelve|multiprocessing|torch\.serialization"
    r"|torch\.multiprocessing|torch\.distributed\.checkpoint)(\.|$)"
)
NO_BUILTINS = {"eval", "exec", "compile", "__import__"}
NO_USES = re.compile(
    r"torch\.(load|save|hub\b.*)|os\.(system|popen)"
    r"|yaml\.(load_all|full_load.*|unsafe_load.*|Loader|FullLoader|UnsafeLoader|load)"
    r"|.*\.(\w+_object|\w+_object_list|extractall|load_state|save_state)"
    r"|(wds|webdataset)\.(WebDataset|WebLoader|SimpleShardList|tarfile_to_samples|gopen.*|decode)"
    r"|\w*engine\.(load_checkpoint|save_checkpoint)|self\._?deepspeed\.(load|save)_checkpoint"
)


@functools.cache
def modules() -> dict[str, Path]:
    files = [
        f for top in ("fedcore", "data_shards", "launcher") for f in (ROOT / top).rglob("*.py")
    ]
    names = {f: ".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files}
    return {name.removesuffix(".__init__"): file for file, name in names.items()}


@functools.cache
def imports(file: Path) -> set[str]:
    """Modules a file imports, those for type checking and inside functions included."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def floor(module: str) -> int | None:
    """The floor of the longest listed prefix; None for what is not ours."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in FLOORS:
            return FLOORS[prefix]
    return None


def test_every_module_stands_in_the_picture_of_floors() -> None:
    """By its own name or its package's, or by a word with a `*`."""
    picture = (ROOT / "docs" / "map.md").read_text().split("```")[1]
    words = set(re.findall(r"[\w*]+", picture))
    alone = {name.split(".")[1] for name in modules() if "." in name} - {"__main__"}
    named = {part for part in alone if any(fnmatch.fnmatch(part, word) for word in words)}
    held = {name.split(".")[1] for name in modules() if name.startswith("data_shards.")}
    assert sorted(alone - named - held) == []


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_down(name: str) -> None:
    own = floor(name)
    if own is None:
        assert name == "fedcore", f"{name} has no floor: give it one in FLOORS"
        return
    for other in imports(modules()[name]):
        below = floor(other)
        if below is not None and not other.startswith(name):
            same_part = other.split(".")[:2] == name.split(".")[:2]
            assert below <= own, f"{name} (floor {own}) imports {other} (floor {below})"
            if name.startswith("data_shards") and not same_part:
                assert below == 0 or other.startswith("data_shards"), f"{name} imports {other}"
            if own == 1 and not name.startswith("data_shards"):
                assert not other.startswith("data_shards"), f"{name} imports {other}"


def first_imports(file: Path) -> set[str]:
    """Modules that a file imports when it is imported."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in inner}
    return found & set(modules())


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: first_imports(file) for name, file in modules().items()}
    graphlib.TopologicalSorter(graph).prepare()  # or CycleError, which names the circle


def test_no_file_is_longer_than_a_reader_likes() -> None:
    long = {name for name, file in modules().items() if file.read_text().count("\n") > 400}
    assert not long, "more than 400 lines: one idea, one home"


@pytest.mark.parametrize("library", sorted(DOORS))
def test_heavy_libraries_stay_behind_their_door(library: str) -> None:
    for name, file in modules().items():
        used = any(i == library or i.startswith(library + ".") for i in imports(file))
        assert not used or name in DOORS[library], f"{name} imports {library}"


def test_fedcore_never_imports_the_data_package() -> None:
    for name, file in modules().items():
        if name.startswith("fedcore"):
            assert not any(i.split(".")[0] in ("data_shards", "launcher") for i in imports(file)), (
                name
            )


def unsafe(file: Path) -> Iterator[str]:
    """Line and text of all that the lists above forbid, also where it is only named."""
    for node in ast.walk(ast.parse(file.read_text())):
        text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else ""
        is_used = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        bad = is_used and text in NO_BUILTINS
        bad = bad or (isinstance(node, ast.Attribute) and bool(NO_USES.fullmatch(text)))
        if isinstance(node, ast.Call):
            name, given = (
                ast.unparse(node.func),
                {k.arg: ast.unparse(k.value) for k in node.keywords},
            )
            bad = given.get("shell", "False") != "False"
            bad = bad or (
                name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False"
            )
        if bad:
            yield f"line {node.lineno}: {text}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_no_file_and_no_peer_can_have_code_run(name: str) -> None:
    file = modules()[name]
    assert not [*unsafe(file)]
    assert not [i for i in imports(file) if NO_IMPORTS.match(i)]


@pytest.mark.parametrize(
    "line",
    [
        *("torch.load(path)", "read = torch.load", "eval(text)", "yaml.load(text, yaml.Loader)"),
        *("dist.all_gather_object(out, x)", "np.load(path)", "np.load(path, allow_pickle=True)"),
        *("subprocess.run(words, shell=True)", "tar.extractall(folder)", "os.system(words)"),
        *("wds.SimpleShardList(paths)", "dist.broadcast_object_list(x)", "import marshal"),
    ],
)
def test_what_is_forbidden_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(line)
    met = [*unsafe(tmp_path / "x.py"), *filter(NO_IMPORTS.match, imports(tmp_path / "x.py"))]
    assert met
