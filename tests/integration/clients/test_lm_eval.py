"""lm-evaluation-harness: a task of one's own, and its gsm8k, on problems of the miniature pair."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepspec.evals.benchmarks.miniature import Problem

from ...worked import worked_steps
from .conftest import EXAMPLES, MARKS, MODEL, Service

pytestmark = MARKS
SHOTS = 5  # examples that gsm8k shows before each of its problems
QUESTIONS = EXAMPLES[: -SHOTS - 2]
SHOWN = EXAMPLES[-SHOTS:]

# Where the datasets library looks first: a folder of this name, which says what is in it as the
# hub's do.
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


def grade_school(problem: Problem) -> Mapping[str, str]:
    """Return *problem* as GSM8K writes one."""
    return {
        "question": problem.text,
        "answer": f"{''.join(worked_steps(problem.text))}#### {problem.answer}",
    }


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_task_of_ones_own_is_solved(service: Service, tmp_path: Path) -> None:
    """
    The folder where the harness is started has the problems of both tasks, each in its task's
    columns.
    """
    lines(
        tmp_path / "problems.jsonl",
        ({"problem": one.text, "answer": str(one.answer)} for one in QUESTIONS),
    )
    (tmp_path / GSM8K).mkdir(parents=True)
    (tmp_path / GSM8K / "README.md").write_text(CARD)
    lines(tmp_path / GSM8K / "train.jsonl", map(grade_school, SHOWN))
    lines(tmp_path / GSM8K / "test.jsonl", map(grade_school, QUESTIONS))
    report = service.report("lm_eval", MODEL, folder=tmp_path)
    scores = report["scores"]
    assert scores["miniature"]["exact_match,boxed"] > 0.6
    assert {"exact_match,strict-match", "exact_match,flexible-extract"} <= scores["gsm8k"].keys()
    assert report["targets"] == [str(one.answer) for one in QUESTIONS]
