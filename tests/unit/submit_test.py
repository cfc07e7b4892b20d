"""Is what `fedcore submit` writes sound, and is what cannot work refused before it is queued?"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from fedcore.errors import ConfigError
from launcher import cli, slurm
from launcher.commands import app
from launcher.submit_plan import merged, plan
from launcher.submit_script import Resources, Script, container_words, report_script, run_script
from tests.procs.runs import wait_for

CPU = ("--gpus-per-node", "0")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with nothing in it, and no cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "call", lambda patience, *words: None)  # no such command


def call(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def checked(text: str, folder: Path) -> str:
    """The script, if the shell and shellcheck find nothing in it."""
    file = folder / "script.sbatch"
    file.write_text(text)
    subprocess.run(["bash", "-n", str(file)], check=True)
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
    return text


def script(folder: Path, name: str = "it's 100%", **more: object) -> Script:
    values = {"name": "a run", "command": "fedcore submit", "cwd": folder} | more
    run = folder / "runs" / name
    files = {"files": run / "slurm", "config": "rounds: 2\n", "runs": [run]}
    return Script(words=["--run-dir", str(run)], **{**files, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"modules": ["cuda/12.4", "nccl"], "prolog": Path("/opt/my env.sh")},
        {"container": "fedcore.sif", "interface": "ib0", "scrape": False},
        {"container": "registry#fedcore:1", "options": ["--time=1-00:00:00", "--mem=64G"]},
    ],
    ids=["plain", "modules", "apptainer", "pyxis"],
)
def test_scripts_are_sound(nodes: int, more: dict[str, object], tmp_path: Path) -> None:
    asked = Resources(nodes=nodes, **more)  # type: ignore[arg-type]
    text = checked(run_script(script(tmp_path), asked), tmp_path)
    assert f"#SBATCH --nodes={nodes}\n" in text
    assert f"--nnodes={nodes} " in text
    many = script(tmp_path, tasks=[0, 3], at_once=1)
    assert "#SBATCH --array=0,3%1\n" in checked(run_script(many, asked), tmp_path)
    checked(report_script(script(tmp_path), asked), tmp_path)


def test_a_path_is_one_word_for_the_shell_and_text_for_slurm(tmp_path: Path) -> None:
    text = run_script(script(tmp_path, "it's 100% $HOME"), Resources())
    (line,) = [x for x in text.splitlines() if x.startswith("run=")]
    said = subprocess.run(["bash", "-c", f'{line}; printf %s "$run"'], capture_output=True)
    assert said.stdout.decode() == str(tmp_path / "runs" / "it's 100% $HOME")
    assert "100%% $HOME/slurm/log-%j.txt" in text  # slurm would put something in place of `% `


def test_a_value_cannot_become_a_line_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one line of printable text"):
        run_script(script(tmp_path), Resources(options=["--qos=a\n#SBATCH --uid=0"]))
    with pytest.raises(ConfigError, match="one line"):
        run_script(script(tmp_path, "a\nrm -r x"), Resources())


def test_a_container_is_entered_as_its_kind_wants() -> None:
    before, srun = container_words("my image.sif", Path("/work dir"))
    assert before == " apptainer exec --nv --bind '/work dir' --pwd '/work dir' 'my image.sif'"
    assert srun == ""
    before, srun = container_words("registry#fedcore:1", Path("/work"))
    assert (before, "--container-image='registry#fedcore:1'" in srun) == ("", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("smoke", *CPU, "--set", "clients.cuont=3"), "Try clients.count"),
        (("smoke", *CPU, "--set", "algorithm.name=v99"), "algorithm.name"),
        (("lm_smoke", *CPU, "--set", "lm.model.heads=5"), "heads"),
        (("smoke", "--set", "device=cpu"), "Try --gpus-per-node 0"),
        (("smoke", *CPU, "--set", "device=cuda"), "a GPU for each of 1 ranks"),
        (("smoke", *CPU, "--array", "smoke"), "with `experiments`"),
        (("smoke", *CPU, "--prolog", "nowhere.sh"), "--prolog"),
        (("smoke", *CPU, "--resume", "nowhere"), "--resume"),
        (("smoke", *CPU), "--dry-run, which prints the script"),
    ],
)
def test_what_cannot_work_is_told_and_not_queued(words: tuple[str, ...], told: str) -> None:
    found = call("submit", *words)
    assert found.exit_code == 2, found.output
    assert told in found.output


def test_a_mistake_in_an_experiment_is_told_with_its_name(tmp_path: Path) -> None:
    listed = {"experiments": [{"name": "good"}, {"name": "bad", "set": {"model.name": "vgg"}}]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(listed))
    found = call("submit", "smoke", *CPU, "--array", "sweep.yaml")
    assert found.exit_code == 2
    assert "bad-s0: model.name: got 'vgg'" in found.output


def test_a_dry_run_prints_the_script_and_leaves_nothing(tmp_path: Path) -> None:
    found = call("submit", "smoke", *CPU, "--dry-run", "--no-report", "--partition", "short")
    assert found.exit_code == 0, found.output
    assert "#SBATCH --partition=short\n" in checked(found.output, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_the_job_trains_what_the_training_command_would(tmp_path: Path) -> None:
    """The configuration in the script, read by main.py's own reader, is the one it was made of."""
    overrides = ["clients.lr=1e-2", "seed=3", "algorithm={name: v12}"]
    found = plan("smoke", overrides, None, None)
    (tmp_path / "config.yaml").write_text(found.config)
    assert cli.load_config("config.yaml") == cli.load_config("smoke", overrides)
    words = ["--config", "smoke", "--set", *overrides]
    assert found.out == cli.parse(words).run_dir.absolute()


def test_experiments_lie_on_top_of_the_configuration() -> None:
    below = {"lm": {"steps": 5, "model": {"width": 8}}, "seed": 1}
    above = {"lm": {"model": {"heads": 2}}, "seed": 2, "experiments": []}
    assert merged(below, above) == {
        "lm": {"steps": 5, "model": {"width": 8, "heads": 2}},
        "seed": 2,
        "experiments": [],
    }


def test_only_what_is_left_of_a_list_becomes_tasks(tmp_path: Path) -> None:
    listed = {"experiments": [{"name": n, "set": {"seed": i}} for i, n in enumerate("abc")]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(listed))
    found = plan("smoke", [], "sweep.yaml", None)
    for run, status in zip(found.runs, ("completed", "stopped"), strict=False):
        run.run_dir.mkdir(parents=True)
        (run.run_dir / "config.yaml").write_text(run.config.dump())
        (run.run_dir / "summary.json").write_text(json.dumps({"status": status}))
    assert [run.number for run in found.left()] == [1, 2]


def test_a_job_is_submitted_recorded_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(patience: float, *words: str) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        run = tmp_path / "runs" / "x"
        line = f"41|RUNNING|2|None|1:02|n[1-2]|fedcore:{run}|" if len(asked) > 2 else ""
        return subprocess.CompletedProcess(words, 0, line if words[0] == "squeue" else "41\n", "")

    monkeypatch.setattr(slurm, "call", answer)
    words = ("submit", "smoke", *CPU, "--run-dir", "runs/x")
    found = call(*words)
    assert found.exit_code == 0, found.output
    assert "scancel 41" in found.output
    assert asked[1][0] == "sbatch"
    assert "--dependency=afterany:41" in asked[2]
    assert (tmp_path / "runs" / "x").stat().st_mode & 0o077 == 0
    again = call(*words)  # two jobs in one directory would be in each other's way
    assert again.exit_code == 2
    assert "41 is RUNNING" in again.output
    line = call("jobs").output.splitlines()[1]
    assert all(w in line for w in ("41", "runs/x", "RUNNING, requeued 2x", "starting", "n[1-2]"))


def test_a_refusal_of_slurm_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(patience: float, *words: str) -> subprocess.CompletedProcess[str]:
        code = 1 if words[0] == "sbatch" else 0
        return subprocess.CompletedProcess(words, code, "", "sbatch: error: invalid partition")

    monkeypatch.setattr(slurm, "call", refuse)
    found = call("submit", "smoke", *CPU)
    assert found.exit_code == 2
    assert "invalid partition" in found.output


def test_jobs_without_slurm_shows_what_the_runs_say(tmp_path: Path) -> None:
    for name, summary in (("done", {"status": "completed", "test_accuracy": 0.5}), ("dead", None)):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(cli.load_config("smoke").dump())
        lines = ['{"event": "round", "round": 0}', '{"event": "resume", "round": 1}', "half a li"]
        (run / "metrics.jsonl").write_text("\n".join(lines))
        if summary:
            (run / "summary.json").write_text(json.dumps(summary))
    found = call("jobs")
    rows = {line.split()[0]: line.split() for line in found.stdout.splitlines()[1:]}
    assert rows["runs/done"][1:5] == ["completed", "1/2", "rounds", "accuracy"]
    assert rows["runs/dead"][1:] == ["unfinished", "1/2", "rounds", "1"]
    assert "no Slurm here" in found.output


def test_a_run_that_someone_is_at_is_running(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "on"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(cli.load_config("smoke").dump())
    holder = subprocess.Popen(["flock", "--no-fork", str(run / ".lock"), "sleep", "60"])
    try:
        wait_for(lambda: "running" in call("jobs").stdout, "the run to be running", 10)
    finally:
        holder.kill()
        holder.wait(timeout=10)
    assert "unfinished" in call("jobs").stdout


def test_a_queue_is_read_whatever_a_path_holds() -> None:
    (job, other) = slurm.parsed(
        ["12_3|PENDING|0|Resources|0:00||fedcore:/a|b/c|", "7|RUNNING|0|None|1:00|n1|(null)|"]
    )
    assert (job.job, job.task, job.run, job.nodes) == ("12_3", 3, Path("/a|b/c"), "")
    assert (other.task, other.run) == (None, None)
