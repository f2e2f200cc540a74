"""``vllm bench serve`` and GuideLLM, against a method."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.testbed.servers import LARGE

from ...worked import sentences
from .conftest import EXAMPLES, MARKS, PROBLEM, Service, solved

pytestmark = MARKS
TOKENIZER = str(LARGE)
PROBLEMS = [PROBLEM, *EXAMPLES][:3]
ROOM = 400  # tokens, which are asked for with ignore_eos


@pytest.fixture(autouse=True)
def rows(tmp_path: Path) -> None:
    rows = [{"prompt": problem.text, "output_tokens_count": ROOM} for problem in PROBLEMS]
    (tmp_path / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_guidellm_measures_a_method(service: Service, tmp_path: Path) -> None:
    request_format = ",request_format=/v1/responses"  # vLLM's benchmark sends chat completions
    service.run("guidellm", "specreason", TOKENIZER, request_format, folder=tmp_path)
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    assert (benchmark["requests"]["errored"], benchmark["requests"]["incomplete"]) == ([], [])
    requests = benchmark["requests"]["successful"]
    assert len(requests) == len(PROBLEMS)
    kept = Counter(line["kept"] for line in service.logged("solved"))
    for request in requests:
        body: dict[str, Any] = json.loads(request["request_args"])["body"]
        assert body["ignore_eos"] is True
        (problem,) = [problem for problem in PROBLEMS if problem.text in request["request_args"]]
        assert solved(request["output"], problem)
        assert 0 < request["output_metrics"]["text_tokens"] < ROOM  # ignore_eos makes no run longer
        timings = request["info"]["timings"]
        # In this API GuideLLM sees the answer alone, which may be one piece.
        assert timings["first_token_iteration"] <= timings["last_token_iteration"]
    assert not Counter(request["output_metrics"]["text_tokens"] for request in requests) - kept


def test_the_benchmark_of_vllm_measures_a_method(service: Service, tmp_path: Path) -> None:
    model = "specreason"
    service.run(
        *("vllm_bench", "--backend", "openai-chat", "--model", model, "--tokenizer", TOKENIZER),
        *("--base-url", service.base_url.removesuffix("/v1"), "--endpoint", "/v1/chat/completions"),
        *(
            "--num-prompts",
            str(len(PROBLEMS)),
            "--max-concurrency",
            "3",
            "--temperature",
            "0",
            "--disable-tqdm",
        ),
        *(
            "--save-result",
            "--save-detailed",
            "--result-dir",
            str(tmp_path),
            "--result-filename",
            "measured.json",
        ),
        *(
            "--dataset-name",
            "custom",
            "--dataset-path",
            "problems.jsonl",
            "--custom-output-len",
            str(ROOM),
        ),
        *(
            "--ignore-eos",
            "--extra-body",
            json.dumps({"min_tokens": ROOM}),
            "--request-id-prefix",
            model,
        ),
        *("--disable-shuffle", "--skip-chat-template"),
        folder=tmp_path,
    )
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert (measured["completed"], measured["failed"]) == (len(PROBLEMS), 0)
    for text, problem in zip(measured["generated_texts"], PROBLEMS, strict=True):
        assert solved(text, problem)
    written = measured["output_lens"]
    assert 0 < max(written) < ROOM  # neither ignore_eos nor min_tokens makes a run longer
    assert measured["total_output_tokens"] == sum(written)
    solutions = [
        line for line in service.logged("solved") if str(line["request_id"]).startswith(model)
    ]
    assert not Counter(written) - Counter(line["kept"] for line in solutions)
    for first, gaps, problem in zip(measured["ttfts"], measured["itls"], PROBLEMS, strict=True):
        assert first > 0
        assert len(gaps) >= len(sentences(problem.text))  # a chunk for each step
