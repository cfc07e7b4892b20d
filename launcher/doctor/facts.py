"""What each rank is, and whether the ranks are alike: mixed versions are a common fault."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fedcore
from fedcore.config import RunConfig
from fedcore.server.comm import LocalComm
from launcher.doctor.check import Check
from launcher.doctor.roll import ranks_in_words
from launcher.rundir import environment
from launcher.world import Place, World

Facts = Mapping[str, Any]

SAME = {
    "python": "one Python on all nodes",
    "packages": "one virtual environment or image on all nodes",
    "fedcore": "one fedcore on all nodes",
    "commit": "one checkout on all nodes",
    "code": "one checkout or image on all nodes: the files differ",
    "config": "one configuration file on all nodes",
    "device": "GPUs on all nodes, or device=cpu",
}


def facts(place: Place, device: torch.device, config: RunConfig) -> dict[str, Any]:
    """This rank: versions, place, and what it may use."""
    world = World(place, device, LocalComm())
    told = environment(world)
    packages = " ".join(f"{name} {version}" for name, version in told["packages"].items())
    return {
        **{key: told[key] for key in ("python", "fedcore", "commit", "node")},
        "packages": packages,
        "code": code_sha256()[:12],
        "config": hashlib.sha256(config.dump().encode()).hexdigest()[:12],
        "cores": sorted(os.sched_getaffinity(0)),
        "device": device.type,
        "gpu": _gpu(device),
    }


def _gpu(device: torch.device) -> str:
    """The GPU's own number; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def code_sha256() -> str:
    """Over the sources of the three packages: an image has no commit, and a version lasts long."""
    top = Path(fedcore.__file__).parent.parent
    digest = hashlib.sha256()
    for package in ("data_shards", "fedcore", "launcher"):
        for file in sorted((top / package).rglob("*.py")):
            digest.update(str(file.relative_to(top)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def alike(everyone: Sequence[Facts], threads: int) -> Iterator[Check]:
    """Findings about all ranks, by rank 0. threads: CPU threads of a rank."""
    if len(everyone) > 1:
        yield from _same(everyone)
        yield _own_cards(everyone)
    yield cores(everyone, threads)


def _same(everyone: Sequence[Facts]) -> Iterator[Check]:
    differ = [key for key in SAME if len({str(f[key]) for f in everyone}) > 1]
    for key in differ:
        yield Check(f"same {key}", False, by_value(everyone, key), SAME[key])
    if not differ:
        one = everyone[0]
        found = f"fedcore {one['fedcore']}, commit {one['commit']}, code {one['code']}"
        yield Check("ranks alike", True, found)


def by_value(everyone: Sequence[Facts], key: str) -> str:
    """`rank 0: 2.9.0; ranks 1-3 (n2): 2.14.1`, most ranks last."""
    ranks = defaultdict(list)
    for rank, one in enumerate(everyone):
        ranks[str(one[key])].append(rank)
    words = []
    for value, has in sorted(ranks.items(), key=lambda item: len(item[1])):
        nodes = sorted({everyone[rank]["node"] for rank in has})
        words.append(f"{ranks_in_words(has)} ({', '.join(nodes[:3])}): {value}")
    return "; ".join(words)


def _own_cards(everyone: Sequence[Facts]) -> Check:
    """Whether each rank has a GPU of its own."""
    ranks = defaultdict(list)
    for rank, one in enumerate(everyone):
        if one["gpu"]:
            ranks[one["gpu"]].append(rank)
    twice = [ranks_in_words(has) for has in ranks.values() if len(has) > 1]
    found = "; ".join(f"{words} use one GPU" for words in twice)
    way_out = "CUDA_VISIBLE_DEVICES with all GPUs of the node, for all its ranks"
    return Check("own device", not twice, found or "each rank has its own", way_out)


def cores(everyone: Sequence[Facts], threads: int) -> Check:
    """Whether the ranks of each node have the cores that their threads want."""
    short = []
    for node in sorted({one["node"] for one in everyone}):
        here = [one for one in everyone if one["node"] == node]
        has = len({core for one in here for core in one["cores"]})
        fewest = min(len(one["cores"]) for one in here)
        if has < threads * len(here) or fewest < threads:
            short.append(f"{node}: {len(here)} ranks x {threads} threads on {has} cores")
    has = len(everyone[0]["cores"])
    found = "; ".join(short) or f"{has} for a rank of {threads} thread{'s' * (threads > 1)}"
    way_out = "fewer ranks or threads, or --cpus-per-task; slower else"
    return Check("CPU cores", not short, found, way_out, needed=False)
