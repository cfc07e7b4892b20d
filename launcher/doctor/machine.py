"""Looks at one process and its machine: packages, devices, and what the system allows it."""

from __future__ import annotations

import importlib
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from launcher.doctor.check import Check, size
from launcher.memory import memory_limit

PYTHON = (3, 11)
NEEDED = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "pydantic",
    "safetensors",
    "webdataset",
    "filelock",
    "prometheus_client",
)
ALSO = ("deepspeed", "accelerate", "tokenizers")  # some configurations need them
SHM = Path("/dev/shm")
SHM_SPACE = 512 * 2**20  # bytes: containers have 64 MiB unless told, and NCCL dies of that
RANK_MEMORY = 2**29  # bytes: torch alone takes most of it


def packages() -> Iterator[Check]:
    """Python, and what fedcore imports; some that only some runs need are just looked up."""
    enough = tuple(map(int, platform.python_version_tuple()[:2])) >= PYTHON
    yield Check("python", enough, platform.python_version(), "Python 3.11 or later")
    there = []
    for name in NEEDED:
        try:
            importlib.import_module(name)  # torchvision of another torch is there and fails here
            there.append(f"{name} {metadata.version(name)}")
        except Exception as error:
            yield Check(name, False, str(error).splitlines()[0], f"pip install {name}")
    for name in ALSO:
        try:
            there.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            way_out = f"pip install {name}, for the configurations that use it"
            yield Check(name, False, "not installed", way_out, needed=False)
    yield Check("packages", True, ", ".join(there))


def imports() -> Iterator[Check]:
    """fedcore itself, with all that a run imports."""
    importlib.import_module("fedcore.federation")
    importlib.import_module("launcher.build")
    yield Check("fedcore", True, metadata.version("fedcore"))


def devices(own: int | None = None) -> Iterator[Check]:
    """The GPUs of this node, as torch sees them. own: the one this rank uses; None = all."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # a GPU that torch does not see is a fault; to have none is no fault
    hidden = not count and visible is None and Path("/dev/nvidia0").exists()
    names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
    found = f"{count} x {names}" if count else "none"
    if hidden:
        found = f"a GPU that torch (CUDA {torch.version.cuda}) cannot use"
    if visible is not None:
        found += f" (CUDA_VISIBLE_DEVICES={visible!r})"
    way_out = "a driver for this torch" if hidden else "nothing: runs use the CPU"
    yield Check("CUDA devices", count > 0, found, way_out, needed=hidden)
    if count:  # only its own, since to ask takes memory there, for each rank
        gpus = range(count) if own is None else [own]
        yield device_memory({gpu: torch.cuda.mem_get_info(gpu) for gpu in gpus})


def device_memory(gpus: Mapping[int, tuple[int, int]]) -> Check:
    """Whether the GPUs are empty, by free and total bytes of each: what others use is missing."""
    used = {gpu: total - free for gpu, (free, total) in gpus.items()}
    taken = [f"{gpu}: {size(used[gpu])}" for gpu in used if used[gpu] > 0.1 * gpus[gpu][1]]
    each = max(total for _, total in gpus.values())
    found = f"in use: {', '.join(taken)}" if taken else f"{size(each)} each, free"
    return Check("device memory", not taken, found, "nvidia-smi names the processes", needed=False)


def driver() -> Iterator[Check]:
    """Driver and uncorrected memory errors of this node; only nvidia-smi knows the second."""
    query = "--query-gpu=index,driver_version,ecc.errors.uncorrected.volatile.total"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        yield Check("driver", False, "nvidia-smi does not answer", "looking at dmesg", needed=False)
        return
    yield from driver_of(out)


def driver_of(out: str) -> Iterator[Check]:
    """What nvidia-smi's lines `index, driver, errors` say; errors is `[N/A]` without ECC."""
    rows = [[word.strip() for word in line.split(",")] for line in out.splitlines() if line]
    yield Check("driver", True, ", ".join(sorted({driver for _, driver, _ in rows})))
    faulty = [f"{gpu} ({errors})" for gpu, _, errors in rows if errors.strip("0").isdigit()]
    found = f"uncorrected errors on GPU {', '.join(faulty)}" if faulty else "no uncorrected errors"
    yield Check("ECC", not faulty, found, "a reset of the GPU, or another node")


def open_files(world_size: int) -> Iterator[Check]:
    """Whether every rank can be connected with every other, as gloo does, with files beside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = max(1024, 512 + 4 * world_size)
    enough = soft == resource.RLIM_INFINITY or soft >= want
    found = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    yield Check("open files", enough, found, f"ulimit -n {want} (this system allows {hard})")


def shared_memory(local_size: int) -> Iterator[Check]:
    """/dev/shm, through which NCCL's ranks of one node talk."""
    if not SHM.is_dir():
        yield Check("/dev/shm", False, "not there", "mounting a tmpfs on it", needed=local_size > 1)
        return
    free = shutil.disk_usage(SHM).free
    way_out = "--shm-size=1g (docker), an emptyDir of medium Memory (Kubernetes)"
    yield Check("/dev/shm", free >= SHM_SPACE, f"{size(free)} free", way_out, needed=local_size > 1)


def memory(local_size: int) -> Iterator[Check]:
    """Memory that the ranks of this node may use: the machine's, or what a container is given."""
    limit = memory_limit()
    each = limit / local_size
    way_out = f"a larger limit, or fewer ranks on a node: {size(RANK_MEMORY)} each at least"
    found = f"{size(limit)} for {local_size} rank{'s' * (local_size > 1)}"
    yield Check("memory", each >= RANK_MEMORY, found, way_out)
