"""
Every block of a shell in the documents is run, unless its mark says what it needs that a test does
not have.

Two servers that imitate models stand in for those of the document, and small files for data sets,
which are on the hub. Single commands that need more are in `ELSEWHERE`, with the reason. The
tutorial is run by ``tests/integration/test_tutorial.py``, and the commands of the plugin by
``tests/integration/test_clean_environment.py``.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from ..stand_in import stand_in_process
from .blocks import DOCUMENTS, ROOT, SHELLS, Block, blocks
from .tutorial import LARGE, PAGE, SMALL, Session, free_port

pytestmark = pytest.mark.timeout(600)

PROBLEMS = 20  # half of them are enough for the promise of MAX_LOSS
MAX_LOSS = "0.5"
ANSWER = "42"  # what the imitations always say

ELSEWHERE: Mapping[str, str] = {
    r"^make (?:faults|soak)|\blab\.(?:kills|soak)": "takes minutes: tests/lab",
    r"--testbed": "starts the miniature pair: tests/integration",
    r"^stepspec demo": "starts the miniature pair: tests/integration",
    r"--ray\b": "needs a cluster: tests/evals/test_ray_pool.py",
    r"^stepspec up": "needs a GPU; its dry runs: tests/test_recipes.py",
    r"--critic": "needs a reward model: tests/integration/test_critic.py",
    r"^stepspec tune": "says by its exit code that imitations do not pay: tests/evals/tune",
    r"^stepspec calibrate problems\.jsonl -p bild": (
        "needs hundreds of problems: tests/evals/calibration"
    ),
    r"^python -m lab\.grading": "reads the solutions of a data set: tests/lab/test_grading.py",
}
"""Patterns of single commands that are not run here, and why."""

STAYS = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:stepspec serve|python -m tests\.stand_in)\b")

HERE: Mapping[str, str] = {
    r" --(?:small|large) (?:\.\.\.|URL|https?://\S+)": "",  # the environment names the servers
    r"http://a:8000/v1 http://b:8000/v1": f"{SMALL}/v1 {LARGE}/v1",
    r" \.\.\.$": "",
    r"^(stepspec (?:eval|calibrate) (?:gsm8k|math500|aime24)(?!.* --data))": (
        r"\1 --data problems.parquet"
    ),
    r"(stepspec eval .*?)(?: (?:--limit|-n) \d+|$)": r"\1 -n 4",
    r"^(stepspec eval .*)$": r"\1 --fresh",  # the folder has what an earlier command left
    r"--accepted [\d.,]+": "--accepted 0.8",
    r"--speed [\d,]+": "--speed 2",
    r"--samples \d+": "--samples 2",
    r"--minutes \d+": "--minutes 0.1",
    r"--max-loss [\d.]+(?= |$)": f"--max-loss {MAX_LOSS}",
    r"^(stepspec calibrate (?!.*--values).*)": r"\1 --values 8",
    r"--values [\d,]+": "--values 8",
    r"--port 800\d": "--port 0",
}
"""
What is replaced in a command, in this order: servers, data sets on the hub, and what takes long.
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers that imitate models listen, without ``/v1``."""

    small: str
    large: str


def to_run() -> Iterator[ParameterSet]:
    """
    Yield each block with its commands as a test runs them: those of `ELSEWHERE` left out, and each
    command once.
    """
    seen = set[str]()
    for document in DOCUMENTS:
        for block in blocks(document.read_text(encoding="utf-8")):
            if document != PAGE and block.language in SHELLS and not block.mark.startswith("needs"):
                wanted = [here(command) for command in block.commands if elsewhere(command) is None]
                if commands := [
                    command for command in dict.fromkeys(wanted) if command not in seen
                ]:
                    seen.update(commands)
                    yield pytest.param(
                        block, commands, id=f"{document.relative_to(ROOT)}:{block.line}"
                    )


def elsewhere(command: str) -> str | None:
    """The pattern of `ELSEWHERE` that *command* matches."""
    return next((pattern for pattern in ELSEWHERE if re.search(pattern, command)), None)


def here(command: str) -> str:
    """*command* with what a test has instead of what a user has."""
    command = " ".join(re.sub(r"(?<=\s)#.*$", "", command).split())
    for pattern, text in HERE.items():
        command = re.sub(pattern, text, command)
    return command


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with (
        stand_in_process("--model", "small", "--steps", "3") as small,
        stand_in_process("--model", "large", "--steps", "3") as large,
    ):
        yield Servers(small, large)


@pytest.fixture(scope="module")
def material(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A folder with what the documents' commands read: files of their names, and the results of
    earlier commands.
    """
    folder = tmp_path_factory.mktemp("material")
    rows = [
        {"id": str(n), "problem": f"What is {n} + {42 - n}?", "answer": ANSWER, "key": "B"}
        for n in range(PROBLEMS)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    for name in ("problems.jsonl", "math500.jsonl"):
        (folder / name).write_text(lines)
    (folder / "problems.txt").write_text("".join(f"{row['problem']}\n" for row in rows[:4]))
    (folder / "problem.txt").write_text(rows[0]["problem"])
    graded = [{"question": row["problem"], "answer": f"It is 42.\n#### {ANSWER}"} for row in rows]
    (folder / "gsm8k.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in graded))
    columns = {"problem": "problem", "question": "problem", "answer": "answer", "key": "key"}
    pa: Any = importlib.import_module("pyarrow")  # it has no types
    pq: Any = importlib.import_module("pyarrow.parquet")
    table = pa.table({name: [row[column] for row in rows] for name, column in columns.items()})
    for name in ("exam.parquet", "problems.parquet"):
        pq.write_table(table, folder / name)
    pq.write_table(pa.Table.from_pylist(graded), folder / "gsm8k.parquet")
    (folder / "examples").mkdir()
    made = run(
        Block("console", "", "", 0),
        [
            "stepspec eval math500 --data math500.jsonl -p specreason -n 4 --traces",
            "stepspec eval gsm8k --data gsm8k.jsonl -p specreason -n 4 --traces",
            (
                f"stepspec calibrate problems.jsonl --max-loss {MAX_LOSS} --values 8 --output"
                " calibrated.toml"
            ),
            "stepspec solve 'What is 6 x 7?' --trace run.jsonl",
        ],
        folder,
        servers,
    )
    assert made == []
    # of other problems than those that a document calibrates on
    for trials in folder.glob("*.trials.jsonl"):
        trials.unlink()
    shutil.copy(folder / "calibrated.toml", folder / "policy.toml")
    (folder / "traces").mkdir()
    shutil.copy(folder / "run.jsonl", folder / "traces")
    return folder


def run(block: Block, commands: list[str], folder: Path, servers: Servers) -> list[str]:
    """Run *commands* in a *folder*; return those that failed, with what they printed."""
    session = Session(folder, servers.small, servers.large, free_port())
    session.exports += [f"export STEPSPEC_SMALL={SMALL}/v1 STEPSPEC_LARGE={LARGE}/v1"]
    # a clone has the stand-in
    session.exports += [f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{ROOT}"']
    failed: list[str] = []
    for command in commands:
        stays = "run: in the background" if STAYS.search(command) else ""
        for ran in session.run(
            replace(block, language="console", text=f"$ {command}\n", mark=stays)
        ):
            if ran.code:
                failed.append(f"{ran.command}: exit code {ran.code}\n{ran.output}")
        session.close()
        session.background.clear()
    return failed


@pytest.mark.parametrize(("block", "commands"), [*to_run()])
def test_commands_run(
    block: Block, commands: list[str], servers: Servers, material: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(material, folder, symlinks=True)
    assert run(block, commands, folder, servers) == []


def test_every_command_that_is_not_run_is_in_a_document() -> None:
    commands = [
        command
        for document in DOCUMENTS
        for block in blocks(document.read_text(encoding="utf-8"))
        if block.language in SHELLS and not block.mark
        for command in block.commands
    ]
    assert {pattern for command in commands if (pattern := elsewhere(command))} == {*ELSEWHERE}


def test_a_command_that_fails_is_reported(tmp_path: Path) -> None:
    (failed,) = run(
        Block("console", "", "", 1), ["true", "exit 3"], tmp_path, Servers("http://a", "http://b")
    )
    assert failed.startswith("exit 3: exit code 3")
