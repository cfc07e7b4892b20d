"""Randomness has an address: (run seed, client, round, purpose, step). No global generator is used.

The same address gives the same stream on any rank, in any lane, after any resume.
"""

from __future__ import annotations

import hashlib

import torch

EVERYONE = -1  # the `client` of a draw that belongs to no client


def seed(run: int, client: int, round: int, purpose: str, step: int = 0) -> int:
    """A 63-bit seed for one address: the first 8 bytes of a BLAKE2b hash of it."""
    address = f"{run}/{client}/{round}/{purpose}/{step}".encode()
    return int.from_bytes(hashlib.blake2b(address, digest_size=8).digest(), "big") >> 1


def generator(run: int, client: int, round: int, purpose: str, step: int = 0) -> torch.Generator:
    """A CPU generator at that address."""
    return torch.Generator().manual_seed(seed(run, client, round, purpose, step))
