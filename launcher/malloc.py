"""How this process's malloc treats the large blocks that a training step takes and gives back."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MMAP = 32 << 20  # bytes; the largest that glibc takes
TRIM = 512 << 20


def keep_blocks() -> None:
    """Let glibc keep freed blocks, instead of having the kernel map and clear their pages anew in
    each step: a step of a small network on a CPU is then a tenth faster. Other C libraries have no
    such switch, and nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP)
        mallopt(M_TRIM_THRESHOLD, TRIM)
