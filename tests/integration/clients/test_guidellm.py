"""GuideLLM, against a method in both APIs, and against the large model by its own name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.testbed.servers import SHORT

from ..conftest import Pair
from .conftest import EXAMPLES, MARKS, PROBLEM, Report, Run, solved
from .service import Service, logged

pytestmark = MARKS
TOKENIZER = str(SHORT.model("large"))
PROBLEMS = [PROBLEM, *EXAMPLES][:3]
ROOM, FORCED = 400, 40  # tokens, which GuideLLM asks for with ignore_eos


def measured(run: Run, folder: Path, model: str, room: int, more: str = "") -> Report:
    """Run the benchmark, and return its report."""
    rows = [{"prompt": problem.text, "output_tokens_count": room} for problem in PROBLEMS]
    (folder / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run("guidellm", model, TOKENIZER, more, folder=folder)
    report: Report = json.loads((folder / "report.json").read_text())
    return report


def successful(report: Report) -> Sequence[Report]:
    """Return its requests, if all succeeded."""
    (benchmark,) = report["benchmarks"]
    requests = benchmark["requests"]
    assert (requests["errored"], requests["incomplete"]) == ([], [])
    assert len(requests["successful"]) == len(PROBLEMS)
    made: Sequence[Report] = requests["successful"]
    return made


def asked(request: Report) -> dict[str, Any]:
    """Return the body that GuideLLM has sent."""
    body: dict[str, Any] = json.loads(request["request_args"])["body"]
    return body


@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/responses"])
def test_a_method_is_measured(run: Run, service: Service, tmp_path: Path, api: str) -> None:
    requests = successful(measured(run, tmp_path, "specreason", ROOM, f",request_format={api}"))
    problems = {problem.text: problem for problem in PROBLEMS}
    kept = Counter(line["kept"] for line in logged(service.log) if line["event"] == "solved")
    for request in requests:
        assert asked(request)["ignore_eos"] is True
        (problem,) = [problem for text, problem in problems.items() if text in request["request_args"]]
        assert solved(request["output"], problem)
        assert 0 < request["output_metrics"]["text_tokens"] < ROOM  # ignore_eos makes no run longer
        timings = request["info"]["timings"]
        assert timings["first_token_iteration"] <= timings["last_token_iteration"]
        if api == "/v1/chat/completions":  # In the other API it sees the answer alone, which may be one piece.
            assert timings["first_token_iteration"] < timings["last_token_iteration"]
    assert not Counter(request["output_metrics"]["text_tokens"] for request in requests) - kept
    if api == "/v1/chat/completions":
        options = {"include_usage": True, "continuous_usage_stats": True}
        assert all(asked(request)["stream_options"] == options for request in requests)
        assert all(len(request["reasoning_output"].split("\n\n")) > 2 for request in requests)


def test_the_large_model_by_its_own_name_is_measured(run: Run, pair: Pair, tmp_path: Path) -> None:
    requests = successful(measured(run, tmp_path, pair.large.served_name, FORCED))
    assert {request["output_metrics"]["text_tokens"] for request in requests} == {FORCED}  # vLLM honours ignore_eos
