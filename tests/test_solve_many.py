"""`stepspec solve --problems`: lines in, lines out, and a file that can be continued."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec.cli.many import solution_file
from stepspec.cli.problems import FileProblem, read_problems
from stepspec.orchestrator import trace
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Started

from .stand_in import Latency, StandIn
from .test_cli import call

pytestmark = pytest.mark.usefixtures("nowhere")

ROOT = Path(__file__).parents[1]
TOO_LONG = "long " * 3000  # more than the stand-in's context holds


@contextmanager
def serving(server: StandIn) -> Generator[str]:
    """Serve in a thread of its own: the command has the event loop of this one."""
    urls: list[str] = []
    begun = threading.Event()
    ended = threading.Event()

    async def serve() -> None:
        async with server.listening() as url:
            urls.append(url)
            begun.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(60)
        yield urls[0]
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    with serving(StandIn(steps=2, step_tokens=5, room=2048)) as url:
        monkeypatch.setenv("STEPSPEC_SMALL", url)
        monkeypatch.setenv("STEPSPEC_LARGE", url)
        yield


def lines(path: Path | str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_lines_are_texts_or_json_and_ids_are_unique(nowhere: Path) -> None:
    file = nowhere / "problems.jsonl"
    file.write_text(
        '\ufeffone\n\n{"problem": "two", "id": 7}\n  one \n{"question": "a\u2028b", "id": "x"}\n'
    )
    first, second, again, last = read_problems(file)
    assert (first.text, second, again.text, last) == (
        "one",
        FileProblem(7, "two"),
        "one",
        FileProblem("x", "a\u2028b"),
    )
    assert again.id == f"{first.id}-2"
    assert [problem.id for problem in read_problems(file, 2)] == [first.id, 7]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "the file is empty"),
        ("ok\n{broken\n", "line 2: a line that begins with a brace"),
        ('{"text": "x"}\n', 'line 1: .*a JSON object with "problem"'),
        ('{"problem": ["x"]}\n', 'line 1: a line .* with "problem", a text'),
        ('{"problem": "x", "id": true}\n', 'line 1: .* "id", a text or a whole number'),
        (
            '{"problem": "x", "id": 1}\n{"problem": "y", "id": 1}\n',
            "line 2: the id 1 is there twice",
        ),
    ],
)
def test_a_file_that_holds_no_problems_is_refused(
    content: str, complaint: str, nowhere: Path
) -> None:
    (nowhere / "problems.jsonl").write_text(content)
    with pytest.raises(ConfigurationError, match=complaint):
        read_problems(nowhere / "problems.jsonl")


@pytest.mark.usefixtures("pair")
def test_one_that_fails_has_its_error_in_its_line_and_is_tried_again(
    nowhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": "a", "problem": "1 + 1"},
        {"id": "b", "problem": TOO_LONG},
        {"id": "c", "problem": "1 + 2"},
    ]
    (nowhere / "problems.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    command = "solve", "--problems", "problems.jsonl", "--concurrency", "2", "-o", "solved.jsonl"
    assert call(*command, "--trace", "traces") == 1
    assert "1 of 3 problems failed" in capfd.readouterr().err
    solved = {line["id"]: line for line in lines("solved.jsonl")}
    assert solved.keys() == {"a", "b", "c"}
    assert (solved["a"]["answer"], solved["a"]["finish_reason"]) == ("42", "stop")
    assert solved["b"]["error"]["type"] == "ContextTooLong"
    assert {path.name for path in Path("traces").iterdir()} == {"00001.jsonl", "00003.jsonl"}

    rows[1]["problem"] = "1 + 3"
    (nowhere / "problems.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    before = [line for line in lines("solved.jsonl") if line["id"] != "b"]
    assert call(*command) == 0
    *kept, new = lines("solved.jsonl")
    assert kept == before  # as they were: solved only once
    assert (new["id"], new["problem"], new["answer"]) == ("b", "1 + 3", "42")
    assert call(*command, "--temperature", "0") == 2
    assert (
        "solved.jsonl holds solutions that were made with other models or settings"
        in capfd.readouterr().err
    )
    assert call(*command, "--temperature", "0", "--fresh") == 0
    assert len(lines("solved.jsonl")) == 3


@pytest.mark.usefixtures("pair")
def test_without_a_file_the_lines_go_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\nthird\n"))
    assert (
        call(
            "solve", "--problems", "-", "--limit", "2", "--system", "Be brief.", "--trace", "traces"
        )
        == 0
    )
    printed = [orjson.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["problem"] for line in printed] == ["first", "second"]
    started = [moment.event for path in Path("traces").iterdir() for moment in trace.read(path)[:1]]
    posed = [
        [message.content for message in event.messages]
        for event in started
        if isinstance(event, Started)
    ]
    assert sorted(posed) == [["Be brief.", "first"], ["Be brief.", "second"]]


@pytest.mark.usefixtures("pair")
def test_one_answer_goes_to_a_file_too(nowhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("solve", "6 x 7", "-o", "answer.txt") == 0
    assert (nowhere / "answer.txt").read_text() == "42\n"
    assert capfd.readouterr().out == ""
    assert call("solve", "6 x 7", "--json", "-o", "answer.json") == 0
    assert orjson.loads((nowhere / "answer.json").read_bytes())["answer"] == "42"


@pytest.mark.usefixtures("pair")
def test_verbose_logs_requests(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("solve", "6 x 7", "--json") == 0
    assert "GET" not in capfd.readouterr().err
    assert call("solve", "6 x 7", "--json", "-v") == 0
    printed = capfd.readouterr()
    # each line once
    assert len(re.findall(r"^GET http://\S+/v1/models: 200$", printed.err, re.MULTILINE)) == 2
    assert orjson.loads(printed.out)["answer"] == "42"
    assert call("solve", "6 x 7", "--json") == 0
    assert "GET" not in capfd.readouterr().err


def test_ctrl_c_leaves_whole_lines_and_the_command_goes_on(nowhere: Path) -> None:
    (nowhere / "problems.txt").write_text("".join(f"{number} + 1\n" for number in range(8)))
    words = [
        sys.executable,
        "-m",
        "stepspec",
        "solve",
        "--problems",
        "problems.txt",
        "-o",
        "solved.jsonl",
    ]
    with serving(StandIn(steps=2, step_tokens=10, latency=Latency(token=0.01))) as url:
        urls = {
            "STEPSPEC_SMALL": url,
            "STEPSPEC_LARGE": url,
            "PYTHONPATH": str(ROOT / "src"),
            "no_proxy": "*",
        }
        with subprocess.Popen(words, env=os.environ | urls, stderr=subprocess.PIPE) as first:
            path = nowhere / "solved.jsonl"
            while not (path.is_file() and path.read_bytes().count(b"\n")):
                assert first.poll() is None
                time.sleep(0.01)
            first.send_signal(signal.SIGINT)
            _, errors = first.communicate(timeout=60)
        assert first.returncode == 130, errors.decode()
        before = lines(path)
        assert 1 <= len(before) < 8
        second = subprocess.run(words, env=os.environ | urls, check=False, timeout=120)
    assert second.returncode == 0
    assert lines(path)[: len(before)] == before
    assert sorted(line["problem"] for line in lines(path)) == [
        f"{number} + 1" for number in range(8)
    ]


def test_what_an_interruption_leaves_is_continued(nowhere: Path) -> None:
    path = nowhere / "solved.jsonl"
    problems = [FileProblem(number, "x") for number in range(4)]
    with solution_file(path, "d") as file:
        file.write(problems[0], answer="0")
        file.write(problems[1], error={"type": "E", "message": "m"})
        file.write(problems[2], answer="2")
        with (
            pytest.raises(ConfigurationError, match="being written by another command"),
            solution_file(path, "d"),
        ):
            pass
    with path.open("ab") as torn:
        torn.write(b'{"id": 3, "prob')
    with solution_file(path, "d") as file:
        assert file.solved == {problems[0], problems[2]}
        with path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(problems[3], answer="3")
    assert [line["id"] for line in lines(path)] == [0, 2, 3]
    assert [each.name for each in nowhere.iterdir()] == ["solved.jsonl"]


@pytest.mark.parametrize("content", [b"text\n", b"[1]\n", b'{"id": 1}\n'])
def test_another_file_is_not_touched(content: bytes, nowhere: Path) -> None:
    path = nowhere / "notes.txt"
    path.write_bytes(content)
    with (
        pytest.raises(ConfigurationError, match="line 1, is no solution"),
        solution_file(path, "d"),
    ):
        pass
    assert path.read_bytes() == content


def test_a_device_is_written_to_and_never_read() -> None:
    with (
        pytest.raises(OSError, match="No space left on device"),
        solution_file(Path("/dev/full"), "d") as file,
    ):
        file.write(FileProblem(1, "1 + 1"), answer="2")
