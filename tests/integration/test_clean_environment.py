"""
What a newcomer does, in an environment that knows nothing of this clone: the wheel with its extras,
and every command.

Both servers are stand-ins for vLLM, run by the same environment; they answer every problem with 42.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

import pytest

from ..distributions import ROOT, Distributions, fresh, outside
from ..stand_in import stand_in_process

Run: TypeAlias = Callable[..., str]

PLUGIN = ROOT / "examples" / "plugin"
SOON = 60.0  # seconds for a program to start or to end, which is mostly importing
ANSWER = "42"
PROBLEMS = ("What is 6 x 7?", "What is 40 + 2?", "What is 84 / 2?")
CLIENT = """
import openai

reply = openai.OpenAI(api_key="any").chat.completions.create(
    model="specreason", messages=[{"role": "user", "content": "What is 6 x 7?"}]
)
print(reply.choices[0].message.content)
"""


def plugins() -> Mapping[str, Sequence[str]]:
    """
    Return the packages that extend stepspec, which are installed beside it: by path, the policies
    of each.

    This is the place of the example in examples/plugin, and of any further one.
    """
    found: dict[str, Sequence[str]] = {}
    for folder in [PLUGIN]:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        found[str(folder)] = [*project["entry-points"]["stepspec.policies"]]
    return found


@pytest.fixture(scope="module")
def programs(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The folder of the programs of an environment with the wheel, two extras, and what extends it.
    """
    place = tmp_path_factory.mktemp("clean") / "environment"
    return fresh(
        place, sys.executable, f"stepspec[serve,evals] @ {distributions.wheel.as_uri()}", *plugins()
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newcomer's folder, which holds three problems."""
    folder = tmp_path_factory.mktemp("home")
    rows = [json.dumps({"problem": problem, "answer": ANSWER}) for problem in PROBLEMS]
    (folder / "problems.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(programs: Path, home: Path) -> Run:
    """
    Run a program of the environment, and return what it prints; it must succeed without a warning.
    """

    def run(program: str, *arguments: str, **variables: str) -> str:
        done = subprocess.run(
            [programs / program, *arguments],
            cwd=home,
            env=environment(home) | variables,
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert "Warning" not in done.stderr
        return done.stdout

    return run


def environment(home: Path) -> dict[str, str]:
    return {**outside(), "HOME": str(home), "COLUMNS": "120"}


@contextmanager
def started(command: Sequence[str], home: Path, log: Path) -> Generator[Callable[[str], str]]:
    """
    Run *command* until the block ends; yield a function that waits for a line with a text and
    returns it.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=home, env=environment(home), stdout=output, stderr=subprocess.STDOUT
        )

    def line(text: str) -> str:
        deadline = monotonic() + SOON
        while process.poll() is None and monotonic() < deadline:
            for written in log.read_text().splitlines(keepends=True):
                if text in written and written.endswith("\n"):
                    return written.strip()
            sleep(0.05)
        raise AssertionError(f"{command} did not print {text!r}:\n{log.read_text()}")

    try:
        yield line
    finally:
        process.terminate()
        process.wait(SOON)


@pytest.fixture(scope="module")
def servers() -> Iterator[Sequence[str]]:
    """The options that name the two servers."""
    flags = ("--steps", "4", "--model")
    with stand_in_process(*flags, "small") as small, stand_in_process(*flags, "large") as large:
        yield ["--small", f"{small}/v1", "--large", f"{large}/v1"]


def test_nothing_of_the_clone_is_there(
    run: Run, programs: Path, distributions: Distributions
) -> None:
    assert run("stepspec", "--version").strip() == distributions.version
    origin = run("python", "-c", "import stepspec; print(stepspec.__file__)")
    assert origin.startswith(str(programs.parent))
    code = (
        "import importlib.util as util; print(*filter(util.find_spec, ['vllm', 'torch',"
        " 'transformers', 'pytest']))"
    )
    assert run("python", "-c", code).strip() == ""


def test_policies_are_listed(run: Run) -> None:
    printed = run("stepspec", "policies")
    names = {line.partition(" ")[0] for line in printed.splitlines()}
    assert {
        "specreason",
        "bild",
        "large",
        *(name for policies in plugins().values() for name in policies),
    } <= names


def test_the_doctor_checks_both_servers(run: Run, servers: Sequence[str]) -> None:
    assert "It works" in run("stepspec", "doctor", *servers)


@pytest.mark.parametrize(
    "policy", ["specreason", *(name for policies in plugins().values() for name in policies)]
)
def test_a_problem_is_solved(run: Run, servers: Sequence[str], home: Path, policy: str) -> None:
    words = ["--policy", policy, "--trace", f"{policy}.jsonl"]
    assert run("stepspec", "solve", PROBLEMS[0], *words, *servers).strip() == ANSWER
    run("stepspec", "trace", f"{policy}.jsonl")
    assert (home / f"{policy}.html").read_text().startswith("<!doctype html>")


def test_policies_are_measured_and_reported(run: Run, servers: Sequence[str], home: Path) -> None:
    printed = run(
        "stepspec", "eval", "problems.jsonl", "--policy", "specreason", "--json", *servers
    )
    assert json.loads(printed)
    _, *samples = [
        json.loads(line) for line in (home / "runs/problems/samples.jsonl").read_text().splitlines()
    ]
    arms = Counter(sample["arm"] for sample in samples if sample["correct"])
    assert arms == dict.fromkeys(("plain", "small alone", "specreason"), len(PROBLEMS))
    run("stepspec", "report", "runs/problems")
    report = (home / "runs/problems/report.html").read_text()
    assert "specreason" in report
    assert "100.0%" in report


def test_a_request_of_an_openai_client_is_answered(
    run: Run, programs: Path, servers: Sequence[str], home: Path
) -> None:
    command = [str(programs / "stepspec"), "serve", *servers, "--port", "0", "--log-format", "json"]
    with started(command, home, home / "service.log") as line:
        url = json.loads(line('"serving"'))["url"]
        assert ANSWER in run("python", "-c", CLIENT, OPENAI_BASE_URL=url)
