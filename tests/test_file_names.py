"""Names from elsewhere that become files, or do not: none of them leads out of its folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.benchmarks import own
from stepspec.evals.runner import trace_name

from .service.served import TURN, serving

LEADING_OUT = (
    "..",
    "../../escape",
    "a/../../escape",
    "/escape",
    "//escape",
    "\\..\\escape",
    "./../escape",
)
ODD = (
    ".",
    "...",
    "a\0escape",
    "\0",
    "~/escape",
    "a\nescape",
    "-escape",
    "\ud800escape",
    "\N{DIVISION SLASH}escape",
    "é",
)
NAMES = (*LEADING_OUT, *ODD)
MARK = "escape"
_watched: list[list[str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in (
        "open",
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.listdir",
        "os.scandir",
    ):
        _watched[-1] += [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes)]


@pytest.fixture
def touched() -> Iterator[list[str]]:
    """
    The paths of all files and folders that Python code opens, makes, lists or moves meanwhile.
    """
    sys.addaudithook(_watch)  # for good, as no hook can be taken back
    _watched.append([])
    try:
        yield _watched[-1]
    finally:
        _watched.pop()


def within(folder: Path, name: str) -> bool:
    """Write a file called *name* into *folder*; return whether it is there, and nowhere else."""
    path = folder / name
    path.write_bytes(b"")
    return path.resolve().parent == folder.resolve() and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_of_a_sample_stays_in_its_folder_whatever_its_arm(
    tmp_path: Path, name: str
) -> None:
    assert within(tmp_path, trace_name(3, name))


@pytest.mark.parametrize(
    "name",
    ["...jsonl", "....jsonl", "..mine.jsonl", "../../mine.jsonl", "/mine.jsonl", "mine.jsonl"],
)
def test_the_folder_of_a_run_is_a_folder_of_runs_whatever_the_file_of_problems(name: str) -> None:
    runs = Path("runs")
    folder = runs / own(Path(name)).name
    assert folder.name in ("mine", "problems")
    assert folder.parent == runs


async def test_no_name_in_a_request_is_a_path(touched: list[str], tmp_path: Path) -> None:
    (tmp_path / MARK).write_bytes(b"")
    assert [path for path in touched if MARK in path]
    touched.clear()
    async with serving() as served:
        for name in LEADING_OUT:
            await served.chat(method=f"{name}{MARK}")
            await served.chat(user=f"{name}{MARK}", stepspec={"method": f"{name}{MARK}"})
            headers = dict.fromkeys(
                ("X-Session-ID", "X-Request-Id", "traceparent"), f"{name}{MARK}"
            )
            reply = await served.post(
                "/v1/chat/completions", {"model": "auto", "messages": [TURN]}, **headers
            )
            assert reply.status == 200
            quoted = name.replace("/", "%2f")
            for path in (
                f"/{quoted}{MARK}",
                f"/v1/models/{quoted}{MARK}",
                f"/v1/models/{name}{MARK}",
            ):
                assert (await served.get(path)).status == 404
        assert not [path for path in touched if MARK in path]
