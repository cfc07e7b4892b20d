"""Published files fetched into data.root, by torchvision, which knows where they lie and their MD5.

Nothing else in fedcore reaches for the net to get data, and this only when it is asked to.
"""

from __future__ import annotations

from pathlib import Path

from data_shards.sources import SOURCES
from fedcore.errors import ConfigError, ShardError


def download(name: str, root: Path | None) -> None:
    """Fetch the published files of source `name` to below `root`, unless they lie there.

    Raises `ConfigError` for a source without a download or no root, `ShardError` if it fails.
    """
    source = SOURCES.get(name)
    if source.download is None:
        able = ", ".join(name for name, source in SOURCES if source.download)
        raise ConfigError("--download", name, f"one of: {able}", "its own files at data.root")
    if root is None:
        way_out = f"--set data.root=/datasets/{name}"
        raise ConfigError("data.root", None, "a folder to download into", way_out)
    try:
        root.mkdir(parents=True, exist_ok=True)
        source.download(root)
    except Exception as error:  # of the network, the disk or an archive: nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        problem = f"{name} cannot be downloaded: {reason[:300]}"
        way_out = "again, or the files by hand (docs/data.md says which)"
        raise ShardError(str(root), problem, way_out) from None
