"""A real all_reduce between the ranks: is its result right, and how fast is it?

The only module of the doctor that imports torch.distributed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from fedcore.errors import CollectiveError
from launcher.doctor.check import Check, size
from launcher.world import Place, connect, join_group  # a run's own way of meeting

SMALL = 256  # bytes: what is measured is the way, not the load
TIMES = 20  # of the small one
LARGE_TIMES = 5

WAYS_OUT = {
    "gloo": "GLOO_SOCKET_IFNAME=<interface>, or this host's name in /etc/hosts; no firewall "
    "between the nodes",
    "nccl": "NCCL_DEBUG=INFO says why; NCCL_SOCKET_IFNAME=<interface>, NCCL_IB_DISABLE=1 to try",
}


def meeting_place(place: Place, timeout: float) -> Store:
    """A new connection to the store of this world; of a world of one, a store in memory."""
    return connect(place, timeout) if place.size > 1 else HashStore()


def join(place: Place, device: torch.device, store: Store, timeout: float) -> Iterator[Check]:
    """Make the group a run would make; one finding."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        join_group(place, device, store, timeout)
        yield Check(backend, True, "the ranks met")
    except CollectiveError as error:
        yield Check(backend, False, str(error), WAYS_OUT[backend])


def leave() -> None:
    """End the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def all_reduces(device: torch.device, count: int, timeout: float, backend: str) -> Iterator[Check]:
    """Findings about one backend: right, latency, bandwidth. Every rank calls it.

    count: bytes of the large one. Says nothing if the ranks have not met.
    """
    if not dist.is_initialized():
        return
    group = _group(backend, timeout)
    on = device if backend == "nccl" else torch.device("cpu")

    def reduce(values: Tensor) -> None:
        dist.all_reduce(values, group=group)

    def slowest(seconds: float) -> float:
        said = torch.tensor([seconds], dtype=torch.float64, device=on)
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=group)
        return said.item()

    rank, ranks = dist.get_rank(), dist.get_world_size()
    name = f"all_reduce {backend}"
    try:
        right, small = timed(reduce, SMALL, TIMES, rank, ranks, on)
        large_right, large = timed(reduce, count, LARGE_TIMES, rank, ranks, on)
        small, large = slowest(small), slowest(large)
    except RuntimeError as error:
        yield Check(name, False, str(error).splitlines()[0][:300], WAYS_OUT[backend])
        return
    if not (right and large_right):
        yield Check(name, False, "the sum is wrong", "another node: this one computes wrongly")
    elif rank == 0:
        yield speed(name, ranks, count, small, large)


def _group(backend: str, timeout: float) -> dist.ProcessGroup | None:
    """All ranks, over that backend; None = the group they are in already."""
    if dist.get_backend() == backend:
        return None
    made = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout))
    assert isinstance(made, dist.ProcessGroup), "this rank is one of all ranks"
    return made


def timed(
    reduce: Callable[[Tensor], None],
    count: int,
    times: int,
    rank: int,
    ranks: int,
    device: torch.device,
) -> tuple[bool, float]:
    """Whether every sum was exact, and the median seconds of one, over `count` bytes of float32."""
    # whole numbers, small enough that float32 adds them exactly
    pattern = torch.arange(count // 4, device=device, dtype=torch.float32) % 31
    mine = pattern * (rank % 7 + 1)
    want = pattern * sum(r % 7 + 1 for r in range(ranks))
    right, seconds = True, []
    for _ in range(times + 1):  # the first one opens connections
        values = mine.clone()
        _wait_for(device)
        began = time.perf_counter()
        reduce(values)
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
        right &= torch.equal(values, want)
    return right, statistics.median(seconds[1:])


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed(name: str, ranks: int, count: int, small: float, large: float) -> Check:
    """The finding of rank 0; the names are nccl-tests'.

    Algorithm bandwidth: bytes of the tensor over time. Bus bandwidth: that times 2(n-1)/n, what a
    link carries in a ring, to be held against the hardware's.
    """
    figures = {"latency_seconds": small, "seconds": large, "bytes": float(count)}
    if ranks == 1:
        return Check(name, True, "right, with this rank alone", figures=figures)
    algorithm = count / large
    bus = algorithm * 2 * (ranks - 1) / ranks
    figures |= {"algorithm_bytes_per_second": algorithm, "bus_bytes_per_second": bus}
    found = (
        f"right on {ranks} ranks; {size(SMALL)} in {small * 1e6:.0f} us; {size(count)} in "
        f"{large * 1e3:.3g} ms: algorithm bandwidth {algorithm / 1e9:.3g} GB/s, "
        f"bus bandwidth {bus / 1e9:.3g} GB/s"
    )
    return Check(name, True, found, figures=figures)
