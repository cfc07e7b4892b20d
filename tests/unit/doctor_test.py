"""Does the doctor try things, and name the way out of what is wrong?"""

from __future__ import annotations

import importlib
import socket
from pathlib import Path

import pytest

from fedcore.config import RunConfig
from launcher import doctor
from launcher.doctor import Check, checks


def named(found: list[Check], name: str) -> Check:
    (check,) = [c for c in found if c.name.startswith(name)]
    return check


def test_a_sound_machine_lacks_nothing_it_needs(tmp_path: Path) -> None:
    found = checks(tmp_path)
    assert [c for c in found if c.needed and not c.ok] == []
    assert {"python", "torch", "torchvision", "gloo", "free disk", "sbatch"} <= {
        c.name for c in found
    }
    assert not named(found, "shards").needed  # a run makes its own
    assert all(c.way_out for c in found if not c.ok)


def test_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = min(taken.getsockname()[1], 65500)
        (check,) = doctor._ports("127.0.0.1", port)
    assert not check.ok
    assert str(port) in check.detail


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    store = tmp_path / RunConfig().data.store / "digits"
    store.mkdir(parents=True)
    (store / "manifest.json").write_text("{")
    (check,) = doctor._shards(store.parent)
    assert not check.ok
    assert "manifest.json" in check.detail


def test_missing_directory_is_a_finding(tmp_path: Path) -> None:
    (found,) = doctor._tried("working directory", lambda: doctor._disk(tmp_path / "nowhere"))
    assert not found.ok


def test_a_broken_package_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"{name}: undefined symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    check = named(list(doctor._packages()), "torchvision")
    assert not check.ok
    assert "undefined symbol" in check.detail
