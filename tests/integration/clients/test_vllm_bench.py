"""``vllm bench serve``, against a method and against the large model by its own name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepspec.evals.testbed.servers import SHORT

from ..conftest import Pair
from .conftest import EXAMPLES, MARKS, PROBLEM, Report, Run, solved
from .service import Service, logged

pytestmark = MARKS
TOKENIZER = str(SHORT.model("large"))
PROBLEMS = [PROBLEM, *EXAMPLES][:6]
ROOM, FORCED = 400, 40  # tokens


def bench(run: Run, service: Service, folder: Path, model: str, *flags: str) -> Report:
    """Run the benchmark, and return what it has measured."""
    base = ("--base-url", service.base_url.removesuffix("/v1"), "--endpoint", "/v1/chat/completions")
    size = ("--num-prompts", str(len(PROBLEMS)), "--max-concurrency", "3", "--temperature", "0", "--disable-tqdm")
    saved = ("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", f"{model}.json")
    names = ("--backend", "openai-chat", "--model", model, "--tokenizer", TOKENIZER, "--request-id-prefix", model)
    run("vllm_bench", *names, *base, *size, *saved, *flags, folder=folder)
    measured: Report = json.loads((folder / f"{model}.json").read_text())
    return measured


def test_a_method_is_measured(run: Run, service: Service, tmp_path: Path) -> None:
    rows = [{"prompt": problem.text} for problem in PROBLEMS]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = ("--dataset-name", "custom", "--dataset-path", "prompts.jsonl", "--custom-output-len", str(ROOM))
    forced = ("--ignore-eos", "--extra-body", json.dumps({"min_tokens": ROOM}))
    order = ("--disable-shuffle", "--skip-chat-template")
    measured = bench(run, service, tmp_path, "specreason", *data, *forced, *order)
    assert (measured["completed"], measured["failed"]) == (len(PROBLEMS), 0)
    for text, problem in zip(measured["generated_texts"], PROBLEMS, strict=True):
        assert solved(text, problem)
    written = measured["output_lens"]
    assert 0 < max(written) < ROOM  # neither ignore_eos nor min_tokens makes a run longer
    assert measured["total_output_tokens"] == sum(written)
    kept = [line["kept"] for line in logged(service.log) if line["event"] == "solved" and asked_by(line, "specreason")]
    assert not Counter(written) - Counter(kept)
    for first, gaps, problem in zip(measured["ttfts"], measured["itls"], PROBLEMS, strict=True):
        assert first > 0
        assert len(gaps) >= len(problem.operations)  # a chunk for each step


def asked_by(line: dict[str, Any], prefix: str) -> bool:
    return str(line["request_id"]).startswith(prefix)


def test_the_large_model_by_its_own_name_is_measured(run: Run, service: Service, pair: Pair, tmp_path: Path) -> None:
    data = ("--dataset-name", "random", "--random-input-len", "24", "--random-output-len", str(FORCED))
    measured = bench(run, service, tmp_path, pair.large.served_name, *data, "--ignore-eos")
    assert (measured["completed"], measured["failed"]) == (len(PROBLEMS), 0)
    written: Sequence[int] = measured["output_lens"]
    assert set(written) == {FORCED}  # vLLM itself honours ignore_eos
