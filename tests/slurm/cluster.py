"""A real Slurm cluster on this machine for the length of the tests: munged, slurmctld, slurmds.

Needs root and the packages slurm-wlm and munge; no systemd, no cgroups. It touches only what it
started: keys, sockets, logs and pid files lie in a folder of its own, and processes are found by
that folder's name in their environment.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

CPUS = 8  # of a node, as Slurm counts them: it shares out what there may be fewer of
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch")
MARK = "FEDCORE_TEST_NODE"  # in the environment of a node's daemons

CONF = """
ClusterName=tests
FirstJobId={first}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={dir}/slurmctld.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmdLogFile={dir}/slurmd.%n.log
SlurmdSpoolDir={dir}/spool.%n
StateSaveLocation={dir}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
# a second instead of half a minute between two looks at the queue; requeued jobs wait cred_expire
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=15
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
"""


def is_possible() -> bool:
    """Whether this machine can have one."""
    return os.geteuid() == 0 and all(map(_find, NEEDED))


def _find(command: str) -> str | None:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Cluster:
    """Two nodes, n1 and n2, and the partitions `main` and `urgent`, which preempts it."""

    dir: Path  # short: munge's socket lies in it
    nodes: tuple[str, ...] = ("n1", "n2")
    _env: dict[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """slurm.conf; a client finds the cluster by SLURM_CONF."""
        return self.dir / "slurm.conf"

    def up(self) -> None:
        """Start everything; the nodes are idle afterwards."""
        self._env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._write_conf()
        munge = self.dir / "munge"
        munge.mkdir()
        munge.chmod(0o755)
        key = self.dir / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key": key, "socket": munge / "socket", "seed": munge / "seed"}
        places = [f"--{name}{'' if name == 'socket' else '-file'}={f}" for name, f in files.items()]
        logs = [f"--pid-file={self.dir}/munged.pid", f"--log-file={self.dir}/munged.log"]
        self._start("munged", "--force", *places, *logs)
        self._start("slurmctld", "-f", str(self.conf))
        for node in self.nodes:
            self.start(node)
        self.wait_idle()

    def _write_conf(self) -> None:
        (self.dir / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        control, *ports = free_ports(1 + len(self.nodes))
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} "
            "RealMemory=3000 State=UNKNOWN"
            for node, port in zip(self.nodes, ports, strict=True)
        ]
        # the port at which a job's agents meet follows from its number: not that of another cluster
        first = 1 + 20 * (os.getpid() % 37)
        values = {"host": host, "dir": self.dir, "port": control, "first": first}
        text = CONF.format(nodes="\n".join(lines), **values)
        self.conf.write_text(text)
        (self.dir / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def start(self, node: str) -> None:
        """Start a node's daemon."""
        (self.dir / f"spool.{node}").mkdir(exist_ok=True)
        self._start("slurmd", "-N", node, "-f", str(self.conf), **{MARK: f"{self.dir}/{node}"})

    def _start(self, command: str, *words: str, **env: str) -> None:
        found = _find(command)
        assert found is not None
        subprocess.run([found, *words], env=self._env | env, check=True, timeout=30)

    def run(self, *words: str) -> str:
        """What a Slurm command says."""
        done = subprocess.run(
            words, env=self._env, check=False, timeout=60, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def wait_idle(self, limit: float = 60.0) -> None:
        """Wait until no node has work."""
        until = time.monotonic() + limit
        while self.run("sinfo", "-h", "-t", "idle", "-p", "main", "-o", "%D").strip() != str(
            len(self.nodes)
        ):
            assert time.monotonic() < until, self.run("squeue") + self.run("sinfo", "-R")
            time.sleep(0.1)

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        return self.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T").strip()

    def restarts(self, job: str) -> int:
        """How often the job was requeued."""
        words = self.run("scontrol", "show", "job", job).split()
        return int(next(w for w in words if w.startswith("Restarts=")).partition("=")[2])

    def lose(self, node: str) -> None:
        """The node is gone at once, with all that runs on it; the controller is told."""
        for pid in self._processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def bring_back(self, node: str) -> None:
        """A lost node starts again; that it answers puts it back to work (ReturnToService=2)."""
        self.start(node)

    def _processes(self, node: str) -> list[int]:
        """The daemons of a node and all its tasks: of this cluster, and of no other."""
        daemon = {f"{MARK}={self.dir}/{node}"}
        task = {f"SLURM_CONF={self.conf}", f"SLURMD_NODENAME={node}"}
        return [p for p, env in environments() if daemon <= env or task <= env]

    def down(self) -> None:
        """End everything, jobs included."""
        with suppress(AssertionError, subprocess.TimeoutExpired), ExitStack() as stack:
            stack.callback(self._end)
            self.run("scancel", "--me", "--signal=KILL", "--full")
            self.run("scancel", "--me")
        shutil.rmtree(self.dir, ignore_errors=True)

    def _end(self) -> None:
        pids = [int(f.read_text()) for f in self.dir.glob("*.pid") if f.read_text().strip()]
        for node in self.nodes:
            pids += self._processes(node)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def environments() -> list[tuple[int, set[str]]]:
    """Every process that can be looked into, with its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            found.append((int(folder.name), set(pairs)))
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
