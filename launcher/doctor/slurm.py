"""Looks at Slurm, if it is here: does its controller answer, and does it let runs go on?"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping

from launcher.doctor.check import Check

LEAD = 120  # seconds before the time limit at which our scripts ask for a checkpoint (--signal)
KILL_WAIT = 30  # seconds a checkpoint may take after scancel

Ask = Callable[..., str]


def ask(*words: str) -> str:
    """What a command of Slurm's prints; empty if it fails or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=15)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def slurm(ask: Ask = ask, which: Callable[[str], str | None] = shutil.which) -> Iterator[Check]:
    """Findings about the cluster this machine belongs to; one line if it belongs to none."""
    missing = [name for name in ("sbatch", "srun", "scontrol", "squeue") if which(name) is None]
    if missing:
        found = f"not found: {', '.join(missing)}"
        yield Check("Slurm", False, found, "nothing, unless you want it", needed=False)
        return
    ping = ask("scontrol", "ping").strip()
    if "UP" not in ping:
        found = ping.splitlines()[0] if ping else "the controller does not answer"
        way_out = "slurmctld and munge, or SLURM_CONF; nothing, unless you want Slurm"
        yield Check("Slurm", False, found, way_out, needed=False)
        return
    yield Check("Slurm", True, ping.splitlines()[0])
    yield _partitions(ask("sinfo", "--noheader", "--format=%P %a %D %l"))
    yield from settings(config_of(ask("scontrol", "show", "config")))


def _partitions(out: str) -> Check:
    """`main* up 2 infinite` a line: name, state, nodes, time limit."""
    up = [line.split() for line in out.splitlines() if " up " in line]
    found = ", ".join(f"{name} ({nodes} nodes, {limit})" for name, _, nodes, limit in up)
    way_out = "scontrol update partition=... state=up"
    return Check("partitions", bool(up), found or "none is up", way_out, needed=False)


def config_of(out: str) -> dict[str, str]:
    """`scontrol show config` as a dictionary."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", out, re.M))


def settings(config: Mapping[str, str]) -> Iterator[Check]:
    """What a preempted or cancelled run needs of slurm.conf."""
    requeue = config.get("JobRequeue", "1") == "1"
    found = "jobs are requeued" if requeue else "JobRequeue=0"
    way_out = "sbatch --requeue, as our scripts say, or JobRequeue=1"
    yield Check("requeue", requeue, found, way_out, needed=False)
    mode = config.get("PreemptMode", "OFF")
    spared = "CANCEL" not in mode
    way_out = "PreemptMode=REQUEUE: a cancelled run waits for a person"
    yield Check("PreemptMode", spared, mode, way_out, needed=False)
    if mode != "OFF":
        told = "preempt_send_user_signal" in config.get("SlurmctldParameters", "")
        found = f"--signal is {'sent' if told else 'not sent'} to preempted jobs"
        way_out = "SlurmctldParameters=preempt_send_user_signal; else SIGTERM and the grace time"
        yield Check("preemption", told, found, way_out, needed=False)
    wait = int((re.findall(r"\d+", config.get("KillWait", "30")) or ["30"])[0])
    enough = wait >= KILL_WAIT
    found = f"{wait} s from scancel to SIGKILL; --signal gives {LEAD} s before the time limit"
    way_out = f"KillWait={KILL_WAIT}, or scancel --signal=USR1 first: a checkpoint takes a while"
    yield Check("KillWait", enough, found, way_out, needed=False)
