"""Does a list of experiments mean the runs it seems to, and does a bad one stop no other?"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.distributed import HashStore

from fedcore.errors import ConfigError, ConfigErrors, FedError
from fedcore.lm.train import LMRun
from fedcore.server.comm import LocalComm
from launcher import cli, experiments, main, suite, suite_results, suite_state, suite_table
from launcher.experiments import Run
from launcher.rundir import RunDir
from launcher.suite_plot import common, plot_curves
from launcher.world import Place, World

TINY: dict[str, Any] = {
    "metrics": {"enabled": False},
    "lm": {
        "steps": 4,
        "batch_size": 4,
        "log_every": 1,
        "eval_batches": 1,
        "model": {"layers": 1, "width": 16, "heads": 2, "context": 32},
        "data": {"limit": 30_000},
        "monitor": {"every": 1},
    },
}


def written(folder: Path, entries: list[Any], **more: Any) -> str:
    """The path of a list with these experiments."""
    file = folder / "list.yaml"
    data = {"data": {"store": str(folder / "store")}}
    file.write_text(yaml.safe_dump(TINY | data | more | {"experiments": entries}))
    return str(file)


def read(folder: Path, entries: list[Any], *overrides: str, **more: Any) -> list[Run]:
    return experiments.read(written(folder, entries, **more), overrides, folder / "out")


def names(runs: list[Run]) -> list[str]:
    return [run.name for run in runs]


def test_each_is_a_product_and_its_names_are_safe_folders(tmp_path: Path) -> None:
    each = {"lm.optimizer.lr": [0.003, 0.01], "lm.optimizer.weight_decay": [0.1, 1]}
    runs = read(tmp_path, [{"name": "a", "each": each}], seeds=[0, 7])
    assert len(runs) == 8
    assert names(runs)[:2] == ["a-lr=0.003-weight_decay=0.1-s0", "a-lr=0.003-weight_decay=0.1-s7"]
    last = runs[-1].config
    assert last.lm is not None
    assert (last.lm.optimizer.lr, last.lm.optimizer.weight_decay, last.seed) == (0.01, 1.0, 7)
    assert all(run.run_dir.parent == tmp_path / "out" for run in runs)


def test_keys_of_the_same_last_part_are_told_apart(tmp_path: Path) -> None:
    each = {"lm.optimizer.name": ["adamw"], "lm.schedule.name": ["wsd"]}
    runs = read(tmp_path, [{"name": "a", "each": each}])
    assert names(runs) == ["a-optimizer.name=adamw-schedule.name=wsd-s0"]


def test_a_value_never_leads_out_of_the_directory(tmp_path: Path) -> None:
    runs = read(tmp_path, [{"name": "a", "each": {"lm.data.text": ["../../x", None]}}])
    assert names(runs) == ["a-text=.._.._x-s0", "a-text=null-s0"]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"name": "../a"}], ["experiments.0.name", "'../a'", "letters"]),
        ([{"name": "12"}], ["experiments.0.name", "a letter"]),
        ([], ["experiments", "at least 1"]),
        ([{"nam": "a"}], ["experiments.0.nam", "known key"]),
        ([{"name": "a", "each": {"seed": []}}], ["experiments.0.each.seed", "at least 1"]),
        ([{"name": "a"}, {"name": "a"}], ["experiments[1] (a)", "no other experiment"]),
        (
            [{"name": "a"}, {"name": "b", "set": {"lm.model.norm_place": "mid"}}],
            ["experiments[1] (b): lm.model.norm_place", "'mid'", "pre or post"],
        ),
        (
            [{"name": "a", "each": {"lm.optimizer.lr": [1, -1]}}],
            ["experiments[0] (a-lr=-1): lm.optimizer.lr", "-1"],
        ),
        ([{"name": "a"}, {"name": "b", "set": {"threads": 2}}], ["b: threads", "join once"]),
        ([{"name": "a"}, {"name": "b", "set": {"lm": None}}], ["b: lm", "share a table"]),
    ],
)
def test_a_mistake_names_the_experiment_and_the_key(
    tmp_path: Path, entries: list[Any], words: list[str]
) -> None:
    with pytest.raises((ConfigError, ConfigErrors)) as caught:
        read(tmp_path, entries)
    for word in words:
        assert word in str(caught.value)


def test_a_mistake_in_what_all_share_bears_no_experiments_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^precision: got 'fp31'"):
        read(tmp_path, [{"name": "a"}], precision="fp31")


def test_an_unknown_schedule_is_found_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [{"name": "a"}, {"name": "b", "set": {"lm.schedule.name": "cosinus"}}]
    assert (
        main.main(["--config", written(tmp_path, entries), "--run-dir", str(tmp_path / "o")]) == 2
    )
    assert "b-s0: lm.schedule.name" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_an_override_reaches_all_but_not_what_the_experiments_decide(tmp_path: Path) -> None:
    entries = [{"name": "a"}, {"name": "b", "each": {"lm.optimizer.lr": [1.0]}}]
    runs = read(tmp_path, entries, "lm.steps=3", seeds=[1])
    assert [run.config.lm.steps for run in runs if run.config.lm] == [3, 3]
    for override in ("lm.optimizer.lr=2", "seed=3"):
        with pytest.raises(ConfigError, match="leave free"):
            read(tmp_path, entries, override, seeds=[1])
    assert names(read(tmp_path, entries, "seeds=[4]", seeds=[1])) == ["a-s4", "b-lr=1.0-s4"]


def test_a_command_for_one_run_refuses_a_list_and_the_other_way_round(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="configuration of one run"):
        cli.load_config(written(tmp_path, [{"name": "a"}]))
    with pytest.raises(ConfigError, match="--experiment"):
        cli.parse(["--config", "smoke", "--experiment", "a"])


def test_an_experiment_is_chosen_by_number_name_or_seed(tmp_path: Path) -> None:
    runs = read(tmp_path, [{"name": "post"}, {"name": "silu"}], seeds=[0, 1])
    assert names(experiments.chosen(runs, "3")) == ["silu-s1"]
    assert names(experiments.chosen(runs, "post")) == ["post-s0", "post-s1"]
    assert names(experiments.chosen(runs, "post-s1")) == ["post-s1"]
    for word in ("pots", "4"):
        with pytest.raises(ConfigError, match="--experiment"):
            experiments.chosen(runs, word)


def left(run: Run, status: str, code: int, *changed: str) -> None:
    """What a run leaves behind, of a configuration with these changes."""
    RunDir(run.run_dir).write_summary({"status": status, "exit_code": code, "kind": "lm"})
    (run.run_dir / "config.yaml").write_text(
        yaml.safe_dump(cli.with_overrides(run.config.plain(), changed))
    )


def test_a_diverged_run_is_passed_over_until_its_configuration_changes(tmp_path: Path) -> None:
    run = read(tmp_path, [{"name": "a"}])[0]
    left(run, "diverged", 4)
    assert suite_state.is_settled(suite_state.state(run.run_dir, run.config))
    left(run, "diverged", 4, "lm.optimizer.lr=7")
    found = suite_state.state(run.run_dir, run.config)
    assert found.changed
    assert not suite_state.is_settled(found)
    suite_state.check_directories([run])  # and there is no work in it that would be lost


def test_a_failed_run_is_tried_again(tmp_path: Path) -> None:
    run = read(tmp_path, [{"name": "a"}])[0]
    left(run, "failed", 3)
    assert not suite_state.is_settled(suite_state.state(run.run_dir, run.config))


@pytest.mark.parametrize("status", ["completed", "stopped"])
def test_work_of_another_configuration_is_refused_before_anything_runs(
    tmp_path: Path, status: str
) -> None:
    run = read(tmp_path, [{"name": "a"}])[0]
    left(run, status, 0, "lm.steps=9")
    with pytest.raises(FedError, match=r"a-s0: .*lm\.steps: 9 -> 4"):
        suite_state.check_directories([run])


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 4, 0], 4), ([4, 3, 1], 3), ([1, 4], 1)]
)
def test_the_exit_code_tells_the_worst(codes: list[int], code: int) -> None:
    assert suite_state.exit_code(codes) == code


ENTRIES = [
    {"name": "first"},
    {"name": "nodata", "set": {"lm.data.text": "/nowhere"}},
    {"name": "memory", "set": {"lm.optimizer.lr": 0.5}},
    {"name": "last", "set": {"lm.model.feed_forward": "silu"}},
]


@pytest.mark.usefixtures("own_signals")
def test_bad_data_and_an_unexpected_error_stop_no_other_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = LMRun.run

    def out_of_memory(self: LMRun) -> Any:
        if self.lm.optimizer.lr == 0.5:
            raise RuntimeError("CUDA out of memory")
        return run(self)

    monkeypatch.setattr(LMRun, "run", out_of_memory)
    out = tmp_path / "out"
    words = ["--config", written(tmp_path, ENTRIES), "--run-dir", str(out)]
    assert main.main(words) == 3
    said = {row["name"]: row["exit_code"] for row in suite_results.read(out)}
    assert said == {"first-s0": 0, "nodata-s0": 3, "memory-s0": 1, "last-s0": 0}
    page = (out / "table.md").read_text()
    for row in ("| first | completed", "| nodata | failed (exit code 3)", "| last | completed"):
        assert row in page
    assert (out / "curves.png").stat().st_size > 10_000
    monkeypatch.undo()
    capsys.readouterr()
    assert main.main([*words, "--experiment", "memory"]) == 0  # what failed is tried again
    assert main.main([*words, "--list"]) == 0
    assert capsys.readouterr().out.count("completed") >= 3


def made_up(folder: Path, losses: dict[str, list[float]]) -> list[suite_results.Row]:
    """Rows of runs that never were; losses: last held-out loss of each seed, NaN = diverged."""
    rows = []
    for number, (name, values) in enumerate(losses.items()):
        for seed, value in enumerate(values):
            run = folder / f"{name}-s{seed}"
            run.mkdir(parents=True)
            good = value == value
            rms = [{"decay": 0.02, "no_decay": 1.0}, {}, {"decay": 0.02 * value, "no_decay": 1.0}]
            lines = [
                {"event": "lm_step", "step": s, "tokens": 10 * s, "loss": 9.0 - s, "weight_rms": r}
                for s, r in zip((1, 2, 3), rms, strict=True)
            ] + [{"event": "lm_eval", "step": s, "loss": 5 - s * (5 - value) / 3} for s in (1, 3)]
            text = "\n".join(json.dumps(line) for line in lines)
            (run / "metrics.jsonl").write_text(text.replace("NaN", "null"))
            RunDir(run).write_summary(
                {
                    "status": "completed" if good else "diverged",
                    "exit_code": 0 if good else 4,
                    "kind": "lm",
                    "final_eval_loss": value if good else None,
                    "steps": 3,
                    "parameters": 12_000 + number,
                }
            )
            rows.append(
                {
                    "name": run.name,
                    "experiment": name,
                    "seed": seed,
                    "kind": "lm",
                    "status": "completed",
                    "exit_code": 0,
                    "changes": {"lm.tied": True} if number else {},
                }
            )
    (folder / "suite.json").write_text(json.dumps({"runs": rows}))
    return suite_results.rows(folder)


def test_the_table_has_means_over_seeds_and_says_what_became_of_the_others(tmp_path: Path) -> None:
    nan = float("nan")
    rows = made_up(tmp_path, {"base": [2.0, 3.0], "tied": [1.5, nan], "bad": [nan]})
    page = suite_table.markdown(rows).splitlines()
    base, tied, bad = ([c.strip() for c in line.split("|")[1:-1]] for line in page[-3:])
    assert base[:5] == ["base", "completed", "12,000", "-", "2.5000 ± 0.7071"]
    assert base[7] == "2.500 ± 0.707"  # RMS drift: 0.02 -> 0.02 x loss
    assert tied[1] == "1 of 2 completed; seed 1 diverged (after step 3)"
    assert (tied[4], tied[-1]) == ("1.5000", "tied=true")
    assert bad[1:5] == ["diverged (after step 3)", "-", "-", "-"]
    found = suite_results.as_json(rows)["experiments"][1]
    assert found["numbers"]["final_eval_loss"]["by_seed"] == {"0": 1.5}


def test_curves_are_over_tokens_and_a_dozen_experiments_have_a_colour_each(tmp_path: Path) -> None:
    rows = made_up(tmp_path, {f"e{i}": [1.0 + i / 10, 1.2 + i / 10] for i in range(12)})
    x, y = common([trial.curve("lm_eval") for trial in rows[0].trials])
    assert x.tolist() == [10, 30]
    assert y[:, -1].tolist() == pytest.approx([1.0, 1.2])
    assert plot_curves(rows, tmp_path / "curves.png").stat().st_size > 10_000


def test_seeds_of_other_lengths_are_compared_where_all_are() -> None:
    short, long = np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    x, y = common([(short, short), (long, 2 * long)])
    assert (x[0], x[-1]) == (1.0, 2.0)
    assert y[:, -1].tolist() == [2.0, 4.0]


def test_a_list_of_federated_runs_has_a_table_of_accuracies(tmp_path: Path) -> None:
    base = cli.read_values("smoke")
    file = tmp_path / "list.yaml"
    entries = [{"name": "v14"}, {"name": "v4", "set": {"algorithm.name": "v4"}}]
    file.write_text(yaml.safe_dump(base | {"experiments": entries}))
    out = tmp_path / "out"
    runs = experiments.read(str(file), [], out)
    for run, accuracy in zip(runs, (0.5, 0.25), strict=True):
        ends = {"test_accuracy": accuracy, "accuracy": {"iffi": accuracy}}
        summary = {"status": "completed", "exit_code": 0, "kind": "federated", **ends}
        RunDir(run.run_dir).write_summary(summary)
        (run.run_dir / "config.yaml").write_text(run.config.dump())
    suite_state.record(runs, out, {})
    suite_table.write_and_show(out)
    assert "| v4 | 25.0 | 25.0 | iffi | -25.0 | 1 |" in (out / "table.md").read_text()


def test_without_a_list_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"suite\.json"):
        suite_table.write_and_show(tmp_path)


def test_resume_from_a_directory_is_no_choice_for_a_list(tmp_path: Path) -> None:
    words = ["--config", written(tmp_path, [{"name": "a"}]), "--resume", str(tmp_path)]
    with pytest.raises(ConfigError, match="--resume"):
        suite.main(cli.parser().parse_args(words), first=True)


def test_ranks_meet_after_an_error_only_if_all_of_them_come() -> None:
    store = HashStore()

    def rank(number: int) -> World:
        place = Place(rank=number, size=2)
        heartbeat: Any = SimpleNamespace(store=store)
        return World(place, torch.device("cpu"), LocalComm(), heartbeat=heartbeat)

    assert not rank(0).meet("alone", 0.2)
    other = threading.Thread(target=lambda: rank(1).meet("both", 5.0))
    other.start()
    assert rank(0).meet("both", 5.0)
    other.join()
