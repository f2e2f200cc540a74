"""``stepspec eval`` on real servers: a killed run is resumed with the same figures."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]  # four whole runs of the command

T = TypeVar("T")
PROBLEMS = 3
METHODS = ("specreason", "bild:ahead=1")
ARMS = 5  # the methods, both models alone, and a control
DEADLINE = 240.0  # seconds


def command(small: str, large: str, folder: Path) -> list[str]:
    methods = [word for name in METHODS for word in ("--policy", name)]
    return [
        sys.executable, "-m", "stepspec", "eval", "arithmetic", "--small", small, "--large", large, *methods,
        "--random", "specreason", "--temperature", "0", "--limit", str(PROBLEMS), "--output", str(folder), "--json",
    ]  # fmt: skip


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
    with subprocess.Popen(words, cwd=folder.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        wait_for(running, lambda: len(samples(folder)) >= after)
        running.send_signal(signal.SIGKILL)


def finish(words: list[str], folder: Path) -> list[dict[str, Any]]:
    ended = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    figures: list[dict[str, Any]] = orjson.loads(ended.stdout)
    return figures


def found(folder: Path) -> dict[tuple[int, str], Any]:
    """What does not depend on how long anything took, of every sample."""
    made = [orjson.loads(line) for line in samples(folder)]
    return {
        (sample["task"], sample["arm"]): (
            *(sample[name] for name in ("outcome", "correct", "answer", "seed", "options")),
            *(sample["ledger"][role]["kept"] for role in ("small", "large")),
            *(sample["ledger"][name] for name in ("drafts", "accepted")),
        )
        for sample in made
    }


def test_a_killed_and_resumed_run_has_the_figures_of_an_undisturbed_one(pair: Pair, tmp_path: Path) -> None:
    full, cut = tmp_path / "whole", tmp_path / "cut"
    undisturbed = finish(command(pair.small.base_url, pair.large.base_url, full), full)
    again = command(pair.small.base_url, pair.large.base_url, cut)
    kill_in_the_middle(again, cut, after=4)
    kill_in_the_middle(again, cut, after=9)
    kept = samples(cut)
    assert 9 <= len(kept) < ARMS * PROBLEMS
    with (cut / "samples.jsonl").open("ab") as file:
        file.write(b'{"task": 2, "outcome": "ri')  # what a kill in the middle of a line leaves
    resumed = finish(again, cut)
    assert samples(cut)[: len(kept)] == kept
    assert len(samples(cut)) == len(found(cut)) == ARMS * PROBLEMS
    assert found(cut) == found(full)
    for one, other in zip(resumed, undisturbed, strict=True):
        assert one["result"]["name"] == other["result"]["name"]
        assert [one["result"][name] for name in ("n", "accuracy", "accuracy_interval", "accept_rate")] == [
            other["result"][name] for name in ("n", "accuracy", "accuracy_interval", "accept_rate")
        ]
        assert [one[name] for name in ("difference", "p", "outcomes")] == [
            other[name] for name in ("difference", "p", "outcomes")
        ]
    sessions = orjson.loads((cut / "run.json").read_bytes())["sessions"]
    first, second, third = (session["resumed"] for session in sessions)
    assert first == 0
    assert 4 <= second < third == len(kept)
