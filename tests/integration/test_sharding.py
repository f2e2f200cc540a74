"""``stepspec eval --ray`` on a cluster of three nodes and real servers: whoever is killed, the figures are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec.orchestrator.trace import read, replay

from ..orchestrator.launcher.running import parent
from .conftest import Pair
from .test_eval import ARMS, DEADLINE, command, finish, found, kill_in_the_middle, samples, wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

NODES = 3
PROBLEMS = 4
SOLVING = "ray::StepspecWorker.solve"  # how Ray calls the process of a worker that solves
EVERY = ARMS * PROBLEMS


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster: its *address*, and the processes of its *head*, and of the other nodes."""

    address: str
    head: list[int]
    raylets: list[int]

    def busy(self) -> list[int]:
        """Those where a worker has something to solve."""
        return [raylet for raylet in self.raylets if any(SOLVING in _title(process) for process in _below(raylet))]

    def kill(self, raylet: int) -> None:
        """End a node as a power cut does: everything on it, at once."""
        self.raylets.remove(raylet)
        _kill(raylet)

    def kill_head(self) -> None:
        """End the head as a power cut does, and with it the cluster."""
        _kill(*self.head)


def _kill(*processes: int) -> None:
    for process in {below for each in processes for below in (each, *_below(each))}:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _below(ancestor: int) -> list[int]:
    every = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [process for process in every if _is_below(process, ancestor)]


def _title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


def _is_below(process: int, ancestor: int) -> bool:
    while process > 1:
        try:
            process = parent(process)
        except IndexError:  # it has ended
            return False
        if process == ancestor:
            return True
    return False


@pytest.fixture(scope="module")
def nodes() -> Generator[Nodes]:
    """Three nodes in processes of their own."""
    words = (sys.executable, "-m", "tests.integration.nodes", str(NODES))
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=root, text=True, **pipes) as running:  # type: ignore[call-overload]
        assert running.stdin
        assert running.stdout
        try:
            started: dict[str, Any] = json.loads(running.stdout.readline())
            yield Nodes(**started)
        finally:
            running.stdin.close()
            running.wait(60)


@pytest.fixture(scope="module")
def unsharded(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What one process alone measures."""
    folder = tmp_path_factory.mktemp("alone") / "whole"
    return folder, finish(words(pair, folder), folder)


def words(pair: Pair, folder: Path, *more: str) -> list[str]:
    made = command(pair.small.base_url, pair.large.base_url, folder)
    made[made.index("--limit") + 1] = str(PROBLEMS)
    return [*made, *more]


def figures(standings: list[dict[str, Any]]) -> list[list[Any]]:
    """What does not depend on how long anything took."""
    same = ("name", "n", "accuracy", "accuracy_interval", "accept_rate", "share_large_tokens")
    return [
        [*(each["result"][name] for name in same), *(each[name] for name in ("difference", "p", "outcomes"))]
        for each in standings
    ]


def sessions(folder: Path) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = orjson.loads((folder / "run.json").read_bytes())["sessions"]
    return recorded


def test_three_workers_produce_the_samples_of_one_process(
    pair: Pair, nodes: Nodes, unsharded: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    shared = finish(words(pair, folder, "--ray", nodes.address, "--traces"), folder)
    assert found(folder) == found(unsharded[0])
    assert figures(shared) == figures(unsharded[1])
    assert len(samples(folder)) == EVERY
    traces = list((folder / "traces").iterdir())
    assert len(traces) == EVERY - PROBLEMS  # the arm plain is one ordinary request, without events
    assert all(replay(moment.event for moment in read(trace)).finished for trace in traces)
    (session,) = sessions(folder)
    assert session["ray"]["workers"] == len(session["ray"]["nodes"]) == NODES
    hired = session["ray"]["hired"]
    assert len({worker["node"] for worker in hired}) == len(hired) > 1
    assert not any("lost" in worker for worker in hired)


def test_a_driver_killed_in_the_middle_is_resumed_by_the_same_command_with_and_without_ray(
    pair: Pair, nodes: Nodes, unsharded: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    kill_in_the_middle(words(pair, folder, "--ray", nodes.address), folder, after=5)
    kept = samples(folder)
    assert 5 <= len(kept) < EVERY
    resumed = finish(words(pair, folder), folder)
    assert samples(folder)[: len(kept)] == kept
    assert len(samples(folder)) == EVERY
    assert found(folder) == found(unsharded[0])
    assert figures(resumed) == figures(unsharded[1])
    assert ["ray" in session for session in sessions(folder)] == [True, False]


def test_a_node_killed_in_the_middle_costs_no_sample(
    pair: Pair, nodes: Nodes, unsharded: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder = tmp_path / "hit"
    begun = words(pair, folder, "--ray", nodes.address, "--workers", str(NODES))
    with subprocess.Popen(begun, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        busy = list[int]()
        busy = wait_for(running, lambda: nodes.busy() if samples(folder) else [])
        nodes.kill(busy[0])
        stdout, stderr = running.communicate(timeout=DEADLINE)
    assert running.returncode == 0, stderr
    assert figures(orjson.loads(stdout)) == figures(unsharded[1])  # nor is there anything of Ray's around it
    assert len(samples(folder)) == len(found(folder)) == EVERY
    assert found(folder) == found(unsharded[0])
    assert "was lost" in stderr
    assert "(raylet)" not in stderr
    assert sum("lost" in worker for worker in sessions(folder)[0]["ray"]["hired"]) == 1


def test_a_run_goes_on_without_the_head_and_when_the_cluster_is_lost_the_same_command_goes_on(
    pair: Pair, nodes: Nodes, unsharded: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder = tmp_path / "headless"
    begun = words(pair, folder, "--ray", nodes.address)
    with subprocess.Popen(begun, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_for(running, lambda: len(samples(folder)) >= 2)
        nodes.kill_head()
        more = len(samples(folder)) + 2
        wait_for(running, lambda: len(samples(folder)) >= more)
        while nodes.raylets:
            nodes.kill(nodes.raylets[0])
        killed = time.monotonic()
        _, stderr = running.communicate(timeout=DEADLINE)
    kept = samples(folder)
    print(
        f"it ended {time.monotonic() - killed:.0f} s later with {running.returncode} and {len(kept)} samples: {stderr}"
    )
    assert running.returncode == 1
    assert "the Ray cluster is lost: its head at" in stderr
    assert "the same command goes on from there" in stderr
    assert "Traceback" not in stderr
    assert len(kept) < EVERY
    resumed = finish(words(pair, folder), folder)
    assert samples(folder)[: len(kept)] == kept
    assert found(folder) == found(unsharded[0])
    assert figures(resumed) == figures(unsharded[1])
