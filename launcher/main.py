"""The torchrun entry: `torchrun --nproc_per_node=8 launcher/main.py [--config NAME] [--set a.b=c]`.

A configuration with `experiments` is run as a list, one after another (launcher/suite.py).

Exit codes: 0 done, 2 bad configuration, 3 bad data, 4 diverged, 5 a rank was lost, 75 stopped with
a checkpoint (run the same command again to go on).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fedcore.errors import FedError
from launcher import cli
from launcher.telling import tell


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of this rank."""
    first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    try:
        given = cli.parser().parse_args(argv)
        if cli.is_list(given.config):
            from launcher import suite

            return suite.main(given, first)
        request = cli.request(given)
        if request.print_config:
            print(request.config.dump() if first else "", end="")
            return 0
        from launcher import job  # torch and the rest: only once the words make sense

        if request.dry_run:
            if first:
                job.dry_run(request)
            return 0
    except FedError as error:
        tell(str(error), here=first)
        return error.exit_code
    except (MemoryError, RuntimeError) as error:  # a model larger than this machine
        tell(f"this configuration cannot be built here: {error}", here=True)
        return 2
    return job.Job(request)()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # a process group's threads may abort an ordinary exit and change the code
    os._exit(code)
