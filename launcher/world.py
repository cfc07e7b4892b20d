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
from concurrent.futures import Future, wait
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
from fedcore.server.pause import Pauses
from launcher.heartbeat import Heartbeat
from launcher.malloc import keep_blocks

TWICE = 2.0  # seconds within which a second Ctrl-C counts as the first
HOSTED = 60.0  # seconds for a store that is there before any rank: if not, its agent is gone


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
    pauses: Pauses = field(default_factory=Pauses)
    heartbeat: Heartbeat | None = None

    def meet(self, name: str, patience: float) -> bool:
        """Whether all ranks come to the point of that name within so many seconds.

        Asks the store, not a collective: some ranks may still be waiting in another one.
        """
        if self.heartbeat is None:
            return True
        keys = [f"met/{name}/{rank}" for rank in range(self.place.size)]
        until = time.monotonic() + patience
        try:
            self.heartbeat.store.set(keys[self.place.rank], "here")
            while not (all_here := self.heartbeat.store.check(keys)) and time.monotonic() < until:
                time.sleep(0.1)
        except (RuntimeError, OSError):
            return False
        return bool(all_here)

    def leave(self, together: bool) -> None:
        """Say goodbye; `together` = all ranks come to this point, so wait for them."""
        if together:
            with contextlib.suppress(CollectiveError):
                self.comm.barrier()
        if self.heartbeat:
            self.heartbeat.end()
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
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.tf32
    keep_blocks()
    if config.lm and config.lm.engine != "plain":
        os.environ.update(place.as_torchrun())
    if place.size == 1:
        if config.lm and config.lm.engine != "plain":  # these libraries want a group of one, too
            join_group(place, device, HashStore(), config.server.timeout)
        world = World(place, device, LocalComm(device))
    else:
        store = connect(place, config.server.timeout)
        join_group(place, device, store, config.server.timeout)
        pauses = Pauses(leads=place.rank == 0, alone=False)
        heartbeat = Heartbeat(
            place.rank,
            place.size,
            connect(place, config.server.timeout),
            config.server.heartbeat,
            pauses,
            on_lost,
        )
        comm = TorchComm(device, config.server.timeout)
        world = World(place, device, comm, pauses=pauses, heartbeat=heartbeat)
    _listen(world)
    return world


def pick_device(wanted: str, place: Place) -> torch.device:
    """The device of this rank: its own GPU, or the CPU. Raises `ConfigError` if there is none."""
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


def connect(place: Place, timeout: float) -> Store:
    """The rendezvous store, in a room of its own for each attempt.

    After a restart torchrun's store still holds the addresses of the dead ranks; without the
    prefix every rank would try to reach those.
    """
    serves = not place.hosted and place.rank == 0
    patience = min(timeout, HOSTED) if place.hosted else timeout

    def open_store() -> Store:
        limit = timedelta(seconds=patience)
        store = TCPStore(place.address, place.port, None, serves, limit, multi_tenant=True)
        store.set_timeout(timedelta(seconds=timeout))  # from here on it is the other ranks' time
        return store

    try:
        store = _answer(open_store, patience + 5)
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        if "EADDRINUSE" in reason:
            want = "a port that no other program has"
            raise ConfigError("MASTER_PORT", place.port, want, "another one") from error
        raise CollectiveError("rendezvous", place.rank, reason) from error
    if store is None:
        silent = f"what has port {place.port} of {place.address} is no store and says nothing"
        raise CollectiveError("rendezvous", place.rank, silent)
    return PrefixStore(f"attempt{place.attempt}", store)


def _answer(act: Callable[[], Store], patience: float) -> Store | None:
    """The store that it connects to; None after so many seconds.

    The store's own limit does not hold while a stranger on its port accepts and never answers.
    """
    over: Future[Store] = Future()

    def work() -> None:
        try:
            over.set_result(act())
        except Exception as error:
            over.set_exception(error)

    threading.Thread(target=work, name="rendezvous", daemon=True).start()
    return over.result() if wait([over], patience).done else None


def join_group(place: Place, device: torch.device, store: Store, timeout: float) -> None:
    """Make the process group: NCCL on CUDA devices, else gloo. timeout: seconds.

    Raises `CollectiveError` if the ranks do not come together.
    """
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
    """SIGTERM, SIGUSR1 and Ctrl-C ask for a stop at the next step; a later Ctrl-C is obeyed."""
    pauses, pressed = world.pauses, 0.0

    def asked(number: int, frame: object) -> None:
        nonlocal pressed
        # one key may arrive twice, from the terminal and from a launcher that passes it on
        if number == signal.SIGINT and pressed and time.monotonic() - pressed > TWICE:
            raise KeyboardInterrupt
        pressed = pressed or time.monotonic()
        pauses.stop_requested = True

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, asked)
