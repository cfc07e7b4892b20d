"""Do the parts of deploy/compose.yml fit each other? (No Docker is needed, or asked.)"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from torch.distributed.run import parse_args

from deploy.grafana.panels import DOCS
from launcher import cli
from tests.deploy.stack import DEPLOY

COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROVISIONING = DEPLOY / "grafana" / "provisioning"


def mounts(service: str) -> dict[str, str]:
    """Source of each place in the container."""
    return {place: source for source, place, *_ in (v.split(":") for v in volumes(service))}


def volumes(service: str) -> list[str]:
    return SERVICES[service].get("volumes", [])


def filled(words: list[str]) -> list[str]:
    """With the values that stand where the environment says nothing."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in words]


def test_the_trainer_can_be_scraped_from_outside_its_container() -> None:
    given = parse_args(filled(SERVICES["trainer"]["command"]))
    assert given.training_script == "launcher/main.py"
    metrics = cli.parse(given.training_script_args).config.metrics
    assert metrics.bind == "0.0.0.0"
    assert metrics.targets == Path("runs/targets")
    assert mounts("trainer")["/fedcore/runs"] == mounts("prometheus")["/fedcore/runs"]


def test_the_image_has_what_the_trainer_starts() -> None:
    build = SERVICES["trainer"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    lines = (context / build["dockerfile"]).read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert {"launcher", "fedcore", "data_shards", "pyproject.toml"} <= set(copied)
    assert all((context / name).exists() for name in copied)


def test_the_trainer_has_time_to_write_its_checkpoint() -> None:
    trainer = SERVICES["trainer"]
    given = parse_args(filled(trainer["command"]))
    assert given.shutdown_timeout < int(trainer["stop_grace_period"].removesuffix("s"))


def test_cards_are_given_to_the_trainer_that_is_there() -> None:
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yml").read_text())
    assert set(gpu["services"]) <= set(SERVICES)


def test_the_image_is_built_from_whatever_index_pip_knows() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert not re.search(r"://|\.(org|com)\b", text)
    [default] = re.findall(r"^ARG INSTALL_ARGS=(.*)$", text, re.M)
    assert default == '""'
    assert len(re.findall(r"pip install .*\$INSTALL_ARGS", text)) == text.count("pip install")


def test_only_this_machine_reaches_any_port() -> None:
    ports = [p for service in SERVICES.values() for p in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_grafana_finds_what_is_provisioned() -> None:
    found = mounts("grafana")
    provider = yaml.safe_load((PROVISIONING / "dashboards" / "fedcore.yml").read_text())
    folder = DEPLOY / found[provider["providers"][0]["options"]["path"]]
    assert {f.name for f in folder.iterdir()} == {"federation.json", "lm.json", "cluster.json"}
    assert (DEPLOY / found["/etc/grafana/provisioning"]).resolve() == PROVISIONING
    assert (DEPLOY / found[f"/usr/share/grafana{DOCS}"] / "operations.md").is_file()
    source = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())
    variable = source["datasources"][0]["url"].strip("${}")
    assert SERVICES["grafana"]["environment"][variable] == "http://prometheus:9090"


def test_grafana_knows_how_often_prometheus_scrapes() -> None:
    """$__rate_interval is four times what it knows: too short a one leaves gaps."""
    source = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    known = source["datasources"][0]["jsonData"]["timeInterval"]
    assert known == prometheus["global"]["scrape_interval"]
    assert all("scrape_interval" not in job for job in prometheus["scrape_configs"])


def test_volumes_are_declared() -> None:
    named = {v.split(":")[0] for service in SERVICES for v in volumes(service)}
    assert {name for name in named if "/" not in name} == set(COMPOSE["volumes"])
