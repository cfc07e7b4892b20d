"""A run's last words: on standard error, and to torchrun, whose report ends with them."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun looks for what a worker died of; else it advises to look for a traceback."""


def tell(words: str, *, here: bool) -> None:
    """Leave the words for torchrun and, on one rank (`here`), print them.

    torchrun prints a traceback and a report of its own after a worker that failed: without the file
    the cause would stand some forty lines above the end.
    """
    said = f"fedcore: {words}"
    if here:
        print(said, file=sys.stderr, flush=True)
    if FILE in os.environ:
        extra = {"py_callstack": said, "timestamp": str(int(time.time()))}
        report = {"message": {"message": said, "extraInfo": extra}}
        part = Path(f"{os.environ[FILE]}.part")
        with suppress(OSError):  # whole or absent: torchrun fails itself over half a file
            part.write_text(json.dumps(report), encoding="utf-8")
            part.replace(os.environ[FILE])
