"""torchrun, ending with the exit code of the run: `python -m launcher.agent [torchrun's words]`.

torchrun ends with 1 whatever its workers ended with; what starts a run again or not (Kubernetes,
the script of a Slurm job) must know one that stopped on request (75) from one that cannot work
(2, 3, 4).
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from fedcore.errors import FedError
from launcher import cli
from launcher.rundir import RunDir

OURS = (2, 3, 4, 5, 75)
AGAIN = (5, 75)  # the same command goes on
AGAIN_AS = "FEDCORE_EXIT_AGAIN_AS"  # another code for those: some orchestrators know fixed ones
PATIENCE = 10.0  # seconds until the summary that rank 0 wrote elsewhere is seen here

Stamp = tuple[int, int] | None
"""Which summary.json it is: inode and time of change. None = there is none."""


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The exit code of this node, under torchrun's own words, or its variables `PET_*`."""
    given = parse_args(list(argv))  # type: ignore[no-untyped-call]
    given.standalone |= not meets_others(given)
    run_dir = run_dir_of(given)
    before = stamp(run_dir)
    try:
        run(given)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        told = ", ".join(f"rank {rank} with {code}" for rank, code in sorted(codes.items()))
        print(f"fedcore: ended: {told}", file=sys.stderr)
        return as_told(verdict(run_dir, before, list(codes.values())), env)
    except SignalException as asked:
        code = verdict(run_dir, before, [])
        return as_told(code if code != 1 else 128 + asked.sigval, env)
    return 0


def meets_others(given: Namespace) -> bool:
    """Whether torchrun was told of other nodes, or how to meet."""
    alone = given.nnodes in ("1", "1:1") and not given.master_port
    return bool(given.rdzv_endpoint) or not alone


def run_dir_of(given: Namespace) -> RunDir | None:
    """Where the run will write its summary; None if that is not known, as for a list of runs."""
    words = given.training_script_args
    if not given.training_script.endswith(("launcher/main.py", "launcher.main")):
        return None
    try:
        parsed = cli.parser().parse_args(words)
        if cli.is_list(parsed.config):
            return None
        return RunDir(parsed.run_dir or cli.request(parsed).run_dir)
    except (FedError, SystemExit):  # the ranks say it
        return None


def stamp(run: RunDir | None) -> Stamp:
    """To tell this run's summary from that of an earlier attempt, without comparing clocks."""
    try:
        stat = (run.path if run else Path()).joinpath("summary.json").stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def verdict(run: RunDir | None, before: Stamp, codes: Sequence[int]) -> int:
    """What summary.json says, if this attempt wrote it; else what a rank of ours ended with."""
    until = time.monotonic() + PATIENCE
    while run is not None:
        summary = run.read_summary()
        if summary is not None and stamp(run) != before:
            return int(summary["exit_code"])
        if time.monotonic() > until or any(code in OURS for code in codes):
            break
        time.sleep(0.2)
    return next((code for code in codes if code in OURS), 1)


def as_told(code: int, env: Mapping[str, str]) -> int:
    """The code, or the one that means `start me again` to the orchestrator."""
    return int(env[AGAIN_AS]) if code in AGAIN and env.get(AGAIN_AS) else code


if __name__ == "__main__":
    code = main(sys.argv[1:], os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
