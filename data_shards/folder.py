"""Where a folder of shards lies: on this machine, or behind a URL with a cache on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from data_shards import cache
from data_shards.fetch import PATIENT, Patience, read_all
from fedcore.config_section import URL_WANTED, is_remote
from fedcore.errors import ConfigError
from fedcore.files import LARGEST, read_bytes


@dataclass(frozen=True)
class Remote:
    """A folder of shards behind a URL; files that were read are kept in the cache."""

    url: str  # http(s)://, s3:// or gs://, without a slash at its end
    cache: Path
    patience: Patience = field(default=PATIENT, repr=False)

    def __post_init__(self) -> None:
        if not is_remote(self.url):  # whoever asks: fsspec itself would follow far more
            raise ConfigError("URL", self.url, URL_WANTED, "https://host/folder")

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}", self.cache, self.patience)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    def read(self, name: str) -> bytes:
        """A file of words, fetched once in a process and never kept on the disk.

        Raises `FileNotFoundError` if the server says that there is none, else `ShardError`.
        """
        return _words(self / name)

    def fetch(self, name: str, sha256: str, size: int, *, hashed: bool = True) -> Path:
        """The file in the cache, as it was written; it is fetched if it is not there.

        hashed: compare a copy that is there already with the hash, and not with the size alone.
        """
        url = (self / name).url
        return cache.fetched(url, self.cache, sha256, size, self.patience, hashed=hashed)


Folder = Path | Remote


def folder_of(place: Path | str, cache: Path) -> Folder:
    """The folder at a path or at a URL; `ConfigError` for a URL of another kind."""
    if isinstance(place, str) and "://" in place:
        return Remote(place.rstrip("/"), cache.expanduser().absolute())
    return Path(place)


def holds(folder: Folder, name: str) -> bool:
    """Whether there is a file of that name; `ShardError` if the server does not say."""
    if isinstance(folder, Path):
        return (folder / name).is_file()
    try:
        return bool(folder.read(name)) or True
    except FileNotFoundError:
        return False


def words_of(folder: Folder, name: str) -> bytes:
    """A file of words in either kind of folder; `OSError` if there is none."""
    return folder.read(name) if isinstance(folder, Remote) else read_bytes(folder / name)


@lru_cache(maxsize=4)
def _words(file: Remote) -> bytes:
    return read_all(file.url, LARGEST, file.patience)
