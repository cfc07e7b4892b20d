"""A real Prometheus and Alertmanager around real runs, on free ports, below a folder of its own."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.procs import runs
from tests.procs.runs import free_port

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"


@dataclass
class Stack:
    """What is running. `targets` is the folder that runs write their ranks to (metrics.targets)."""

    folder: Path
    prometheus: str  # http://127.0.0.1:port
    alertmanager: str
    received: list[dict[str, Any]] = field(default_factory=list)  # alerts that got to the webhook

    @property
    def targets(self) -> Path:
        return self.folder / "targets"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an instant query finds. Raises AssertionError for a bad expression."""
        return self._ask("query", query=expression)["result"]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict]:
        """The series of a range query; times in unix seconds."""
        return self._ask("query_range", query=expression, start=start, end=end, step=step)["result"]

    def alerts(self) -> list[dict[str, Any]]:
        """What Prometheus holds to be pending or firing."""
        return self._ask("alerts")["alerts"]

    def _ask(self, what: str, **words: Any) -> dict[str, Any]:
        url = f"{self.prometheus}/api/v1/{what}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from None


@contextmanager
def running(folder: Path, rules: Sequence[Path] = (), interval: str = "1s") -> Iterator[Stack]:
    """Prometheus with these rule files, Alertmanager behind it, and a webhook behind that."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets").mkdir(exist_ok=True)
    received: list[dict[str, Any]] = []
    hook = _webhook(received)
    ports = {name: free_port() for name in ("prometheus", "alertmanager")}
    stack = Stack(folder, *(f"http://127.0.0.1:{p}" for p in ports.values()), received)
    _write(folder / "prometheus.yml", _prometheus(folder, rules, interval, ports["alertmanager"]))
    _write(folder / "alertmanager.yml", _alertmanager(hook.server_address[1]))
    processes = [_start(folder, name, port) for name, port in ports.items()]
    try:
        for url in (stack.prometheus, stack.alertmanager):
            runs.wait_for(lambda url=url: _ready(url), f"{url} to be ready", limit=60)
        yield stack
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)
        hook.shutdown()
        hook.server_close()


def _start(folder: Path, name: str, port: int) -> subprocess.Popen[bytes]:
    program, storage, more = {
        "prometheus": ("prometheus", "--storage.tsdb.path", []),
        "alertmanager": (
            "prometheus-alertmanager",
            "--storage.path",
            ["--cluster.listen-address="],
        ),
    }[name]
    words = [f"--config.file={folder}/{name}.yml", f"{storage}={folder}/{name}", *more]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [program, *words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content))


def _prometheus(folder: Path, rules: Sequence[Path], interval: str, port: int) -> dict[str, Any]:
    found = {"files": [f"{folder}/targets/*.json"], "refresh_interval": "1s"}
    manager = {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(rule) for rule in rules],
        "alerting": {"alertmanagers": [manager]},
        "scrape_configs": [{"job_name": "fedcore", "file_sd_configs": [found]}],
    }


def _alertmanager(port: int) -> dict[str, Any]:
    hook = {"url": f"http://127.0.0.1:{port}/", "send_resolved": False}
    quick = {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    return {
        "route": {"receiver": "hook", "group_by": ["..."], **quick},
        "receivers": [{"name": "hook", "webhook_configs": [hook]}],
    }


def _webhook(received: list[dict[str, Any]]) -> HTTPServer:
    """A server that keeps the alerts it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.extend(json.loads(content)["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
