"""Verifiers on real vLLM servers: its structured decisions, and answers of the miniature pair that are rewritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stepspec import Candidate, Chain, Rating, Solver
from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, AnswerJudged, Event
from stepspec.orchestrator.launcher import Served
from stepspec.orchestrator.verifiers import ConnectedVerifier, SystemOneVerifier

from .conftest import Pair, serving

pytestmark = pytest.mark.servers
TASK = fresh_tasks(1, 4)[0]
RIGHT, WRONG = (Candidate.final(Chain.of(TASK.problem), f"\\boxed{{{text}}}") for text in (str(TASK.gold), "none"))
LABELS = ("yes", "no")  # vLLM asks for each as one token, which the miniature vocabulary does not have


def make_decider(folder: Path) -> Path:
    """Write a model of random weights, with the large model's shape and vocabulary, and the labels in addition."""
    torch: Any = import_module("torch")  # partly typed, and wanted by these tests alone
    transformers: Any = import_module("transformers")
    torch.manual_seed(1)
    config = transformers.Qwen3Config.from_pretrained(MODELS / "large")
    tokenizer = json.loads((MODELS / "large/tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"] += [
        {"id": config.vocab_size + place, "content": label, **flags} for place, label in enumerate(LABELS)
    ]
    config.vocab_size += len(LABELS)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODELS / "large" / file, folder / file)
    return folder


@pytest.fixture(scope="module")
def decider(tmp_path_factory: pytest.TempPathFactory, forked: tuple[str, ...]) -> Generator[Served]:
    (server,) = miniature_servers("off", ["large"])
    folder = make_decider(tmp_path_factory.mktemp("decider"))
    with serving([replace(server, name="decider", model=folder, served_name="decider")], forked) as served:
        yield served["decider"]


async def test_a_classifier_on_vllm_rates_candidates(decider: Served) -> None:
    """Its weights are random: the probability of yes is low, and another one for another text."""
    settings = SystemOneVerifier(url=decider.base_url, seconds=120)
    async with ConnectedVerifier(settings) as verifier:
        first, other, again = [(await verifier.rate(each)).score for each in (RIGHT, WRONG, RIGHT)]
    async with ConnectedVerifier(settings.model_copy(update={"question": "Is it wrong?"})) as verifier:
        asked = (await verifier.rate(RIGHT)).score
    assert 0 < first < 0.5
    assert first == pytest.approx(again, rel=1e-3)
    assert first != pytest.approx(other, rel=1e-3)
    assert first != pytest.approx(asked, rel=1e-3)


async def test_a_model_without_structured_decisions_is_named(pair: Pair) -> None:
    settings = SystemOneVerifier(url=pair.large.base_url, retries=0, seconds=120)
    async with ConnectedVerifier(settings) as verifier:
        with pytest.raises(EndpointError, match="does this server know structured decisions for it"):
            await verifier.rate(RIGHT)


async def test_the_large_model_of_the_pair_rewrites_a_rejected_answer(pair: Pair) -> None:
    seen: list[Candidate] = []

    def second(candidate: Candidate) -> Rating:
        """Reject the first answer, as a program with a bug would be."""
        seen.append(candidate)
        return Rating(float(len(seen) > 1), "the result is not in a box")

    events: list[Event] = []
    critic: dict[str, Any] = {"kind": "function", "function": second, "seconds": 120}
    async with Solver(pair.small.base_url, pair.large.base_url, critic=critic, sampling=GREEDY, auto=False) as solver:
        solution = await solver.solve(TASK.problem, observe=events.append)
    verdicts = [event for event in events if isinstance(event, AnswerJudged)]
    assert [each.accepted for each in verdicts] == ([False, True] if len(seen) > 1 else [False])
    assert seen[0].answer == str(TASK.gold)
    assert "".join(event.text for event in events if isinstance(event, Answering)) == solution.text != ""
    assert solution.verified is (len(seen) > 1)
    rejected = [step for step in solution.steps if step.fate == "rejected" and step.reason == "answer"]
    assert [(step.author, step.detail) for step in rejected] == [("large", "the result is not in a box")]
