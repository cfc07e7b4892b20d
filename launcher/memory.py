"""Memory that ranks may use: of the machine, of a container or job, and of the device."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch

from launcher.world import World

CGROUP = Path("/sys/fs/cgroup")


def memory_limit() -> int:
    """Bytes: the least of the machine's memory and the limits of this process's cgroups."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = [line.split(":", 2)[2].lstrip("/") for line in lines]
    places = [CGROUP / "memory.max", CGROUP / "memory/memory.limit_in_bytes"]
    places += [CGROUP / path / "memory.max" for path in own]
    places += [CGROUP / "memory" / path / "memory.limit_in_bytes" for path in own]
    said = [place.read_text().strip() for place in places if place.is_file()]
    return min([total, *(int(text) for text in said if text.isdigit())])


def free_host_memory(world: World) -> int:
    """Bytes that this rank may still take of the machine: its share of what is free, or of a
    smaller limit."""
    return min(psutil.virtual_memory().available, memory_limit()) // world.place.local_size


def free_memory(world: World) -> int:
    """Bytes that this rank may still take on its device."""
    if world.device.type == "cuda":
        return torch.cuda.mem_get_info(world.device)[0]
    return free_host_memory(world)
