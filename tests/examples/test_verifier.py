"""
The example's verifier of programs: what passes, what does not, and what the sandbox keeps a program
from.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepspec import Candidate, Chain, Rating

from .running import EXAMPLES, StandInPair, run_example


def load() -> Any:
    spec = importlib.util.spec_from_file_location(
        "code_verifier", EXAMPLES / "verifier/code_verifier.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = load()
isolated = pytest.mark.skipif(
    not example.namespaces(), reason="no user, network and process namespaces here"
)
# for programs that end by themselves, on a busy machine
PATIENT: dict[str, Any] = {"seconds": 60.0}


def run(program: str, **limits: Any) -> Any:
    return example.run(program, example.Limits(**{**PATIENT, **limits}))


def judge(program: str, monkeypatch: pytest.MonkeyPatch) -> Rating:
    monkeypatch.setattr(example, "Limits", lambda: None)
    monkeypatch.setattr(example.run, "__defaults__", (type(run_limits())(**PATIENT),))
    answer = f"Here it is.\n\n```python\n{program}\n```\n"
    rating: Rating = example.run_tests(Candidate.final(Chain.of(example.PROBLEM), answer))
    return rating


def run_limits() -> Any:
    return example.run.__defaults__[0]


def test_a_right_program_passes_and_a_wrong_one_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert judge("def double(n):\n    return n + n", monkeypatch) == Rating(1.0)
    wrong = judge("def double(n):\n    return n * n", monkeypatch)
    assert wrong.score == 0.0
    assert "AssertionError" in wrong.reason


@pytest.mark.parametrize(
    "program", ["raise SystemExit(0)", "import os\nos._exit(0)", "def double(n: return n"]
)
def test_a_program_that_never_reaches_the_tests_fails(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(program, monkeypatch).score == 0.0


def test_an_answer_without_a_program_is_rejected_and_a_problem_without_tests_is_no_verdict() -> (
    None
):
    answer = Candidate.final(Chain.of(example.PROBLEM), "It is n + n.")
    assert example.run_tests(answer) == Rating(0.0, "The answer has no block of Python.")
    with pytest.raises(ValueError, match="no block of tests"):
        example.run_tests(Candidate.final(Chain.of("What is 6 x 7?"), "```python\n42\n```"))


def test_an_endless_loop_is_killed_when_its_time_is_up() -> None:
    assert run("while True: pass", seconds=1.0).code is None
    candidate = Candidate.final(Chain.of(example.PROBLEM), "```python\nwhile True: pass\n```")
    assert example.run_tests(candidate) == Rating(0.0, "The program did not end in time.")


def test_a_program_that_sleeps_is_killed_too() -> None:
    assert run("import time\ntime.sleep(1000)", seconds=1.0).code is None


@pytest.mark.parametrize(
    ("program", "limits", "words"),
    [
        ("while True: pass", {"cpu": 1}, ""),
        ("x = bytearray(2**31)", {}, "MemoryError"),
        ("with open('big', 'wb') as file:\n    file.write(bytes(2**24))\n    file.flush()", {}, ""),
        ("while True: print('x' * 1000)", {}, ""),  # of which only the end is shown
        (
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
            {},
            "not allowed to raise",
        ),
    ],
    ids=["processor time", "memory", "files", "output", "raised"],
)
def test_a_limit_ends_the_program(program: str, limits: dict[str, Any], words: str) -> None:
    ended = run(program, **limits)
    assert ended.code not in (None, 0)
    assert words in ended.output
    assert len(ended.output) <= run_limits().shown


def test_a_fork_bomb_runs_into_the_limit_of_processes(tmp_path: Path) -> None:
    bomb = (
        "import os\nforks = 0\ntry:\n    while True:\n        os.fork()\nexcept OSError as exc:\n  "
        "  print(exc)"
    )
    ended = run(bomb)
    assert "temporarily unavailable" in ended.output


@isolated
def test_nothing_that_a_program_started_outlives_it() -> None:
    mark = f"outlives-{os.getpid()}-{time.monotonic_ns()}"
    daemon = (
        "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    os.execv(sys.executable,"
        f" [sys.executable, '-c', 'import time; time.sleep(1000)', {mark!r}])\nimport time;"
        " time.sleep(1)\n"
    )
    assert run(daemon).code == 0
    assert mark not in command_lines()


def command_lines() -> str:
    texts: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(texts)


@isolated
@pytest.mark.parametrize("host", ["127.0.0.1", "1.1.1.1"])
def test_there_is_no_network(host: str) -> None:
    ended = run(f"import socket\nsocket.create_connection(({host!r}, 80), timeout=5)")
    assert ended.code == 1
    assert "unreachable" in ended.output


def test_the_environment_and_the_folder_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "12345")
    ended = run(
        "import os\nprint(os.listdir('.'), 'SECRET_KEY' in os.environ, 'PATH' in os.environ,"
        " len(os.getcwd()))"
    )
    assert ended.output.startswith("[] False False ")


def test_files_of_other_users_cannot_be_read(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can run the programs as another user")
    secret = tmp_path / "secret"
    secret.write_text("12345")
    secret.chmod(0o600)
    ended = run(f"print(open({str(secret)!r}).read())")
    assert ended.code == 1
    assert "PermissionError" in ended.output


def test_without_namespaces_the_limits_hold_and_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_program(name: str) -> None:
        return None

    monkeypatch.setattr(example.shutil, "which", no_program)
    example.namespaces.cache_clear()
    try:
        assert run("print(6 * 7)").output == "42"
        assert run("while True: pass", seconds=1.0).code is None
        assert capsys.readouterr().err.count("programs can use the NETWORK") == 1
    finally:
        example.namespaces.cache_clear()


async def test_the_program_rejects_an_answer_without_a_program(
    pair: StandInPair, tmp_path: Path
) -> None:
    printed = await run_example(
        "verifier/code_verifier.py", variables=pair.settings, folder=tmp_path
    )
    answer, verdict = printed.strip().splitlines()
    assert answer.endswith("The answer is \\boxed{42}.")
    assert verdict == "failed: The answer has no block of Python."
