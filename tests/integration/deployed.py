"""
The service on a separate Ray cluster, as docker/ray/stepspec.yaml deploys it, and the replies of
its clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from stepspec.servers.launcher.process import Child, child

from .conftest import Pair
from .test_service import until

DEPLOYED = Path(__file__).parents[2] / "docker/ray/stepspec.yaml"
PROGRAM = Path(__file__).with_name("cluster.py")
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DEDUP_LOGS": "0",
}
PATIENT = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}
PATIENCE = 420.0  # seconds to start; on two busy cores each of Ray's processes takes several
GRACE = 20.0  # seconds to end
SMALL_SHARE = {"min_replicas": 2, "max_replicas": 2, "cpus": 0.5}


@dataclass(frozen=True, slots=True)
class Deployed:
    """The application on its cluster."""

    base: str
    log: Path
    cluster: Child

    def replicas(self) -> set[int]:
        """Return the processes of the replicas."""
        return self.processes("ServeReplica:stepspec:replica")

    def processes(self, name: str) -> set[int]:
        """Return the processes of the cluster whose titles have that name."""
        return {pid for pid in descendants(self.cluster.pid) if name in title(pid)}


@dataclass
class Answer:
    """What one request got: *chunks* with the seconds at which they came."""

    stream: bool
    status: int = 0
    chunks: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])

    @property
    def text(self) -> str:
        return b"".join(piece for _, piece in self.chunks).decode()

    @property
    def error(self) -> dict[str, Any] | None:
        found = [line for line in self.text.split("\n\n") if line.startswith('data: {"error"')]
        return json.loads(found[0].removeprefix("data: "))["error"] if found else None

    @property
    def complete(self) -> bool:
        """Whether it is what it should be if nothing happens."""
        if self.status != 200 or self.error:
            return False
        if self.stream:
            return self.text.endswith("data: [DONE]\n\n") and '"finish_reason":"stop"' in self.text
        return bool(json.loads(self.text)["choices"][0]["message"]["content"])


@asynccontextmanager
async def deploying(pair: Pair, folder: Path, **variables: str) -> AsyncGenerator[Deployed]:
    """
    Deploy the file that is shipped, with this pair and a free port, on a cluster that is gone
    afterwards.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    written = folder / "stepspec.yaml"
    log = folder / "cluster.log"
    written.write_text(yaml.safe_dump(changed(yaml.safe_load(DEPLOYED.read_text()), pair, port)))
    command = (sys.executable, str(PROGRAM), str(written))
    async with child(
        command, env={**os.environ, **QUIET, **PATIENT, **variables}, log=log, grace=GRACE
    ) as cluster:
        deployed = Deployed(f"http://127.0.0.1:{port}", log, cluster)
        async with aiohttp.ClientSession(deployed.base) as http:
            await until(lambda: ready(http, deployed), PATIENCE)
        yield deployed


def changed(file: Any, pair: Pair, port: int) -> Any:
    (application,) = file["applications"]
    arguments = application["args"]
    arguments |= {
        "small": pair.small.base_url,
        "large": pair.large.base_url,
        "sampling": {"temperature": 0},
    }
    arguments["service"]["ray"] |= SMALL_SHARE
    file["http_options"]["port"] = port
    return file


async def ready(http: aiohttp.ClientSession, deployed: Deployed) -> bool:
    assert not deployed.cluster.ended.done(), deployed.log.read_text()
    await asyncio.sleep(0.2)
    try:
        async with http.get("/health/readiness", timeout=aiohttp.ClientTimeout(total=5)) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def descendants(pid: int) -> set[int]:
    """Return the processes that *pid* began, and those that they began, and so on."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except (ValueError, OSError):
            continue
    found = set[int]()
    new = {pid}
    while new:
        found |= new
        new = {each for each, parent in parents.items() if parent in new} - found
    return found


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
