"""Does a job on a real cluster end as an undisturbed process does, whatever happens to it?"""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.procs import runs
from tests.slurm.cluster import environments
from tests.slurm.lab import Lab, checksums, meeting, occupied
from tests.unit.extensions_test import SCHEDULE

pytestmark = pytest.mark.slurm
Summary = dict[str, Any]


def test_a_job_on_two_nodes_is_scraped_reported_and_ends_as_one_process_does(
    lab: Lab, undisturbed: Summary
) -> None:
    words = ("--set", "metrics.enabled=true", "--set", "metrics.port=0")
    job = lab.submit("--nodes", "2", "--ranks-per-node", "2", *words, "--set", "metrics.linger=0")
    lab.wait_for_rounds(job)
    targets = runs.wait_for(lambda: [*lab.dir.glob("runs/targets/*.json")], "targets")
    listed = yaml.safe_load(targets[0].read_text())
    assert {entry["labels"]["node"] for entry in listed} == {"n1", "n2"}
    for entry in listed:
        with urllib.request.urlopen(f"http://{entry['targets'][0]}/metrics") as page:
            assert b"fedcore_round" in page.read()
    line = lab.fedcore("jobs").splitlines()[1].split()
    assert line[:4] == [job.id, f"runs/{job.run.name}", "RUNNING", "running"]
    found = lab.completed(job)
    assert found["world_size"] == 4
    assert checksums(found) == checksums(undisturbed)
    assert job.report is not None
    assert lab.wait(job.report) == "COMPLETED"
    assert (job.run / "report" / "index.html").is_file()
    assert "over, nothing was submitted" in lab.fedcore(
        "submit", "smoke", "--run-dir", str(job.run), *_same_as(job.run)
    )


def _same_as(run: Path) -> list[str]:
    config = yaml.safe_load((run / "slurm" / "config.yaml").read_text())
    keys = {"rounds": config["rounds"], "clients": config["clients"], "data": config["data"]}
    sets = [
        f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in keys.items()
    ]
    return ["--gpus-per-node", "0", *(word for s in sets for word in ("--set", s.strip(". \n")))]


def test_a_list_is_an_array_and_one_report(lab: Lab) -> None:
    listed = {
        "experiments": [
            {"name": "v14"},
            {"name": "fixed", "set": {"algorithm.name": "v7"}},
            {"name": "explodes", "set": {"clients.lr": 1e38, "clients.max_norm": 1e38}},
        ]
    }
    (lab.dir / "sweep.yaml").write_text(yaml.safe_dump(listed))
    words = ("--array", "sweep.yaml", "--array-limit", "2", "--set", "rounds=2")
    job = lab.submit(*words, training=())
    assert job.report is not None
    assert lab.wait(job.report) == "COMPLETED"
    ends = [lab.cluster.state(f"{job.id}_{task}") for task in range(3)]
    assert ends == ["COMPLETED", "COMPLETED", "FAILED"]
    rows = {line.split()[1]: line for line in lab.fedcore("jobs").splitlines()[1:]}
    told = [rows[f"runs/sweep/{name}-s0"] for name in ("v14", "fixed", "explodes")]
    assert ["completed" in told[0], "completed" in told[1], "diverged" in told[2]] == [True] * 3
    assert told[1].split()[0] == f"{job.id}_1"
    page = (job.run / "report" / "index.html").read_text()
    assert all(name in page for name in ("v14-s0", "fixed-s0", "explodes-s0"))


def test_a_preempted_job_comes_back_and_ends_as_if_it_had_not_been(
    lab: Lab, undisturbed: Summary
) -> None:
    job = lab.train()
    lab.wait_for_rounds(job, 1)
    with occupied(meeting(job, attempt=1)):  # something of the first attempt is still there
        words = ("-p", "urgent", "-N", "2", "-n", "2", "-c", "8", "-o", "/dev/null")
        lab.cluster.run("sbatch", *words, "--wrap", "sleep 2")
        lab.wait(job.id, "PENDING")
        stopped = runs.summary(job.run)
        assert (stopped["status"], stopped["exit_code"]) == ("stopped", 75)
        assert checksums(lab.completed(job)) == checksums(undisturbed)
    assert lab.cluster.restarts(job.id) == 1
    assert f"meeting at 127.0.0.1:{meeting(job, 1) + 1}" in job.log
    assert "stopped with a checkpoint; back into the queue" in job.log
    assert "going on with round" in job.log


def test_a_cancelled_job_is_gone_on_with_by_the_same_command(
    lab: Lab, undisturbed: Summary
) -> None:
    job = lab.train()
    lab.wait_for_rounds(job)
    lab.cluster.run("scancel", job.id)
    lab.wait(job.id, "CANCELLED")
    stopped = runs.summary(job.run)
    assert (stopped["status"], stopped["exit_code"]) == ("stopped", 75), job.log[-3000:]
    assert lab.cluster.restarts(job.id) == 0
    again = lab.train()
    assert (again.run, again.id != job.id) == (job.run, True)
    assert checksums(lab.completed(again)) == checksums(undisturbed)
    assert "going on with round" in again.log


def test_a_lost_node_puts_the_job_back_and_it_ends_as_if_it_had_not(
    lab: Lab, undisturbed: Summary
) -> None:
    job = lab.train()
    lab.wait_for_rounds(job)
    lab.cluster.lose("n2")
    try:
        lab.wait(job.id, "PENDING")
    finally:
        lab.cluster.bring_back("n2")
    assert checksums(lab.completed(job)) == checksums(undisturbed)
    assert lab.cluster.restarts(job.id) == 1
    assert "going on with round" in job.log


def test_a_lost_rank_is_restarted_in_the_job_and_then_by_the_queue(
    lab: Lab, undisturbed: Summary
) -> None:
    job = lab.train("--max-restarts", "1", "--requeues", "1")
    for rounds, attempt in ((2, f"{job.id}-0-0"), (6, f"{job.id}-0-1")):
        lab.wait_for_rounds(job, rounds)
        lost = runs.wait_for(lambda a=attempt: _rank(lab, a), f"rank 1 of attempt {attempt}")
        os.kill(lost, signal.SIGKILL)
    assert checksums(lab.completed(job)) == checksums(undisturbed)
    assert lab.cluster.restarts(job.id) == 1
    assert "a rank was lost; restart 1 of 1 within the job" in job.log
    assert "a rank was lost (time 1 of 1 without a new checkpoint)" in job.log


def _rank(lab: Lab, attempt: str) -> int | None:
    """The process of rank 1 in an attempt of this cluster's job."""
    mine = {f"SLURM_CONF={lab.cluster.conf}", "RANK=1", f"ATTEMPT={attempt}"}
    return next((pid for pid, env in environments() if mine <= env), None)


def test_a_job_that_gets_nowhere_is_put_back_so_often_and_no_more(lab: Lab) -> None:
    job = lab.train("--python", "/bin/false", "--requeues", "1")
    assert lab.wait(job.id) == "FAILED"
    assert lab.cluster.restarts(job.id) == 1
    assert "lost 1 times without a new checkpoint: left to you" in job.log
    assert "ExitCode=5:0" in lab.cluster.run("scontrol", "show", "job", job.id)


def test_one_process_per_task_of_srun_also_is_one_world(lab: Lab, undisturbed: Summary) -> None:
    """Without torchrun, as docs/operations.md has it."""
    keys = ["rounds=2", f"data.store={lab.store}", "metrics.enabled=false"]
    command = f"srun {runs.sys.executable} -m launcher.main --config smoke --run-dir run"
    words = ("-N", "2", "--ntasks-per-node=1", "--parsable", "-o", "log.txt")
    script = f"{command} --set {' '.join(keys)}"
    id_ = lab.cluster.run("sbatch", *words, "--wrap", script).strip()
    assert lab.wait(id_) == "COMPLETED", (lab.dir / "log.txt").read_text()
    assert runs.summary(lab.dir / "run")["world_size"] == 2


def test_slurm_takes_the_scripts(lab: Lab) -> None:
    for nodes in ("1", "2"):
        words = ("--gpus-per-node", "0", "--nodes", nodes, "--time", "10", "--dry-run")
        text = lab.fedcore("submit", "smoke", *words, "--no-report")
        (lab.dir / "job.sbatch").write_text(text)
        lab.cluster.run("sbatch", "--test-only", "job.sbatch")


def test_a_bad_configuration_costs_no_time_in_the_queue(lab: Lab) -> None:
    found = runs.subprocess.run(
        [runs.sys.executable, "-m", "launcher.commands", "submit", "smoke", "--set", "rounds=0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "rounds" in found.stderr
    assert lab.cluster.run("squeue", "-h", "-t", "all", "-n", "smoke") == ""
    assert not (lab.dir / "runs").exists()


def test_a_job_of_an_extension_comes_back_with_what_was_submitted(lab: Lab) -> None:
    """The file is edited while the preempted job waits."""
    (lab.dir / "own.py").write_text(SCHEDULE.format(name="submitted"))
    keys = ("extensions=own.py", "clients.lr_schedule=submitted")
    job = lab.train(*(word for key in keys for word in ("--set", key)))
    lab.wait_for_rounds(job, 1)
    words = ("-p", "urgent", "-N", "2", "-n", "2", "-c", "8", "-o", "/dev/null")
    lab.cluster.run("sbatch", *words, "--wrap", "sleep 2")
    lab.wait(job.id, "PENDING")
    (lab.dir / "own.py").write_text("raise ValueError")
    lab.completed(job)
    assert lab.cluster.restarts(job.id) == 1
    assert "going on with round" in job.log
    assert "own.py" in (job.run / "slurm" / "config.yaml").read_text()


def test_a_refused_start_ends_the_job_with_its_own_code_at_once(lab: Lab) -> None:
    """The summary in the directory is that of the run that stopped before."""
    job = lab.train()
    lab.wait_for_rounds(job, 1)
    lab.cluster.run("scancel", "--signal=TERM", job.id)
    lab.wait(job.id)
    assert runs.summary(job.run)["exit_code"] == 75, job.log[-3000:]
    script = job.run / "slurm" / "job.sbatch"
    script.write_text(script.read_text().replace("rounds: 26\n", "rounds: 27\n"))
    again = lab.cluster.run("sbatch", "--parsable", str(script)).strip()
    assert lab.wait(again) == "FAILED"
    assert "ExitCode=2:0" in lab.cluster.run("scontrol", "show", "job", again)
    log = (job.run / "slurm" / f"log-{again}.txt").read_text()
    assert "--resume: got 'rounds: 26 -> 27'" in log
    assert "a rank was lost" not in log
    assert runs.summary(job.run)["exit_code"] == 75
