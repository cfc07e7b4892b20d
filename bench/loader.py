"""How fast samples come: held, streamed, written and verified, each beside what one would use else.

    PYTHONPATH=. .venv/bin/python bench/loader.py [--samples 20000] [--blocks 7] [--device cuda]

- resident: an epoch of `ShardedData` beside a bare loop over the same tensors (index, to float,
  normalise; with views: our augmentation called on the batch).
- lane: an epoch of eight clients as one lane beside those of the eight one after another; of few
  samples each, and of many.
- layout: with the channels last in memory beside the usual layout.
- streaming: an epoch read from the tars beside torchvision's CIFAR10 and DataLoader over arrays in
  memory, with equally many workers and the same transforms: none, and the views of SimCLR.
- writing and verifying: MB/s beside `tar` of the same samples as loose files, and `sha256sum`.

Blocks take turns, so that the load of the machine falls on all; ratios are of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import CIFAR10

from bench.lm_common import Spread, facts, keep, told
from data_shards import augment
from data_shards.manifest import Manifest
from data_shards.read import ShardedData
from data_shards.resident import read_part
from data_shards.sources import Arrays, Source
from data_shards.tars import problems
from data_shards.write import Dealt, write

CPU = torch.device("cpu")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
Run = Callable[[], float]  # goes once through, and says how many samples or bytes that were


def made(samples: int) -> Arrays:
    """Random 32x32 colour images in ten classes."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    return Arrays(images, draws.integers(0, 10, samples))


def stored(folder: Path, arrays: Arrays, clients: int) -> Manifest:
    """The samples as shards of some clients."""
    source = Source(lambda: arrays, kind="natural", about="random", mean=MEAN, std=STD, classes=10)
    parts = np.array_split(np.arange(len(arrays.labels)), clients)
    test = Arrays(arrays.images[:10], arrays.labels[:10])
    return write(folder, "random", source, arrays, test, [Dealt(part) for part in parts], {})


def ours(
    folder: Path, manifest: Manifest, size: int, views: bool, *, lane: int = 1, **other: Any
) -> Run:
    """Each client's epoch, one lane after another."""
    clients = range(len(manifest.clients))
    data = ShardedData(
        folder,
        manifest,
        clients,
        batch_size=size,
        views=1,
        seed=0,
        dtype=torch.float32,
        augment=views,
        **{"device": CPU} | other,
    )
    longest_first = sorted(clients, key=data.steps, reverse=True)
    lanes = [longest_first[i : i + lane] for i in range(0, len(clients), lane)]
    rounds = iter(range(10**9))

    def run() -> float:
        round = next(rounds)
        seen = sum(
            batch.labels.numel() for clients in lanes for batch in data.epoch(clients, round, 0)
        )
        settle(data.device)
        return seen

    return run


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bare(
    folder: Path, manifest: Manifest, size: int, views: bool, device: torch.device = CPU
) -> Run:
    """A loop that a careful person would write over tensors in memory."""
    held = [read_part(folder, manifest, part).to(device) for part in manifest.clients]
    mean, std = (torch.tensor(x, device=device)[:, None, None] for x in (MEAN, STD))
    draws = torch.Generator().manual_seed(0)

    def run() -> float:
        seen = 0
        for images, labels in held:
            for rows in torch.randperm(len(labels)).to(device).split(size):
                batch, wanted = images[rows].float() / 255, labels[rows]
                if views:
                    parameters = augment.draw(draws, len(rows), "natural").to(device)
                    batch = augment.apply(batch, parameters, "natural")
                batch = (batch - mean) / std
                seen += len(wanted)
        settle(device)
        return seen

    return run


def torchvision(arrays: Arrays, size: int, views: bool, workers: int) -> Run:
    """torchvision's dataset over arrays in memory, behind a DataLoader with lasting workers."""
    dataset = CIFAR10.__new__(CIFAR10)  # its files need not be there: it indexes these arrays
    dataset.data = np.ascontiguousarray(arrays.images.transpose(0, 2, 3, 1))
    dataset.targets = arrays.labels.tolist()
    random = [
        transforms.RandomResizedCrop(32, scale=(0.2, 1.0), antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
    ]
    plain = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset.transform = transforms.Compose([*(random if views else []), *plain])
    dataset.target_transform = None
    loader = DataLoader(dataset, size, shuffle=True, num_workers=workers, persistent_workers=True)
    return lambda: sum(len(labels) for _, labels in loader)


def rates(runs: dict[str, Run], blocks: int) -> dict[str, list[float]]:
    """Samples (or bytes) a second of each, in turns; the first turn is a warm-up."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-1, blocks):
        for name in runs if number % 2 else reversed(runs):
            began = time.perf_counter()
            amount = runs[name]()
            if number >= 0:
                found[name].append(amount / (time.perf_counter() - began))
    return found


def compared(runs: dict[str, Run], blocks: int) -> dict[str, Any]:
    """The rate of the first over that of the second."""
    found = rates(runs, blocks)
    first, second = found.values()
    ratio = Spread.of([x / y for x, y in zip(first, second, strict=True)])
    each = {name: Spread.of(values)._asdict() for name, values in found.items()}
    return {"ratio": ratio._asdict(), "rates": each}


def loose(folder: Path, manifest: Manifest, to: Path) -> None:
    """The members of all tars as files."""
    for shard in manifest.shards:
        with tarfile.open(folder / shard.file) as tar:
            tar.extractall(to / shard.file, filter="data")


def disk(
    folder: Path, arrays: Arrays, manifest: Manifest, blocks: int
) -> Iterator[tuple[str, Any]]:
    """Writing beside `tar`, verifying beside `sha256sum`, in bytes of tar a second."""
    size = float(sum(shard.bytes for shard in manifest.shards))
    again, files = folder.with_name("again"), folder.with_name("loose")
    loose(folder, manifest, files)

    def write_ours() -> float:
        shutil.rmtree(again, ignore_errors=True)
        stored(again, arrays, len(manifest.clients))
        return size

    def write_tar() -> float:
        out = folder.with_name("out.tar")
        subprocess.run(["tar", "-cf", out, "-C", files, "."], check=True)
        subprocess.run(["sync", out], check=True)  # ours are on the disk as well
        return size

    def verify_ours() -> float:
        assert not problems(folder, manifest)
        return size

    def verify_sums() -> float:
        paths = [folder / shard.file for shard in manifest.shards]
        subprocess.run(["sha256sum", *paths], check=True, capture_output=True)
        return size

    yield "write", compared({"ours": write_ours, "tar": write_tar}, blocks)
    yield "verify", compared({"ours": verify_ours, "sha256sum": verify_sums}, blocks)


def held(
    place: Path, arrays: Arrays, device: torch.device, blocks: int
) -> Iterator[tuple[str, Any]]:
    """What is on the device: beside a bare loop, as lanes, in both layouts."""
    on: dict[str, Any] = {"device": device}
    few = Arrays(arrays.images[:4096], arrays.labels[:4096])
    stores = {"": (arrays, 8), ", 16 samples a client": (few, 256)}
    for about, (samples, clients) in stores.items():
        folder = place / f"of {clients}"
        manifest = stored(folder, samples, clients)
        for views, size in product((False, True), (32,) if about else (32, 256)):
            where, name = (folder, manifest, size, views), "views" if views else "plain"
            one = ours(*where, **on)
            pairs = {
                "resident": {"resident": one, "loop": bare(*where, device)},
                "lane": {"lane of 8": ours(*where, lane=8, **on), "one by one": one},
                "layout": {"channels last": ours(*where, channels_last=True, **on), "usual": one},
            }
            for kind, pair in pairs.items():
                yield f"{kind}, {name}, B {size}{about}", compared(pair, blocks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=7, help="of each kind")
    parser.add_argument("--device", default="cpu", help="where resident samples lie")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/loader.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = facts(vars(given), torch.device(given.device))
    arrays = made(given.samples)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        folder = Path(place) / "shards"
        manifest = stored(folder, arrays, given.clients)
        found |= dict(held(Path(place), arrays, torch.device(given.device), given.blocks))
        for views in (False, True):
            name = "views" if views else "plain"
            settings = {"streaming": True, "workers": given.workers}
            pair = {
                "streaming": ours(folder, manifest, 256, views, **settings),
                "torchvision": torchvision(arrays, 256, views, given.workers),
            }
            found[f"streaming, {name}, B 256"] = compared(pair, given.blocks)
        found |= dict(disk(folder, arrays, manifest, given.blocks))
    for name, values in found.items():
        if isinstance(values, dict) and "ratio" in values:
            each = [f"{k} {Spread(**v).told(',.0f')}" for k, v in values["rates"].items()]
            print(f"{name}: {Spread(**values['ratio']).told('.2f')}  ({', '.join(each)} a second)")
    print(told(found))
    keep(given.out, found)


if __name__ == "__main__":
    main()
