"""Does the doctor try things on its own machine, and name the way out of what is wrong?"""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import resource
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from fedcore.config import RunConfig
from fedcore.server.comm import LocalComm
from launcher import memory
from launcher.doctor import compute, disk, machine, ports, shards, slurm, table, watched
from launcher.doctor.check import Check, tried
from launcher.doctor.command import without_ranks
from launcher.doctor.group import all_reduces, speed
from launcher.world import Place, World

Usage = namedtuple("Usage", "total used free")


def named(found: Iterable[Check], name: str) -> Check:
    (check,) = [c for c in found if c.name.startswith(name)]
    return check


def test_a_sound_machine_lacks_nothing_it_needs(tmp_path: Path) -> None:
    found = [*machine.packages(), *machine.devices(), *disk.room(tmp_path)]
    found += [*disk.speed(tmp_path, 2**20), *compute.computing(torch.device("cpu"))]
    found += [*machine.memory(1), *machine.open_files(8), *ports.metrics_ports("127.0.0.1", 0)]
    assert [c for c in found if c.bad] == []
    assert {"python", "packages", "free disk", "fsync", "writing"} <= {c.name for c in found}
    assert all(c.way_out for c in found if not c.ok)
    assert named(found, "writing").figures["bytes_per_second"] > 0


def test_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = min(taken.getsockname()[1], 65500)
        (check,) = ports.metrics_ports("127.0.0.1", port)
        (meeting,) = ports.rendezvous_port(port)
    assert not check.ok
    assert str(port) in check.detail
    assert not meeting.ok


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    store = tmp_path / RunConfig().data.store / "digits"
    store.mkdir(parents=True)
    (store / "manifest.json").write_text("{")
    (check,) = shards.shards(store.parent)
    assert check.bad
    assert "manifest.json" in check.detail
    (none,) = shards.shards(tmp_path / "empty")
    assert not none.needed  # a run makes its own


def test_missing_folder_is_a_finding(tmp_path: Path) -> None:
    found = tried("folder of runs", lambda: disk.room(tmp_path / "nowhere"))
    assert all(check.bad for check in found)
    assert "No such file" in found[0].detail


def test_a_look_that_breaks_keeps_what_it_found() -> None:
    def breaks() -> Iterator[Check]:
        yield Check("first", True, "fine")
        raise RuntimeError("no more\nof it")

    found = tried("second", breaks)
    assert [c.ok for c in found] == [True, False]
    assert found[1].detail == "RuntimeError: no more"


def test_a_full_disk_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - 2**20, 2**20))
    check = named(disk.room(tmp_path), "free disk")
    assert check.bad
    assert check.detail == "1 MiB"


def test_a_disk_without_inodes_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = namedtuple("Stat", "f_files f_favail f_bavail f_blocks f_bfree f_frsize")
    monkeypatch.setattr(disk.os, "statvfs", lambda path: fields(10**6, 7, 2**20, 2**20, 0, 4096))
    assert named(disk.room(tmp_path), "free inodes").bad


def test_a_quota_is_told_from_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def over(number: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(disk.os, "fsync", over)
    check = named(disk.room(tmp_path), "folder of runs")
    assert check.bad
    assert "quota" in check.detail
    assert check.way_out == "a larger quota"


def test_a_folder_one_may_not_write_to_is_bad() -> None:
    check = named(disk.room(Path("/proc")), "folder of runs")  # not even root may
    assert check.bad
    assert "--folder" in check.way_out


def test_a_slow_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(disk.time, "monotonic", lambda: float(next(ticks)))
    found = list(disk.speed(tmp_path, 2**20, sync=lambda number: None))
    assert [c.ok for c in found] == [False, False]
    assert found[0].figures["seconds"] == 1.0
    assert not any(c.needed for c in found)


def test_the_file_system_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    mounts = f"a / ext4 rw 0 0\nb {tmp_path} tmpfs rw 0 0\nc {tmp_path}/deeper nfs4 rw 0 0\n"
    (check,) = disk.lasting(tmp_path, mounts)
    assert not check.ok
    assert check.detail == "tmpfs"
    (check,) = disk.lasting(tmp_path.parent, mounts)
    assert check.ok
    assert check.detail == "ext4"


def test_a_broken_package_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"{name}: undefined symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    check = named(machine.packages(), "torchvision")
    assert check.bad
    assert "undefined symbol" in check.detail


def test_few_open_files_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    (check,) = machine.open_files(8)
    assert check.bad
    assert "ulimit -n 1024" in check.way_out


def test_small_shared_memory_is_bad_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB is what a container has unless told."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    (check,) = machine.shared_memory(8)
    assert check.bad
    assert "64 MiB" in check.detail
    (alone,) = machine.shared_memory(1)
    assert not alone.needed


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.memory_limit() == 2**30
    assert named(machine.memory(8), "memory").bad
    assert named(machine.memory(1), "memory").ok
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2**28}\n")
    assert memory.free_host_memory(World(Place(), torch.device("cpu"), LocalComm())) == 3 * 2**28
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.memory_limit() > 2**30


def test_the_limit_of_a_job_stands_above_the_group_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = tmp_path / "slurm/job_7/step_0/user/task_0"
    step.mkdir(parents=True)
    (tmp_path / "slurm/job_7/memory.max").write_text("123456789\n")
    (step / "memory.max").write_text("max\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    path = Path.read_text
    line = "0::/slurm/job_7/step_0/user/task_0\n"
    monkeypatch.setattr(
        Path, "read_text", lambda self: line if self.name == "cgroup" else path(self)
    )
    assert memory.memory_limit() == 123456789


def test_the_doctor_comes_where_packages_are_missing() -> None:
    """It is there to say so."""
    code = "import sys; sys.modules.update(torch=None, psutil=None); import launcher.doctor.main"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_card_that_others_use_and_one_with_errors_are_told() -> None:
    check = machine.device_memory({0: (70 * 2**30, 80 * 2**30), 1: (80 * 2**30, 80 * 2**30)})
    assert not check.ok
    assert check.detail == "in use: 0: 10 GiB"
    driver, ecc = machine.driver_of("0, 550.1, 0\n1, 550.1, 3\n")
    assert driver.detail == "550.1"
    assert ecc.bad
    assert "GPU 1 (3)" in ecc.detail
    assert all(check.ok for check in machine.driver_of("0, 550.1, [N/A]\n"))


def test_a_device_that_computes_wrongly_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    (fine,) = compute.computing(torch.device("cpu"))
    assert fine.ok
    real = torch.Tensor.to

    def flips(self: torch.Tensor, *args: object) -> torch.Tensor:
        moved = real(self, *args)
        if args == (torch.device("cpu"),):
            moved = moved.clone()
            moved[3, 4] *= 100
        return moved

    monkeypatch.setattr(torch.Tensor, "to", flips)
    (check,) = compute.computing(torch.device("cpu"))
    assert check.bad
    assert "float32 off by" in check.detail


def test_bandwidths_are_named_as_nccl_tests_name_them() -> None:
    figures = speed("all_reduce nccl", 8, 10**9, 20e-6, 0.01).figures
    assert figures["algorithm_bytes_per_second"] == pytest.approx(1e11)
    assert figures["bus_bytes_per_second"] == pytest.approx(1.75e11)  # 2 * 7 / 8


def test_without_a_group_there_is_nothing_to_reduce() -> None:
    assert list(all_reduces(torch.device("cpu"), 1024, 1.0, "gloo")) == []


CONFIG = """PreemptMode             = REQUEUE
JobRequeue              = {requeue}
KillWait                = {wait} sec
SlurmctldParameters     = {parameters}
"""


def of_slurm(requeue: int, wait: int, parameters: str) -> list[Check]:
    answers = {
        "ping": "Slurmctld(primary) at n1 is UP\n",
        "show": CONFIG.format(requeue=requeue, wait=wait, parameters=parameters),
        "--noheader": "main* up 2 infinite\nold down 1 1:00:00\n",
    }
    return list(slurm.slurm(lambda *words: answers[words[1]], which=lambda name: name))


def test_slurm_that_lets_runs_go_on_is_fine() -> None:
    found = of_slurm(1, 60, "idle_on_node_suspend,preempt_send_user_signal")
    assert all(check.ok for check in found)
    assert named(found, "partitions").detail == "main* (2 nodes, infinite)"


def test_slurm_that_loses_work_is_told() -> None:
    lacking = {check.name for check in of_slurm(0, 5, "(null)") if not check.ok}
    assert lacking == {"requeue", "preemption", "KillWait"}


def test_a_silent_controller_and_no_slurm_are_told_apart() -> None:
    (silent,) = slurm.slurm(lambda *words: "", which=lambda name: name)
    (none,) = slurm.slurm(which=lambda name: None)
    assert "does not answer" in silent.detail
    assert "not found" in none.detail
    assert not silent.needed


def test_prometheus_that_sees_no_rank_or_is_away_is_told() -> None:
    def get(url: str) -> str:
        health = [("fedcore", "up"), ("fedcore", "down")]
        targets = [{"labels": {"job": j, "rank": "0"}, "health": h} for j, h in health]
        return json.dumps({"data": {"activeTargets": targets}})

    (down,) = watched.prometheus("http://there:9090", get)
    assert "2 ranks scraped, 1 of them down" in down.detail
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        (away,) = watched.prometheus(f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert away.bad  # it was asked for
    assert "refused" in away.detail


def test_a_targets_folder_closed_to_others_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (check,) = watched.targets(folder / "targets")
    assert not check.ok  # pytest's own folders are private, too
    assert check.way_out.startswith("chmod o+rx ")
    assert all(check.ok for check in watched.targets(None))


def test_a_table_in_a_pipe_has_each_finding_in_a_line() -> None:
    found = [
        (0, Check("torch", True, "2.14.1")),
        (1, Check("torch", True, "2.14.1")),
        (0, Check("lock", True, "keeps others out")),
        (1, Check("lock", False, "x" * 60, "y" * 60)),
    ]
    out = io.StringIO()
    table.render(found, ["n1", "n2"], out)
    lines = out.getvalue().splitlines()
    (torch_line,) = [line for line in lines if "torch" in line]
    assert " all " in torch_line
    (bad,) = [line for line in lines if "bad" in line]
    assert "rank 1 (n2)" in bad
    assert "x" * 60 in bad
    assert "y" * 60 in bad
    assert lines[-1] == "1 to mend (2 ranks)"
    told = json.loads(table.as_json(found, ["n1", "n2"]))
    assert not told["ok"]
    assert [c["ranks"] for c in told["checks"]] == [[0, 1], [1], [0]]
    assert table.code(found) == 1


def test_the_words_for_each_rank_leave_out_their_number() -> None:
    assert without_ranks(["doctor", "--ranks", "2", "--json"]) == ["--json"]
    assert without_ranks(["--ranks=2", "--folder", "runs"]) == ["--folder", "runs"]
