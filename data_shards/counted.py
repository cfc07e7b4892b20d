"""Whether labels that are read bit by bit are those that the manifest counts."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from data_shards.folder import Folder
from data_shards.manifest import WAY_OUT, Part, Shard
from fedcore.errors import ShardError


class Counted:
    """Takes the labels of each tar, once, from what its part still has of each class.

    A part has as many samples as its tars together, and a tar as many as the manifest says. So no
    class falls below zero before the last tar is read if and only if all labels are as counted:
    what a resident reader refuses at its start is refused within the first epoch.
    """

    def __init__(self, folder: Folder, parts: Iterable[Part]) -> None:
        self.folder, self.lock = folder, Lock()
        self.left: dict[str, NDArray[np.int64]] = {}  # [C] of each tar that was not yet read
        for part in parts:
            counts = np.array(part.label_counts, dtype=np.int64)  # one for all tars of the part
            self.left |= {shard.file: counts for shard in part.shards}

    def take(self, shard: Shard, labels: NDArray[np.int64]) -> None:
        """Take the labels of a tar off what its part still has of each class.

        Raises `ShardError`, naming the tar, if a class has more labels than are counted.
        """
        with self.lock:
            left = self.left.get(shard.file)
            if left is None:
                return
            left -= np.bincount(labels, minlength=len(left))
            if len(labels) and int(left.min()) < 0:
                place = f"{self.folder}/{shard.file}"
                raise ShardError(place, "labels that its manifest does not count", WAY_OUT)
            del self.left[shard.file]
