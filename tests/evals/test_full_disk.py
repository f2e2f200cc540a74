"""A full disk costs no answer, and what is on it already: the same command goes on from there."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from ..stand_in import stand_in_process
from ..test_cli import call

PROBLEMS = "".join(f'{{"problem": "6 x {number}?", "answer": "42"}}\n' for number in range(12))


@pytest.fixture(scope="module")
def servers() -> Generator[tuple[str, ...]]:
    with stand_in_process("--steps", "4") as small, stand_in_process("--steps", "4") as large:
        yield ("--small", small, "--large", large)


@pytest.fixture
def folder(nowhere: Path) -> Path:
    (nowhere / "problems.jsonl").write_text(PROBLEMS)
    return nowhere


def full(room: int) -> Callable[[], None]:
    """
    Let no file of a process grow beyond *room* bytes, and fail a write beyond it as on a full disk.
    """
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


def run(*words: str, room: int | None = None) -> tuple[int, str, str]:
    command = (sys.executable, "-m", "stepspec", *words)
    limit = None if room is None else full(room)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    return done.returncode, done.stdout, done.stderr


def test_a_trace_or_a_file_on_a_full_disk_costs_no_answer(
    servers: tuple[str, ...], nowhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("solve", "6 x 7?", *servers, "--trace", "/dev/full") == 0
    printed = capfd.readouterr()
    assert printed.out == "42\n"
    assert "the trace is not written to /dev/full: No space left on device" in " ".join(
        printed.err.split()
    )
    for output, code, complaint in (
        ("-", 0, ""),
        ("/dev/full", 1, "error: /dev/full cannot be written: No space"),
    ):
        assert call("solve", "6 x 7?", *servers, "--output", output) == code
        printed = capfd.readouterr()
        assert printed.out == "42\n"
        assert complaint in printed.err
    assert not [*nowhere.iterdir()]


def test_an_evaluation_on_a_full_disk_is_gone_on_with_and_its_report_is_an_error_of_one_line(
    servers: tuple[str, ...], folder: Path
) -> None:
    words = ("eval", "problems.jsonl", "--output", "out", "-p", "specreason", *servers)
    samples = Path("out/samples.jsonl")
    code, _, stderr = run(*words, room=12_000)
    assert code == 1
    assert "Traceback" not in stderr
    assert f"error: {samples} cannot be written (File too large): make room there" in stderr
    kept = samples.read_bytes().rpartition(b"\n")[0]
    assert kept.count(b"\n") >= 2
    code, _, stderr = run(*words)
    assert code == 0, stderr
    assert samples.read_bytes().startswith(kept)
    code, _, stderr = run("report", "out", room=2_000)
    assert code != 0
    assert "Traceback" not in stderr
    assert "File too large" in stderr


def test_many_answers_on_a_full_disk_are_an_error_of_one_line(
    servers: tuple[str, ...], folder: Path
) -> None:
    words = ("solve", "--problems", "problems.jsonl", *servers, "--output", "answers.jsonl")
    code, _, stderr = run(*words, room=8_000)
    assert code == 1
    assert "Traceback" not in stderr
    assert "cannot be written" in stderr
    code, _, stderr = run(*words[:-1], "/dev/stdout")
    assert (code, stderr) == (
        2,
        "error: /dev/stdout is no file to go on in: leave --output out, or name one\n",
    )
    assert run(*words)[0] == 0
    assert (folder / "answers.jsonl").read_text().count("\n") == 12
