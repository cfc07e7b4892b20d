"""Where a folder of shards lies: on this machine, or behind a URL with a cache on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Remote:
    """A folder of shards behind a URL; files that were read are kept in the cache."""

    url: str  # http(s)://, s3:// or gs://, without a slash at its end
    cache: Path

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]


Folder = Path | Remote
