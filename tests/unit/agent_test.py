"""Does the agent end with the run's own exit code?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

from launcher import agent
from launcher.rundir import RunDir


def write(run: RunDir, code: int) -> None:
    run.write_summary({"status": "failed", "exit_code": code})


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PATIENCE", 0.3)


def test_the_summary_of_this_attempt_decides(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    before = agent.stamp(run)
    write(run, 75)
    assert agent.verdict(run, before, [1, -6]) == 75


def test_the_summary_of_an_earlier_attempt_does_not(tmp_path: Path) -> None:
    """Else a run that cannot start would be started again for ever."""
    run = RunDir(tmp_path)
    write(run, 75)
    before = agent.stamp(run)
    assert agent.verdict(run, before, [2, 2]) == 2
    assert agent.verdict(run, before, [-9]) == 1
    write(run, 0)
    assert agent.verdict(run, before, [-6]) == 0  # it completed, and broke on its way out


def test_without_a_run_directory_a_rank_decides() -> None:
    assert agent.verdict(None, None, [-15, 5]) == 5
    assert agent.verdict(None, None, [-15]) == 1


def test_codes_to_go_on_can_be_worded_for_an_orchestrator() -> None:
    env = {agent.AGAIN_AS: "138"}
    assert [agent.as_told(code, env) for code in (0, 2, 3, 4, 5, 75)] == [0, 2, 3, 4, 138, 138]
    assert agent.as_told(75, {}) == 75


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("--nproc-per-node=2", False),
        ("--nnodes=1", False),
        ("--nnodes=2 --node-rank=1 --master-addr=a --master-port=29400", True),
        ("--rdzv-backend=c10d --rdzv-endpoint=a:29400", True),
    ],
)
def test_one_node_meets_nobody(words: str, others: bool) -> None:
    assert agent.meets_others(parse_args([*words.split(), "launcher/main.py"])) == others


def test_variables_of_an_operator_count_as_words(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "23456"}
    for name, value in given.items():
        monkeypatch.setenv(f"PET_{name}", value)
    parsed = parse_args(["launcher/main.py"])
    assert agent.meets_others(parsed)
    assert parsed.node_rank == 1
    assert parsed.master_addr == "a"


def test_the_run_directory_is_the_one_of_the_run(tmp_path: Path) -> None:
    def of(*words: str) -> RunDir | None:
        return agent.run_dir_of(parse_args(list(words)))

    main = "launcher/main.py"
    assert of(main, "--run-dir", "there") == RunDir(Path("there"))
    assert of("-m", "launcher.main", "--run-dir", "there") == RunDir(Path("there"))
    default = of(f"/fedcore/{main}", "--config", "smoke")
    assert default is not None
    assert default.path.name.startswith("smoke-v14-s0-")
    listed = tmp_path / "list.yaml"
    listed.write_text(json.dumps({"experiments": {"a": {}}}))
    assert of(main, "--config", str(listed)) is None
    assert of(main, "--config", "no such") is None
    assert of("-m", "launcher.doctor") is None
