"""Memory that ranks may use: of the machine, of a container or job, and of the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # and the heavy ones where they are used: the doctor comes where they are missing
    from launcher.world import World

CGROUP = Path("/sys/fs/cgroup")


def memory_limit() -> int:
    """Bytes: the least of the machine's memory and the limits of the cgroups of this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in _groups())])


def _groups() -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each cgroup with a limit that holds this process, or one of these.

    A job's limit stands above the group in which its process is. used: without files that the
    system may forget.
    """
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {Path(line.split(":", 2)[2].lstrip("/")) for line in lines}
    for path in own.union(*(each.parents for each in own)):
        for folder, limit, used in (
            (CGROUP / path, "memory.max", "memory.current"),
            (CGROUP / "memory" / path, "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            if (most := _number(folder / limit)) is not None:
                yield most, (_number(folder / used) or 0) - _forgettable(folder)


def _number(file: Path) -> int | None:
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None


def _forgettable(folder: Path) -> int:
    file = folder / "memory.stat"
    lines = file.read_text().splitlines() if file.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def free_host_memory(world: World) -> int:
    """Bytes that this rank may still take of the machine: its share of what is free, also of what
    a limit leaves."""
    import psutil

    left = [max(0, limit - used) for limit, used in _groups()]
    return min([psutil.virtual_memory().available, *left]) // world.place.local_size


def free_memory(world: World) -> int:
    """Bytes that this rank may still take on its device."""
    import torch

    if world.device.type == "cuda":
        return torch.cuda.mem_get_info(world.device)[0]
    return free_host_memory(world)
