"""
A model whose chat template hides its thinking block was taken not to think, and a box from its
thinking was returned.

The same fault had templates with marks of their own, pairs in which one model thinks, and a line
break that was lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stepspec import Sampling, Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Chain
from stepspec.orchestrator.errors import ConfigurationError, EndpointError
from stepspec.orchestrator.events import Answering, Event
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as solve
from stepspec.policies import make
from stepspec.servers.doctor import diagnose
from stepspec.settings import load
from tests.templates import learn

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.backends.families import BY_NAME, Family, FamilyServer

pytestmark = pytest.mark.usefixtures("nowhere")
THINKING = "I guess \\boxed{1}.\n\nNo, that is wrong.\n"
SCRIPT = (THINKING, THINK_END, "It is \\boxed{2}.")
PROBLEM = "What is 1 + 1?"


@asynccontextmanager
async def solver(small: Family, large: Family, **thinks: bool) -> AsyncGenerator[Solver]:
    """
    A solver over a pair of these families, with their settings *thinks* by the first letters of
    their roles.
    """
    servers = [FamilyServer(SCRIPT, family=family, digits={"9": -0.1}) for family in (small, large)]
    servers[1].spelling = 7  # so that each has a vocabulary of its own
    async with (
        servers[0].serve("small", thinks=thinks.get("s")) as s,
        servers[1].serve("large", thinks=thinks.get("l")) as other,
        Solver(s, other, sampling=Sampling()) as solving,
    ):
        yield solving


@pytest.mark.parametrize(
    "name", ["smollm3", "lfm2.5", "magistral", "seed-oss", "gemma-4", "gpt-oss", "glm-4.6"]
)
async def test_the_answer_is_the_box_after_the_thinking(name: str) -> None:
    async with solver(BY_NAME[name], BY_NAME[name]) as solving:
        for method in ("specreason", "large", "small"):
            solution = await solving.solve(PROBLEM, policy=method)
            assert (solution.answer, solution.text) == ("2", "It is \\boxed{2}.")
            assert solution.thinking == THINKING + THINK_END


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("deepseek-r1-distill", "gpt-oss"),
        ("gpt-oss", "qwen3"),
        ("seed-oss", "magistral"),
        ("glm-4.6", "gemma-4"),
    ],
)
async def test_models_with_different_marks_share_a_chain(small: str, large: str) -> None:
    async with solver(BY_NAME[small], BY_NAME[large]) as solving:
        assert solving.small.vocabulary != solving.large.vocabulary
        for method in ("specreason", "bild"):
            solution = await solving.solve(PROBLEM, policy=method)
            assert (solution.answer, solution.thinking) == ("2", THINKING + THINK_END)


async def test_a_small_model_that_does_not_think_drafts_for_one_that_does() -> None:
    async with solver(BY_NAME["llama-3"], BY_NAME["qwen3"]) as solving:
        solution = await solving.solve(PROBLEM, ahead=0)
    assert solution.answer == "2"
    assert solution.text == "It is \\boxed{2}."


@pytest.mark.parametrize("large", ["llama-3", "qwen3 with thinking off"])
async def test_a_pair_of_which_only_the_small_model_thinks_is_refused_with_its_cures(
    large: str,
) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"enable_thinking = true.*thinks = true.*thinks = false in \[small\]",
    ):
        async with solver(BY_NAME["qwen3"], BY_NAME[large]):
            pass


async def test_the_cures_of_a_mixed_pair_work() -> None:
    thinking = BY_NAME["smollm3"]
    plain = BY_NAME["llama-3"]
    async with solver(thinking, plain, s=False) as solving:
        assert not solving.thinks
        assert solving.small.template.opened == "<think>\n\n</think>\n\n"
    async with solver(thinking, replace(thinking, writes="Okay"), l=True) as solving:
        assert (await solving.solve(PROBLEM)).answer == "2"


@pytest.mark.parametrize("variable", ["STEPSPEC_LARGE__THINKS", "stepspec.toml"])
def test_whether_a_model_thinks_is_a_setting(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable == "stepspec.toml":
        Path(variable).write_text('[large]\nurl = "http://here:8001/v1"\nthinks = true\n')
    else:
        monkeypatch.setenv("STEPSPEC_LARGE__URL", "http://here:8001/v1")
        monkeypatch.setenv(variable, "true")
    large = load().large
    assert large is not None
    assert large.thinks is True


def test_the_line_break_before_a_block_is_kept() -> None:
    template = learn(BY_NAME["glm-4.6"].render)
    assert (template.opened, template.answer) == ("\n<think>", "<|assistant|>\n<think></think>\n")


def test_unexpected_thinking_is_not_the_answer() -> None:
    """
    Models that were taken not to think open a block all the same: the large one answers after it.
    """
    outcome, emitted = unexpected("<think>\nI guess \\boxed{1}.\n\n", f"No.\n{THINK_END}")
    assert (outcome.answer, outcome.text, outcome.reason) == ("7", "So it is \\boxed{7}.", "stop")
    assert emitted == outcome.text


def test_a_mark_without_a_block_is_text() -> None:
    outcome, emitted = unexpected("It closes with", f" {THINK_END} here.")
    assert outcome.text == emitted == "It closes with"
    outcome, emitted = unexpected(f"It closes with {THINK_END} here.\n\n", "So \\boxed{1}.")
    assert outcome.text == emitted
    assert f"It closes with {THINK_END}" in outcome.text


def test_unexpected_thinking_is_closed_when_the_budget_is_spent() -> None:
    outcome, emitted = unexpected(
        "<think>\nI guess \\boxed{1}.\n\n", "No.\n\n", budget=Budget(steps=2)
    )
    assert (outcome.answer, outcome.reason, emitted) == ("7", "length", outcome.text)


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_that_cannot_be_written_is_not_replaced_by_a_box_from_the_thinking(
    fails: bool,
) -> None:
    answer = EndpointError("gone", role="large", url="http://l", verb="write") if fails else ""
    if fails:
        with pytest.raises(EndpointError):
            unexpected("<think>\nI guess \\boxed{1}.\n\n", f"No.\n{THINK_END}", answer=answer)
    else:
        outcome, _ = unexpected(
            "<think>\nI guess \\boxed{1}.\n\n", f"No.\n{THINK_END}", answer=answer
        )
        assert outcome.answer == ""


def unexpected(
    *steps: str, answer: str | EndpointError = "So it is \\boxed{7}.", budget: Budget | None = None
) -> tuple[Outcome, str]:
    """
    Let a small model without detected thinking write *steps*; return the outcome and the emitted
    text.
    """
    small = ScriptedModel("small", lambda previous: steps[len(previous)])
    large = ScriptedModel(
        "large",
        counting("large", 4),
        answer=answer if isinstance(answer, str) else "",
        log=small.log,
    )
    if isinstance(answer, EndpointError):
        large.fails = lambda verb, chain: answer if verb == "write" else None
    events: list[Event] = []
    limits = budget or Budget()
    running = solve(
        RunParts(make("specreason", small, large), budget=limits, ahead=0),
        replace(Chain.of(PROBLEM), thinks=False),
        events.append,
    )
    outcome, _ = run(running)
    return outcome, "".join(event.text for event in events if isinstance(event, Answering))


async def test_the_doctor_reports_its_findings_and_their_evidence() -> None:
    servers = [
        FamilyServer(SCRIPT, family=BY_NAME[name], digits={"9": -0.1})
        for name in ("llama-3", "smollm3")
    ]
    async with servers[0].serve("small") as small, servers[1].serve("large") as large:
        diagnosis = await diagnose(small, large)
        reverse = await diagnose(
            large.model_copy(update={"role": "small"}),
            small.model_copy(update={"role": "large"}),
        )
    assert (diagnosis.small.thinks, diagnosis.large.thinks) == (False, True)
    assert (diagnosis.small.thinks_by, diagnosis.large.thinks_by, diagnosis.large.block) == (
        "effect",
        "effect",
        "<think>",
    )
    notes = "\n".join(map(str, diagnosis.findings))
    assert (
        "small: its chat template shows no thinking block, and asked a plain question it opened"
        " none" in notes
    )
    assert (
        "large: its chat template shows no thinking block, but it opens one by itself, <think>"
        in notes
    )
    assert "only the large model thinks" in notes
    assert any(
        "this pair is refused" in note and "thinks = false in [small]" in note
        for note in map(str, reverse.findings)
    )
