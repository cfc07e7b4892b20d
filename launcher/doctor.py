"""What this machine has for fedcore: `fedcore doctor`."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    detail: str
    way_out: str = ""
    needed: bool = True  # False: good to have


def checks() -> list[Check]:
    """All checks; one that fails unexpectedly is itself a finding."""
    found: list[Check] = []
    for look in (_packages, _devices, _backends, _disk, _port, _tools):
        try:
            found += look()
        except Exception as error:
            name = look.__name__.strip("_")
            found.append(Check(name, False, f"{type(error).__name__}: {error}", "reinstall"))
    return found


def _packages() -> Iterator[Check]:
    yield Check("python", True, platform.python_version())
    for name in ("torch", "torchvision", "webdataset", "safetensors", "pydantic"):
        yield Check(name, True, metadata.version(name))


def _devices() -> Iterator[Check]:
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    yield Check("CUDA devices", count > 0, names or "none", "runs on the CPU", needed=False)
    yield Check("CPU cores", True, str(os.cpu_count()))


def _backends() -> Iterator[Check]:
    import torch.distributed as dist

    yield Check("gloo", dist.is_gloo_available(), "", "a torch build with gloo")
    yield Check("NCCL", dist.is_nccl_available(), "", "needed on GPUs only", needed=False)


def _disk() -> Iterator[Check]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free / 2**30
    writable = os.access(here, os.W_OK)
    yield Check("working directory", writable, f"{here}", "a directory you may write to")
    yield Check("free disk", free > 1, f"{free:.1f} GiB", "at least 1 GiB")


def _port() -> Iterator[Check]:
    with socket.socket() as probe:
        free = probe.connect_ex(("127.0.0.1", 9400)) != 0
    detail = "free" if free else "in use"
    yield Check("port 9400", free, detail, "the next free port is taken", needed=False)


def _tools() -> Iterator[Check]:
    for name in ("torchrun", "sbatch", "prometheus"):
        path = shutil.which(name)
        yield Check(name, path is not None, path or "not found", "optional", needed=False)
