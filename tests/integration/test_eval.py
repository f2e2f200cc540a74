"""
``stepspec eval`` on real servers, alone and on a Ray cluster: whoever is killed, the figures are
the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from stepspec.orchestrator.trace import read
from tests.fakes import replay

from .conftest import Pair
from .deployed import descendants, title

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]  # several whole runs of the command

T = TypeVar("T")
PROBLEMS = 4
METHODS = ("specreason", "bild:ahead=1")
ARMS = len(METHODS) + 2  # plain and small, too
EVERY = ARMS * PROBLEMS
NODES = 3
DEADLINE = 240.0  # seconds
SOLVING = "ray::StepspecWorker.solve"  # how Ray calls the process of a worker that solves


@dataclass(frozen=True, slots=True)
class Whole:
    """
    What one undisturbed process measures: the *samples*, without their times, and the *figures*.
    """

    samples: dict[tuple[int, str], Any]
    figures: list[list[Any]]


@pytest.fixture(scope="module")
def whole(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("alone") / "whole"
    standings = finish(command(pair, folder), folder)
    return Whole(found(folder), figures(standings))


def command(pair: Pair, folder: Path, *more: str) -> list[str]:
    methods = [word for name in METHODS for word in ("--policy", name)]
    urls = ("--small", pair.small.base_url, "--large", pair.large.base_url)
    return [
        sys.executable,
        "-m",
        "stepspec",
        "eval",
        "arithmetic",
        *urls,
        *methods,
        "--temperature",
        "0",
        "--limit",
        str(PROBLEMS),
        "--output",
        str(folder),
        "--json",
        *more,
    ]


def samples(folder: Path) -> list[bytes]:
    path = folder / "samples.jsonl"
    return path.read_bytes().splitlines(keepends=True)[1:] if path.is_file() else []


def wait_for(running: subprocess.Popen[Any], sought: Callable[[], T]) -> T:
    """Wait until what is *sought* of a run that has not ended is true; return it."""
    ends = time.monotonic() + DEADLINE
    while not (found := sought()):
        assert running.poll() is None, "the run ended by itself"
        assert time.monotonic() < ends, "the run does not get anywhere"
        time.sleep(0.02)
    return found


def kill_in_the_middle(words: list[str], folder: Path, after: int) -> None:
    """Begin the run, and kill it once *after* samples are on disk."""
    with subprocess.Popen(
        words, cwd=folder.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        wait_for(running, lambda: len(samples(folder)) >= after)
        running.send_signal(signal.SIGKILL)


def finish(words: list[str], folder: Path) -> list[dict[str, Any]]:
    ended = subprocess.run(
        words, cwd=folder.parent, capture_output=True, text=True, timeout=DEADLINE
    )
    assert ended.returncode == 0, ended.stderr
    figures: list[dict[str, Any]] = orjson.loads(ended.stdout)
    return figures


def found(folder: Path) -> dict[tuple[int, str], Any]:
    """What does not depend on how long anything took, of every sample."""
    made = [orjson.loads(line) for line in samples(folder)]
    return {
        (sample["task"], sample["arm"]): (
            *(sample[name] for name in ("outcome", "correct", "answer", "seed")),
            *(sample["ledger"][role]["kept"] for role in ("small", "large")),
            *(sample["ledger"][name] for name in ("drafts", "accepted")),
        )
        for sample in made
    }


def figures(standings: list[dict[str, Any]]) -> list[list[Any]]:
    """What does not depend on how long anything took."""
    same = ("name", "n", "accuracy", "difference", "outcomes", "accept_rate")
    return [[each[name] for name in same] for each in standings]


def sessions(folder: Path) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = orjson.loads((folder / "run.json").read_bytes())["sessions"]
    return recorded


def test_a_killed_and_resumed_run_has_the_figures_of_an_undisturbed_one(
    pair: Pair, whole: Whole, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    again = command(pair, cut)
    kill_in_the_middle(again, cut, after=4)
    kill_in_the_middle(again, cut, after=9)
    kept = samples(cut)
    assert 9 <= len(kept) < EVERY
    with (cut / "samples.jsonl").open("ab") as file:
        file.write(b'{"task": 2, "outcome": "ri')  # what a kill in the middle of a line leaves
    resumed = finish(again, cut)
    assert samples(cut)[: len(kept)] == kept
    assert len(samples(cut)) == EVERY
    assert found(cut) == whole.samples
    assert figures(resumed) == whole.figures
    first, second, third = (session["resumed"] for session in sessions(cut))
    assert first == 0
    assert 4 <= second < third == len(kept)


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster: its *address*, and the processes of its *head*, and of the other nodes."""

    address: str
    head: list[int]
    raylets: list[int]

    def busy(self) -> list[int]:
        """Those where a worker has something to solve."""
        return [
            raylet
            for raylet in self.raylets
            if any(SOLVING in title(process) for process in descendants(raylet))
        ]

    def kill(self, raylet: int) -> None:
        """End a node as a power cut does: everything on it, at once."""
        self.raylets.remove(raylet)
        _kill(raylet)

    def kill_all(self) -> None:
        """End the head and all nodes as a power cut does."""
        _kill(*self.head, *self.raylets)


def _kill(*processes: int) -> None:
    for process in {below for each in processes for below in (each, *descendants(each))}:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes() -> Generator[Nodes]:
    """Three nodes in processes of their own."""
    words = (sys.executable, "-m", "tests.integration.nodes", str(NODES))
    root = Path(__file__).parents[2]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=root, text=True, **pipes) as running:
        assert running.stdin
        assert running.stdout
        try:
            started: dict[str, Any] = json.loads(running.stdout.readline())
            yield Nodes(**started)
        finally:
            running.stdin.close()
            running.wait(60)


def test_on_a_cluster_a_killed_driver_and_then_a_killed_node_cost_no_sample(
    pair: Pair, nodes: Nodes, whole: Whole, tmp_path: Path
) -> None:
    folder = tmp_path / "hit"
    begun = command(pair, folder, "--ray", nodes.address, "--workers", str(NODES), "--traces")
    kill_in_the_middle(begun, folder, after=3)
    kept = samples(folder)
    assert 3 <= len(kept) < EVERY
    with subprocess.Popen(
        begun, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        busy = wait_for(running, lambda: nodes.busy() if len(samples(folder)) > len(kept) else [])
        nodes.kill(busy[0])
        stdout, stderr = running.communicate(timeout=DEADLINE)
    assert running.returncode == 0, stderr
    # nor is there anything of Ray's around it
    assert figures(orjson.loads(stdout)) == whole.figures
    assert samples(folder)[: len(kept)] == kept
    assert len(samples(folder)) == EVERY
    assert found(folder) == whole.samples
    assert "was lost" in stderr
    assert "(raylet)" not in stderr
    traces = list((folder / "traces").iterdir())
    assert len(traces) == EVERY - PROBLEMS  # the arm plain is one ordinary request, without events
    assert all(replay(moment.event for moment in read(trace)).finished for trace in traces)
    _, session = sessions(folder)
    assert session["ray"]["workers"] == len(session["ray"]["nodes"]) == NODES
    hired = session["ray"]["hired"]
    assert len({worker["node"] for worker in hired}) > 1
    assert sum("lost" in worker for worker in hired) == 1


def test_when_the_cluster_is_lost_the_same_command_goes_on_without_it(
    pair: Pair, nodes: Nodes, whole: Whole, tmp_path: Path
) -> None:
    """Ray ends the command a minute after the head; here it waits for a shorter time."""
    folder = tmp_path / "headless"
    begun = command(pair, folder, "--ray", nodes.address)
    environment = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "8"}
    with subprocess.Popen(
        begun, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        wait_for(running, lambda: len(samples(folder)) >= 2)
        nodes.kill_all()
        running.wait(DEADLINE)
    kept = samples(folder)
    kept = samples(folder)
    assert running.returncode != 0
    assert len(kept) < EVERY
    resumed = finish(command(pair, folder), folder)
    assert samples(folder)[: len(kept)] == kept
    assert found(folder) == whole.samples
    assert figures(resumed) == whole.figures
    assert ["ray" in session for session in sessions(folder)] == [True, False]
