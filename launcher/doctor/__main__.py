"""`torchrun --nproc_per_node=8 -m launcher.doctor`, or `srun python -m launcher.doctor`."""

from __future__ import annotations

import os
import sys

from launcher.doctor.command import run

if __name__ == "__main__":
    code = run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a process group's threads may abort an ordinary exit and change the code
