"""GuideLLM, against a method in both APIs, and against the large model by its own name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepspec.evals.testbed.servers import SHORT, find_world

from ..conftest import Pair
from .conftest import EXAMPLES, MARKS, PROBLEM, Report, Run

pytestmark = MARKS
TOKENIZER = str(find_world(SHORT).models / "large")
PROBLEMS = [PROBLEM, *EXAMPLES][:6]
ROOM = 400  # tokens, which GuideLLM asks for with ignore_eos


def measured(run: Run, folder: Path, model: str, room: int, more: str = "") -> Report:
    """Run the benchmark, and return its report."""
    rows = [{"prompt": problem.text, "output_tokens_count": room} for problem in PROBLEMS]
    (folder / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run("guidellm", model, TOKENIZER, more, folder=folder)
    report: Report = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/responses"])
def test_a_method_is_measured(run: Run, tmp_path: Path, api: str) -> None:
    report = measured(run, tmp_path, "specreason", ROOM, f",request_format={api}")
    (tmp_path.parent / f"guide{api.replace('/', '-')}.json").write_text(json.dumps(report))
    assert report == 1


def test_the_large_model_by_its_own_name_is_measured(run: Run, pair: Pair, tmp_path: Path) -> None:
    report = measured(run, tmp_path, pair.large.served_name, 40)
    assert report == 1
