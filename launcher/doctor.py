"""What this machine has for fedcore, each thing tried rather than assumed: `fedcore doctor`."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path

from fedcore.config import RunConfig
from fedcore.errors import FedError

# torch and our own packages are imported by the checks: one that is broken is a finding

PYTHON = (3, 11)
SPACE = 1.0  # GiB that the shards of the small datasets, a run and its checkpoints fit in


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    detail: str
    way_out: str = ""
    needed: bool = True  # False: good to have, fedcore works without it


def checks(folder: Path | None = None, config: RunConfig | None = None) -> list[Check]:
    """All checks; one that fails unexpectedly is itself a finding.

    folder: where runs are started (the working directory). config: whose store and ports to look
    at (the default one's).
    """
    here, config = folder or Path.cwd(), config or RunConfig()
    looks: dict[str, Callable[[], Iterator[Check]]] = {
        "packages": _packages,
        "fedcore": _imports,
        "devices": _devices,
        "gloo": _gloo,
        "working directory": lambda: _disk(here),
        "shards": lambda: _shards(here / config.data.store),
        "ports": lambda: _ports(config.metrics.bind, config.metrics.port),
        "tools": _tools,
    }
    return [check for name, look in looks.items() for check in _tried(name, look)]


def _tried(name: str, look: Callable[[], Iterator[Check]]) -> list[Check]:
    try:
        return list(look())
    except Exception as error:
        return [Check(name, False, f"{type(error).__name__}: {error}", "installing fedcore anew")]


def _packages() -> Iterator[Check]:
    enough = tuple(map(int, platform.python_version_tuple()[:2])) >= PYTHON
    yield Check("python", enough, platform.python_version(), "Python 3.11 or later")
    for name in ("torch", "torchvision", "webdataset", "safetensors", "pydantic"):
        try:
            importlib.import_module(name)  # torchvision of another torch is there and fails here
            yield Check(name, True, metadata.version(name))
        except Exception as error:
            yield Check(name, False, str(error).splitlines()[0], f"pip install {name}")


def _imports() -> Iterator[Check]:
    importlib.import_module("fedcore.federation")
    importlib.import_module("launcher.build")
    yield Check("fedcore", True, metadata.version("fedcore"))


def _devices() -> Iterator[Check]:
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    # a card that torch does not see is a fault; no card is none
    hidden = not count and Path("/dev/nvidia0").exists()
    found = names or (f"a card that torch (CUDA {torch.version.cuda}) cannot use" * hidden)
    way_out = "a driver for this torch" if hidden else "nothing: runs use the CPU"
    yield Check("CUDA devices", count > 0, found or "none", way_out, needed=hidden)
    nccl = dist.is_nccl_available()
    version = torch.cuda.nccl.version() if nccl else ()  # type: ignore[no-untyped-call]
    found = ".".join(map(str, version)) or "none"
    yield Check("NCCL", nccl, found, "a torch built with CUDA", needed=count > 0)
    yield Check("CPU cores", True, str(len(os.sched_getaffinity(0))))


def _gloo() -> Iterator[Check]:
    import torch.distributed as dist

    if not dist.is_gloo_available():
        yield Check("gloo", False, "not in this torch", "another build of torch")
        return
    try:  # a group of one: it must find an interface by the host's name, which is what fails
        store = dist.HashStore()  # type: ignore[attr-defined]
        group = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=10))
        group.barrier().wait()  # type: ignore[attr-defined]
        yield Check("gloo", True, "works")
    except RuntimeError as error:
        way_out = "GLOO_SOCKET_IFNAME=<interface>, or this host's name in /etc/hosts"
        yield Check("gloo", False, str(error).splitlines()[0], way_out)


def _disk(folder: Path) -> Iterator[Check]:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"fedcore")
        problem = ""
    except OSError as error:
        problem = f": {error.strerror}"
    yield Check("working directory", not problem, f"{folder}{problem}", "one that you may write to")
    free = shutil.disk_usage(folder).free / 2**30
    yield Check("free disk", free >= SPACE, f"{free:.1f} GiB", f"at least {SPACE:g} GiB")


def _shards(store: Path) -> Iterator[Check]:
    from data_shards.text.manifest import load_any

    manifests = sorted(store.rglob("manifest.json"))
    if not manifests:
        found = f"none in {store}"
        yield Check("shards", False, found, "nothing: a run makes its own", needed=False)
    for path in manifests:
        try:
            manifest = load_any(path.parent)
            found = f"{manifest.source}, {len(manifest.clients)} clients"
            yield Check(f"shards {path.parent.name}", True, found)
        except FedError as error:
            yield Check(f"shards {path.parent.name}", False, str(error), f"rm -r {path.parent}")


def _ports(host: str, first: int, count: int = 8) -> Iterator[Check]:
    """The metrics ports of one node's first ranks."""
    if not first:
        yield Check("metrics ports", True, "any that is free")
        return
    taken = [str(port) for port in range(first, first + count) if not _free(host, port)]
    found = f"in use: {', '.join(taken)}" if taken else f"{first} to {first + count - 1} are free"
    way_out = "nothing: a rank takes the next free port; or metrics.port=0"
    yield Check("metrics ports", not taken, found, way_out, needed=False)


def _free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _tools() -> Iterator[Check]:
    # beside this Python as well: a virtual environment need not be activated
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ways_out = {
        "torchrun": "python -m torch.distributed.run",
        "sbatch": "nothing, unless you want Slurm",
        "prometheus": "nothing, unless you want dashboards",
    }
    for name, way_out in ways_out.items():
        path = shutil.which(name, path=places)
        yield Check(name, path is not None, path or "not found", way_out, needed=False)
