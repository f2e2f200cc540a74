"""lm-evaluation-harness: a task of one's own, and its gsm8k, on problems of the miniature pair."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.testbed.problems import Problem, worked_steps

from .conftest import EXAMPLES, MARKS, MODEL, Service

pytestmark = MARKS
SHOTS = 5  # examples that gsm8k shows before each of its problems
QUESTIONS, SHOWN = EXAMPLES[: -SHOTS - 2], EXAMPLES[-SHOTS:]

# Where the datasets library looks first: a folder of this name, which says what is in it as the hub's do.
GSM8K = "openai/gsm8k"
CARD = """\
---
configs:
- config_name: main
  data_files:
  - split: train
    path: train.jsonl
  - split: test
    path: test.jsonl
---
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the harness is started: with the problems of both tasks, each in its task's columns."""
    folder = tmp_path_factory.mktemp("lm_eval")
    lines(folder / "problems.jsonl", ({"problem": one.text, "answer": str(one.answer)} for one in QUESTIONS))
    (folder / GSM8K).mkdir(parents=True)
    (folder / GSM8K / "README.md").write_text(CARD)
    lines(folder / GSM8K / "train.jsonl", map(grade_school, SHOWN))
    lines(folder / GSM8K / "test.jsonl", map(grade_school, QUESTIONS))
    return folder


def grade_school(problem: Problem) -> Mapping[str, str]:
    """Return *problem* as GSM8K writes one."""
    return {"question": problem.text, "answer": f"{''.join(worked_steps(problem)[:-1])}#### {problem.answer}"}


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def results(service: Service, folder: Path) -> Path:
    """The folder that the harness writes its results to."""
    service.run("lm_eval", MODEL, folder=folder)
    return folder / "results" / MODEL


def samples(results: Path, task: str) -> list[dict[str, Any]]:
    (path,) = results.glob(f"samples_{task}_*.jsonl")
    return list(map(json.loads, path.read_text().splitlines()))


def test_a_task_of_ones_own_is_solved(results: Path) -> None:
    (path,) = results.glob("results_*.json")
    scores = json.loads(path.read_text())["results"]
    assert scores["miniature"]["exact_match,boxed"] > 0.6
    assert {"exact_match,strict-match", "exact_match,flexible-extract"} <= scores["gsm8k"].keys()
    assert [sample["target"] for sample in samples(results, "miniature")] == [str(one.answer) for one in QUESTIONS]
