"""The world of ranks: joining and leaving it, the device of this rank, signals and heartbeats."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from fedcore.config import RunConfig
from fedcore.errors import CollectiveError, ConfigError
from fedcore.server.comm import Comm, LocalComm, TorchComm

BEAT = 1.0  # seconds between signs of life


@dataclass(frozen=True)
class Place:
    """Where this process stands among the others."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = ""  # of the rendezvous store
    port: int = 0
    attempt: int = 0  # restarts of this world so far
    hosted: bool = False  # torchrun's agent serves the store

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Place:
        """From torchrun's variables, else a Slurm step's, else a single process."""
        if "RANK" in env:
            return cls(
                int(env["RANK"]),
                int(env["WORLD_SIZE"]),
                int(env.get("LOCAL_RANK", 0)),
                int(env.get("LOCAL_WORLD_SIZE", 1)),
                env["MASTER_ADDR"],
                int(env["MASTER_PORT"]),
                int(env.get("TORCHELASTIC_RESTART_COUNT", 0)),
                env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            )
        # set inside a step (srun) only: a plain command in a batch script is one process
        if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
            return cls._of_slurm(env)
        return cls()

    def as_torchrun(self) -> dict[str, str]:
        """torchrun's variables: DeepSpeed and accelerate look nowhere else, and the second of them
        would train each rank alone without a word."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }

    @classmethod
    def _of_slurm(cls, env: Mapping[str, str]) -> Place:
        port = int(env.get("MASTER_PORT", 20000 + int(env["SLURM_JOB_ID"]) % 20000))
        local = env["SLURM_STEP_TASKS_PER_NODE"].split(",")[0].split("(")[0]
        return cls(
            int(env["SLURM_PROCID"]),
            int(env["SLURM_STEP_NUM_TASKS"]),
            int(env["SLURM_LOCALID"]),
            int(local),
            env.get("MASTER_ADDR") or _first_slurm_host(env["SLURM_STEP_NODELIST"]),
            port,
            int(env.get("SLURM_RESTART_COUNT", 0)),
        )


def _first_slurm_host(nodes: str) -> str:
    """Address of the first node of a step, as Slurm itself reaches it: names need not resolve."""
    first = _scontrol("hostnames", nodes).split()[0]
    fields = dict(w.split("=", 1) for w in _scontrol("node", first).split() if "=" in w)
    return fields.get("NodeAddr", first)


def _scontrol(*words: str) -> str:
    command = ["scontrol", "show", *words]
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        # a guess such as localhost would make every node its own world
        raise ConfigError("MASTER_ADDR", None, "the first node's address", "exporting it") from None
    return out.stdout


@dataclass
class World:
    """This rank in a joined world."""

    place: Place
    device: torch.device
    comm: Comm
    # as Slurm calls it, which need not be a name that resolves
    node: str = field(
        default_factory=lambda: os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    )
    stop_requested: bool = False
    watch: Watch | None = None

    def stopping(self) -> bool:
        """Whether this rank was asked to stop at the next round."""
        return self.stop_requested

    def meet(self, name: str, patience: float) -> bool:
        """Whether all ranks come to the point of that name within so many seconds.

        Asks the store, not a collective: some ranks may still be waiting in another one.
        """
        if self.watch is None:
            return True
        keys = [f"met/{name}/{rank}" for rank in range(self.place.size)]
        until = time.monotonic() + patience
        try:
            self.watch.store.set(keys[self.place.rank], "here")
            while not (all_here := self.watch.store.check(keys)) and time.monotonic() < until:
                time.sleep(0.1)
        except (RuntimeError, OSError):
            return False
        return bool(all_here)

    def leave(self, together: bool) -> None:
        """Say goodbye; `together` = all ranks come to this point, so wait for them."""
        if together:
            with contextlib.suppress(CollectiveError):
                self.comm.barrier()
        if self.watch:
            self.watch.end()
        if dist.is_initialized() and together:
            dist.destroy_process_group()


def join(config: RunConfig, on_lost: Callable[[CollectiveError], None]) -> World:
    """Join the world that the environment describes; one device per rank.

    on_lost is called in a background thread when another rank gives no sign of life, and should
    end the process. Raises `ConfigError` for a device there is none of, `CollectiveError` if the
    other ranks do not come.
    """
    place = Place.of(os.environ)
    torch.set_num_threads(config.threads)
    device = pick_device(config.device, place)
    if config.lm and config.lm.engine != "plain":
        os.environ.update(place.as_torchrun())
    if place.size == 1:
        if config.lm and config.lm.engine != "plain":  # these libraries want a group of one, too
            _join_group(place, device, HashStore(), config.server.timeout)
        world = World(place, device, LocalComm(device))
    else:
        store = _connect(place, config.server.timeout)
        _join_group(place, device, store, config.server.timeout)
        watch = Watch(
            place, _connect(place, config.server.timeout), config.server.heartbeat, on_lost
        )
        world = World(place, device, TorchComm(device), watch=watch)
    _listen(world)
    return world


def pick_device(wanted: str, place: Place) -> torch.device:
    """This rank's own device."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device", wanted, "a CUDA device, and there is none", "device=cpu")
    found = torch.cuda.device_count()
    if place.local_size > found:
        way_out = f"--nproc_per_node={found}, or device=cpu"
        raise ConfigError(
            "--nproc_per_node",
            place.local_size,
            f"one device per rank, and there are {found}",
            way_out,
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.deterministic = True  # the same run twice gives the same numbers
    torch.backends.cudnn.benchmark = False
    return device


def _connect(place: Place, timeout: float) -> Store:
    """The rendezvous store, in a room of its own for each attempt.

    After a restart torchrun's store still holds the addresses of the dead ranks; without the
    prefix every rank would try to reach those.
    """
    serves = not place.hosted and place.rank == 0
    wait = timedelta(seconds=timeout)
    try:
        store = TCPStore(place.address, place.port, None, serves, wait, multi_tenant=True)
    except (RuntimeError, OSError) as error:
        raise CollectiveError("rendezvous", place.rank, str(error).splitlines()[0]) from error
    return PrefixStore(f"attempt{place.attempt}", store)


def _join_group(place: Place, device: torch.device, store: Store, timeout: float) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=timeout),
            device_id=device if device.type == "cuda" else None,
        )
    except RuntimeError as error:
        raise CollectiveError("joining", place.rank, str(error).splitlines()[0]) from error


def _listen(world: World) -> None:
    """SIGTERM, SIGUSR1 and Ctrl-C ask for a stop at the next round; a second Ctrl-C is obeyed."""

    def asked(number: int, frame: object) -> None:
        if number == signal.SIGINT and world.stop_requested:
            raise KeyboardInterrupt
        world.stop_requested = True

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, asked)


class Watch:
    """Signs of life through the store, so that a dead or frozen rank ends the others soon.

    Each rank beats for itself and watches the next rank only; what one finds it posts for all.
    A rank waiting in a collective would else learn of a frozen peer after the collective's timeout.
    """

    def __init__(
        self,
        place: Place,
        store: Store,
        patience: float,
        on_lost: Callable[[CollectiveError], None],
    ) -> None:
        self.place, self.store, self.patience, self.on_lost = place, store, patience, on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: the ranks part on purpose."""
        self._over.set()
        self._thread.join(timeout=2 * BEAT)

    def _run(self) -> None:
        beats, seen = 0, ""
        since = woke = time.monotonic()
        neighbour = (self.place.rank + 1) % self.place.size
        while not self._over.wait(BEAT):
            slept, woke = time.monotonic() - woke, time.monotonic()
            if slept > 3 * BEAT:  # this process itself was suspended: judge nobody by it
                since = woke
            try:
                beats += 1
                self.store.set(f"beat{self.place.rank}", str(beats))
                if self.store.check(["lost"]):
                    return self._lost(self.store.get("lost").decode())
                now = self._beat_of(neighbour)
            except (RuntimeError, OSError):
                if self._over.is_set():
                    return None
                return self._lost("the rendezvous store is gone: its node or rank 0 was lost")
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self.patience:
                words = f"rank {neighbour} gave no sign of life for {self.patience:g} s"
                with contextlib.suppress(RuntimeError, OSError):  # the store may be gone as well
                    self.store.set("lost", words)
                return self._lost(words)
        return None

    def _beat_of(self, rank: int) -> str:
        key = f"beat{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _lost(self, words: str) -> None:
        if not self._over.is_set():
            self.on_lost(CollectiveError("heartbeat", self.place.rank, words))
