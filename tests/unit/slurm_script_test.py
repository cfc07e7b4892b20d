"""What does the script do at each end of a run? With commands of Slurm that only write down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from launcher.submit_script import Resources, Script, run_script

pytestmark = pytest.mark.broad

SRUN = """#!/bin/bash
echo srun >> "$CALLS"
{body}
"""
SCONTROL = """#!/bin/bash
case "$*" in
  "show hostnames"*) echo n1 ;;
  "show node"*) echo "NodeName=n1 NodeAddr=127.0.0.1" ;;
  "show job"*) echo "JobState=${STATE:-RUNNING} PreemptTime=${PREEMPTED:-None}" ;;
  *) echo "$*" >> "$CALLS" ;;
esac
"""


class Stage:
    """A job script among commands that only write down that they were called."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.run, self.calls = folder / "bin", folder / "run", folder / "calls"
        self.bin.mkdir()
        self.run.mkdir()
        self.calls.touch()
        script = Script(
            name="run",
            command="test",
            cwd=folder,
            files=self.run / "slurm",
            config="rounds: 2",
            runs=[self.run],
            words=[],
        )
        self.script, self._written = folder / "job.sbatch", script
        self.write(Resources(max_restarts=1, requeues=2))
        self.command("scontrol", SCONTROL)
        self.command("sleep", "#!/bin/bash\n")

    def write(self, asked: Resources) -> None:
        """The script anew, with these resources."""
        self.script.write_text(run_script(self._written, asked))

    def command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def play(self, body: str, **env: str) -> tuple[int, list[str]]:
        """Exit code, and the calls of srun and scontrol, with a step that does `body`."""
        self.calls.write_text("")
        self.command("srun", SRUN.format(body=body))
        own = {"PATH": f"{self.bin}:{os.environ['PATH']}", "CALLS": str(self.calls)}
        own |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "RUN": str(self.run)}
        done = subprocess.run(["bash", str(self.script)], env=own | env, timeout=30, check=False)
        return done.returncode, self.calls.read_text().split("\n")[:-1]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def ends(code: int) -> str:
    """A step that leaves a summary with that code, on a node whose agent has seen none of it."""
    return f"""/bin/sleep 0.05; echo ' "exit_code": {code},' > "$RUN/summary.json"; exit 1"""


# srun in the place of Slurm, which tells the script (its parent) first
ASKED = "kill -USR1 $PPID; /bin/sleep 0.2; "
CANCELLED = "kill -TERM $PPID; /bin/sleep 0.2; "


@pytest.mark.parametrize(
    ("body", "code", "calls"),
    [
        ("exit 0", 0, ["srun"]),
        (ends(2), 2, ["srun"]),
        (ends(3), 3, ["srun"]),
        (ends(4), 4, ["srun"]),
        (ends(1), 1, ["srun"]),
        (ends(75), 75, ["srun"]),  # someone stopped the run itself
        (ends(5), 5, ["srun", "srun", "requeue 7"]),
        ("exit 1", 5, ["srun", "srun", "requeue 7"]),  # no summary at all
        (ASKED + ends(75), 75, ["srun", "requeue 7"]),
        (ASKED + "exit 1", 5, ["srun", "requeue 7"]),  # killed before it could stop
        (ASKED + "exit 0", 0, ["srun"]),  # it was about to end anyway
        (ASKED + ends(4), 4, ["srun"]),
        (CANCELLED + ends(75), 75, ["srun"]),
        (CANCELLED + "exit 1", 5, ["srun"]),
    ],
)
def test_each_end_has_its_consequence(body: str, code: int, calls: list[str], stage: Stage) -> None:
    stage.command("scancel", "#!/bin/bash\n")
    assert stage.play(body) == (code, calls)


@pytest.mark.parametrize(
    ("node", "bind", "host"), [(0, "10.0.0.1", 1), (1, "0.0.0.0", 0)], ids=["first", "second"]
)
def test_each_node_starts_one_agent_of_the_same_meeting(
    node: int, bind: str, host: int, stage: Stage
) -> None:
    """In a container, on a cluster where one node's address is a name."""
    hosts = (
        '"show hostnames"*) printf "n1\\nn2\\n" ;;\n  "show node n1"*) echo NodeAddr=10.0.0.1 ;;'
    )
    tell = SCONTROL.replace('"show hostnames"*) echo n1 ;;', hosts)
    stage.command("scontrol", tell.replace("127.0.0.1", "two.cluster"))
    stage.command("apptainer", '#!/bin/bash\necho "$*" >> "$CALLS"\n')
    stage.write(Resources(nodes=2, ranks=4, container="my image.sif"))
    _, calls = stage.play('until [ "$1" = bash ]; do shift; done; "$@"', SLURM_NODEID=str(node))
    words = calls[1].split()
    assert words[:4] == ["exec", "--nv", "--bind", str(stage.run.parent)]
    assert words[6:11] == ["my", "image.sif", "python", "-m", "launcher.agent"]
    port = 20000 + 7 * 16
    assert {"--nnodes=2", "--nproc-per-node=4", f"--rdzv-endpoint=10.0.0.1:{port}"} <= {*words}
    assert f"--rdzv-conf=is_host={host},read_timeout=300" in words
    assert f"--local-addr={'10.0.0.1' if host else 'two.cluster'}" in words
    assert words[-1] == f"metrics.bind={bind}"


def test_the_signal_is_passed_on_to_the_ranks(stage: Stage) -> None:
    stage.command("scancel", '#!/bin/bash\necho "scancel $*" >> "$CALLS"\n')
    _, calls = stage.play(ASKED + ends(75))
    assert calls[:2] == ["srun", "scancel --signal=USR1 7"]


def test_a_loss_without_a_new_checkpoint_is_repeated_so_often_and_no_more(stage: Stage) -> None:
    assert [stage.play("exit 1")[1][-1] for _ in range(3)] == ["requeue 7", "requeue 7", "srun"]
    pointer = stage.run / "checkpoints" / "latest"
    pointer.parent.mkdir()
    pointer.write_text("round_00001")  # it does get on: the count starts anew
    assert [stage.play("exit 1")[1][-1] for _ in range(3)] == ["requeue 7", "requeue 7", "srun"]


def test_the_summary_of_an_earlier_attempt_is_not_taken_for_this_one(stage: Stage) -> None:
    (stage.run / "summary.json").write_text(' "exit_code": 75,\n')
    os.utime(stage.run / "summary.json", (1, 1))
    assert stage.play("exit 1") == (5, ["srun", "srun", "requeue 7"])


@pytest.mark.parametrize("code", [2, 3, 4, 75])
def test_a_start_that_was_refused_ends_the_job_with_its_code(code: int, stage: Stage) -> None:
    """It leaves the summary of the run that stopped before it; a list passes over what diverged."""
    (stage.run / "summary.json").write_text(' "exit_code": 75,\n')
    os.utime(stage.run / "summary.json", (1, 1))
    assert stage.play(f"exit {code}") == (code, ["srun"])


def test_an_error_that_was_mended_is_not_taken_for_a_loss_of_now(stage: Stage) -> None:
    """A run that found no room for its checkpoint, and whose next attempt lost a rank."""
    (stage.run / "summary.json").write_text(' "exit_code": 2,\n')
    os.utime(stage.run / "summary.json", (1, 1))
    assert stage.play("exit 1") == (5, ["srun", "srun", "requeue 7"])


def test_preemption_that_tells_only_the_ranks_is_seen(stage: Stage) -> None:
    found = stage.play(ends(75), PREEMPTED="2026-11-28T21:49:36")
    assert found == (75, ["srun", "requeue 7"])


def test_a_job_that_was_cancelled_meanwhile_is_not_put_back(stage: Stage) -> None:
    stage.command("scancel", "#!/bin/bash\n")
    assert stage.play(ASKED + ends(75), STATE="CANCELLED") == (75, ["srun"])


def test_a_job_that_is_asked_before_it_began_starts_nothing(stage: Stage) -> None:
    """While modules are loaded, say."""
    stage.command("scancel", "#!/bin/bash\n")
    tell = SCONTROL.replace('hostnames"*)', 'hostnames"*) kill -USR1 $(cat "$PIDFILE");')
    stage.command("scontrol", tell)
    pid = stage.run / "pid"
    stage.script.write_text(f"echo $$ > {pid}\n" + stage.script.read_text())
    assert stage.play("exit 0", PIDFILE=str(pid)) == (5, ["requeue 7"])


def test_without_an_address_nothing_is_started(stage: Stage) -> None:
    stage.command("scontrol", "#!/bin/bash\nexit 1\n")
    assert stage.play("exit 0") == (5, [])
