"""Do the shipped Prometheus files hold together: syntax, catalogue, cases, runbook?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedcore.config import MetricsConfig
from fedcore.telemetry.catalogue import CATALOGUE, Metric
from fedcore.telemetry.prometheus import STATUSES
from tests.deploy.stack import DEPLOY, ROOT

FILES = DEPLOY / "prometheus"
CASES = sorted((Path(__file__).parent / "rules").glob("*.yml"))
RUNBOOK = ROOT / "docs" / "operations.md"
OF_TARGETS = {"job", "instance", "run", "rank", "node"}
SERIES: dict[str, Metric] = {name: m for m in CATALOGUE.values() for name in m.series}


def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules("alerts.yml")}
RECORDED = {rule["record"]: rule for rule in rules("recording.yml")}
EXPRESSIONS = {name: rule["expr"] for name, rule in (ALERTS | RECORDED).items()}
HOWS = ("fires", "is silent")
GROUPS = [group for file in CASES for group in yaml.safe_load(file.read_text())["tests"]]


def metrics_in(expression: str) -> list[str]:
    """Names of fedcore's own metrics; those in recorded names are not among them."""
    return re.findall(r"(?<![\w:])fedcore_\w+(?![\w:])", expression)


def labels_in(expression: str) -> set[str]:
    """Labels that an expression selects, joins or sums by."""
    lists = re.findall(r"\b(?:by|on|ignoring|without|group_left)\s*\(([^)]*)\)", expression)
    named = {label.strip() for words in lists for label in words.split(",")} - {""}
    return named | set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression))


def known_labels(expression: str) -> set[str]:
    """Labels that its metrics can have, also through a recorded series."""
    found = {label for name in metrics_in(expression) for label in SERIES[name].labels}
    inner = [RECORDED[name]["expr"] for name in re.findall(r"\w+:\w+:\w+", expression)]
    return OF_TARGETS.union(found, *map(known_labels, inner))


def firing(group: dict[str, Any], alert: str) -> list[bool]:
    """At each time of a case, whether the alert is expected to fire."""
    tests = group["promql_expr_test"]
    return [any(f'"{alert}"' in s["labels"] for s in test["exp_samples"]) for test in tests]


def promtool(*words: object) -> str:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.prometheus
def test_prometheus_takes_the_configuration() -> None:
    out = promtool("check", "config", FILES / "prometheus.yml")
    assert f"{len(ALERTS)} rules found" in out
    assert f"{len(RECORDED)} rules found" in out


def test_prometheus_looks_where_runs_write_their_ranks() -> None:
    """Its paths are relative to its configuration, the run's to the root of the repository."""
    (job,) = yaml.safe_load((FILES / "prometheus.yml").read_text())["scrape_configs"]
    (pattern,) = job["file_sd_configs"][0]["files"]
    targets = MetricsConfig().targets
    assert targets is not None
    assert (FILES / pattern).resolve() == ROOT / targets / "*.json"


@pytest.mark.prometheus
def test_alertmanager_takes_the_configuration() -> None:
    words = ["amtool", "check-config", str(FILES / "alertmanager.yml")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should(file: Path) -> None:
    promtool("test", "rules", file)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_case_that_fires_and_one_that_does_not(alert: str) -> None:
    cases = {how: [g for g in GROUPS if g["name"].startswith(f"{alert} {how}: ")] for how in HOWS}
    assert any(any(firing(group, alert)) for group in cases["fires"])
    assert cases["is silent"]
    for group in cases["is silent"]:
        assert not any(firing(group, alert))
        series = " ".join(s["series"] for s in group["input_series"])
        assert any(name in series for name in [*metrics_in(EXPRESSIONS[alert]), "up{", "_total"])


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_rule_uses_only_what_the_catalogue_has(name: str) -> None:
    expression = EXPRESSIONS[name]
    assert set(metrics_in(expression)) <= set(SERIES)
    assert set(re.findall(r"\w+:\w+:\w+", expression)) <= set(RECORDED)
    assert labels_in(expression) <= known_labels(expression)
    assert set(re.findall(r'status="(\w+)"', expression)) <= set(STATUSES)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_name_says_its_labels(name: str) -> None:
    level, _, operation = name.split(":")
    outer = re.search(r"by \(([^)]*)\)", RECORDED[name]["expr"])
    assert outer is not None
    assert level == "_".join(label.strip() for label in outer[1].split(","))
    assert operation


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_where_and_what_to_do(alert: str) -> None:
    words = ALERTS[alert]["annotations"]
    assert ALERTS[alert]["labels"]["severity"] in ("critical", "warning", "info")
    assert "$labels.run" in words["summary"]
    assert "$labels.run" in words["description"]
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(words.values())))
    assert shown <= known_labels(EXPRESSIONS[alert])


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_its_paragraph_in_the_runbook(alert: str) -> None:
    page, _, anchor = ALERTS[alert]["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == RUNBOOK
    headings = re.findall(r"^#+ (\w+)$", RUNBOOK.read_text(), re.M)
    assert anchor in {heading.lower() for heading in headings}


def test_inhibited_and_inhibiting_alerts_exist() -> None:
    text = (FILES / "alertmanager.yml").read_text()
    named = re.findall(r'alertname =~? "([^"]+)"', text)
    assert named
    for pattern in named:
        for part in re.sub(r"(\w+)\((.*?)\)", _spelled_out, pattern).split("|"):
            assert part in ALERTS


def _spelled_out(match: re.Match[str]) -> str:
    """Lambda(A|B) as LambdaA|LambdaB."""
    return "|".join(match[1] + ending for ending in match[2].split("|"))
