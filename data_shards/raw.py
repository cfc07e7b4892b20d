"""Published files to arrays: where they lie, and one kind of error for all that is wrong with them.

Readers of a format call these, so that every `ShardError` names the file and the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_shards.folder import Folder
from fedcore.errors import ConfigError, FedError, ShardError


def located(root: Path | None, name: str) -> Path:
    """`root`/`name`, or `root` itself: data.root may be the unpacked folder, or what it lies in.

    Raises `ConfigError` without a root, `ShardError` if there is nothing at it.
    """
    if root is None:
        way_out = f"--set data.root=/datasets/{name}"
        raise ConfigError("data.root", None, f"where {name} lies", way_out)
    if not root.exists():
        raise ShardError(str(root), "no such file or folder", f"data.root=... with {name} in it")
    inside = root / name
    return inside if inside.exists() else root


@contextmanager
def reading(path: Folder | str, way_out: str) -> Iterator[None]:
    """A context around a parser: whatever it makes of that file becomes a `ShardError`."""
    try:
        yield
    except FedError:
        raise
    except FileNotFoundError:
        raise ShardError(str(path), "no such file", way_out) from None
    except Exception as error:  # of a damaged file, parsers raise nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if len(reason) > 1 and reason[0] == reason[-1] in "'\"":  # of a KeyError
            reason = reason[1:-1]
        raise ShardError(str(path), f"cannot be read: {reason}", way_out) from None


def images_of(path: Path, images: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The images if they are uint8 [M, *shape], else `ShardError`."""
    with reading(path, f"uint8 images {list(shape)}"):
        found = np.asarray(images)
    if found.dtype != np.uint8 or found.shape[1:] != shape:
        problem = f"images are {found.dtype} {list(found.shape)}"
        raise ShardError(str(path), problem, f"uint8 [M, {', '.join(map(str, shape))}]")
    return found


def labels_of(path: Path, labels: ArrayLike, images: int, first: int = 0) -> NDArray[np.int64]:
    """Labels [M], one for each image, if they are integers from `first` on; else `ShardError`."""
    with reading(path, "one label for each image"):
        found = np.asarray(labels)
    flat = found.reshape(-1)
    whole = np.issubdtype(found.dtype, np.integer) or not len(flat)
    if not whole or len(flat) != images or (len(flat) and int(flat.min()) < first):
        problem = f"labels are {found.dtype} {list(found.shape)} for {images} images"
        raise ShardError(str(path), problem, f"one integer from {first} for each image")
    return flat.astype(np.int64)


def texts_of(path: Path, texts: ArrayLike) -> Sequence[str]:
    """A list of texts, also of UTF-8 bytes as Python 2 pickled them; else `ShardError`."""
    with reading(path, "a list of texts"):
        found = np.asarray(texts)
        found = np.char.decode(found, "utf-8") if found.dtype.kind == "S" else found
    if found.dtype.kind != "U" or found.ndim != 1:
        problem = f"class names are {found.dtype} {list(found.shape)}"
        raise ShardError(str(path), problem, "one text for each class")
    return [str(text) for text in found]


def lines_of(path: Path, way_out: str) -> list[str]:
    """The lines of a text file (UTF-8) that are not blank, without space around them."""
    with reading(path, way_out):
        return [x.strip() for x in path.read_text(encoding="utf-8").splitlines() if x.strip()]


def channels_first(path: Path, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    """A view [M, channels, H, W] of [M, H, W], [M, H, W, channels] or itself; else `ShardError`."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        problem = f"images are {images.dtype} {list(images.shape)}"
        raise ShardError(str(path), problem, "uint8 [M, H, W] or [M, H, W, channels]")
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):  # [M, H, W, 4] would else be taken for H channels
        raise ShardError(str(path), f"images are {list(images.shape)}", "1 or 3 channels")
    return images.view(np.uint8)


def users_of(path: Path, users: ArrayLike, images: int) -> NDArray[np.int64]:
    """Users [M] numbered from 0 in the order of their ids (numbers or texts); else `ShardError`."""
    with reading(path, "one user id for each image"):
        found = np.asarray(users)
    if found.dtype.kind not in "iuU" or found.shape != (images,):
        problem = f"user ids are {found.dtype} {list(found.shape)} for {images} images"
        raise ShardError(str(path), problem, "one number or text for each image")
    return np.unique(found, return_inverse=True)[1].astype(np.int64)
