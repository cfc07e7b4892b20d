"""Do the Kubernetes files fit each other, the image and the command line? Processes are pods."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from torch.distributed.run import parse_args

from launcher import agent, cli
from tests.deploy import docker_test
from tests.deploy.stack import DEPLOY
from tests.procs import runs

FOLDER = DEPLOY / "kubernetes"
KUBERNETES = "1.31"  # the oldest with a stable podFailurePolicy


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


(JOB,) = objects("job.yaml")
(SERVICE,) = objects("service.yaml")
(OPERATED,) = objects("pytorchjob.yaml")
CLAIMS = {claim["metadata"]["name"] for claim in objects("volumes.yaml")}
PODS = {
    "job": JOB["spec"]["template"]["spec"],
    "master": OPERATED["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"],
    "worker": OPERATED["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"],
}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


def words_of(index: int) -> list[str]:
    """The arguments of one pod of the Job, as the kubelet fills them in."""
    args = container(PODS["job"])["args"]
    return [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in args]


@pytest.mark.parametrize("name", ["job.yaml", "service.yaml", "volumes.yaml"])
def test_kubernetes_knows_every_field(name: str) -> None:
    for one in objects(name):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", ["Master", "Worker"])
def test_kubernetes_knows_every_field_of_the_pods_of_the_operator(name: str) -> None:
    template = OPERATED["spec"]["pytorchReplicaSpecs"][name]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_kustomize_builds_the_job_without_the_volumes() -> None:
    """So that deleting what it builds leaves the runs."""
    words = ["kubectl", "kustomize", str(FOLDER)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert {one["kind"] for one in yaml.safe_load_all(out)} == {"Service", "Job"}
    assert "image: registry.example.org/fedcore:latest" in out


def test_the_nodes_meet_at_a_name_that_the_service_gives() -> None:
    given = parse_args(words_of(1))
    job, service = JOB["metadata"]["name"], SERVICE["metadata"]["name"]
    assert given.master_addr == f"{job}-0.{service}"
    assert PODS["job"]["subdomain"] == service
    assert SERVICE["spec"]["clusterIP"] == "None"
    labels = JOB["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"].items() <= labels.items()
    open_ports = {port["containerPort"] for port in container(PODS["job"])["ports"]}
    assert given.master_port in open_ports
    assert open_ports == {port["port"] for port in SERVICE["spec"]["ports"]}


def test_the_numbers_of_nodes_and_cards_agree() -> None:
    given = parse_args(words_of(1))
    spec = JOB["spec"]
    assert int(given.nnodes) == spec["completions"] == spec["parallelism"]
    assert given.node_rank == 1
    assert spec["completionMode"] == "Indexed"
    cards = {
        name: container(pod)["resources"]["limits"]["nvidia.com/gpu"] for name, pod in PODS.items()
    }
    assert int(given.nproc_per_node) == cards["job"]
    assert int(OPERATED["spec"]["nprocPerNode"]) == cards["master"] == cards["worker"]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_fits_the_image_and_the_command_line(name: str) -> None:
    pod, one = PODS[name], container(PODS[name])
    args = [word.replace("$(MASTER_PORT)", "23456") for word in one["args"]]
    given = parse_args(words_of(0) if name == "job" else args)
    assert given.training_script == "launcher/main.py"
    config = cli.parse(given.training_script_args).config
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    assert config.metrics.port == ports["metrics"]
    assert config.metrics.bind == "0.0.0.0"
    mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
    (volumes,) = docker_test.said("VOLUME")
    assert set(mounts) == {*json.loads(volumes), "/dev/shm"}
    sources = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(sources) == set(mounts.values())
    claims = [
        v["persistentVolumeClaim"]["claimName"] for v in sources.values() if "emptyDir" not in v
    ]
    assert set(claims) == CLAIMS
    assert sources[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert str(pod["securityContext"]["runAsUser"]) == docker_test.said("USER")[0]
    assert "command" not in one  # the image's ENTRYPOINT, which turns codes and passes signals
    assert given.shutdown_timeout < pod["terminationGracePeriodSeconds"]


def test_codes_that_go_on_are_not_those_that_fail_the_job() -> None:
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    codes = {r["action"]: r["onExitCodes"]["values"] for r in rules if "onExitCodes" in r}
    assert codes == {"FailJob": [2, 3, 4], "Ignore": [75]}
    names = {r["onExitCodes"]["containerName"] for r in rules if "onExitCodes" in r}
    assert names == {container(PODS["job"])["name"]}
    assert PODS["job"]["restartPolicy"] == "Never"
    again = {one["name"]: one["value"] for one in container(PODS["master"])["env"]}
    # the operator's policy ExitCode starts a pod again for codes of 128 and more
    assert agent.as_told(75, again) >= 128 > agent.as_told(4, again)


def test_the_operator_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for a container and a port by name, and sets these variables in the second pod."""
    one = container(PODS["worker"])
    assert one["name"] == "pytorch"
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    said = {"MASTER_ADDR": "fedcore-master-0", "MASTER_PORT": str(ports["pytorchjob-port"])}
    own = {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8"}
    for name, value in own.items():
        monkeypatch.setenv(f"PET_{name}", value)
    args = [re.sub(r"\$\((\w+)\)", lambda m: said[m[1]], word) for word in one["args"]]
    given = parse_args(args)
    assert agent.meets_others(given)
    assert (given.nnodes, given.node_rank, given.nproc_per_node) == ("2", 1, "8")
    assert (given.master_addr, given.master_port) == ("fedcore-master-0", 23456)


def pod(index: int, run_dir: Path) -> subprocess.Popen[str]:
    """A pod of the Job as a process: its arguments, with one rank and a run of some length."""
    here = {"--nproc-per-node=8": "--nproc-per-node=1", "--config=default": "--config=smoke"}
    words = [here.get(word, word) for word in words_of(index)]
    words = [re.sub(r"^--master-addr=.*", "--master-addr=127.0.0.1", word) for word in words]
    words += ["rounds=15", "metrics.enabled=false", "--run-dir", str(run_dir)]
    return subprocess.Popen(
        [*docker_test.command(), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=runs.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JOB_COMPLETION_INDEX": str(index)},
        start_new_session=True,
    )


@pytest.mark.long
@pytest.mark.procs
def test_two_pods_stop_when_one_is_drained_and_their_successors_complete(tmp_path: Path) -> None:
    pods = [pod(index, tmp_path) for index in range(2)]
    runs.wait_for(lambda: runs.rounds_done(tmp_path), "the first round")
    pods[1].send_signal(signal.SIGTERM)  # as the kubelet does
    outs = [runs.finish(one) for one in pods]
    assert [one.returncode for one in pods] == [75, 75], outs
    done = runs.rounds_done(tmp_path)
    assert 0 < done < 15
    pods = [pod(index, tmp_path) for index in range(2)]
    outs = [runs.finish(one) for one in pods]
    assert [one.returncode for one in pods] == [0, 0], outs
    found = runs.summary(tmp_path)
    assert found["status"] == "completed"
    assert found["world_size"] == 2
    assert runs.rounds_done(tmp_path) == 15  # none was done twice
