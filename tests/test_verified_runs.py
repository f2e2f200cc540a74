"""
Verifiers through the whole program: settings, solver, service and command line, over stand-in
servers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepspec import Candidate, Rating, Solver
from stepspec.cli.terminal import RunPrinter, summary
from stepspec.orchestrator import Step
from stepspec.orchestrator.endpoints import GREEDY, CriticEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import AnswerJudged, Event, FellBack
from stepspec.orchestrator.trace import Recorder, Stopwatch
from stepspec.orchestrator.verifiers import FunctionVerifier
from stepspec.settings import load

from .stand_in import StandIn

pytestmark = pytest.mark.usefixtures("nowhere")

PROBLEM = "What is 6 x 7?"
ANSWER = "The answer is \\boxed{42}."


@asynccontextmanager
async def solving(**settings: Any) -> AsyncGenerator[Solver]:
    small, large = (StandIn(steps=4, step_tokens=4) for _ in range(2))
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(model.listening()) for model in (small, large)
        ]
        yield await stack.enter_async_context(
            Solver(f"{one}/v1", f"{other}/v1", sampling=GREEDY, auto=False, **settings)
        )


def says_42(candidate: Candidate) -> Rating:
    return Rating(
        float(candidate.answer == "42"), "it is 42" if candidate.answer == "42" else "it is not 42"
    )


def wrong(candidate: Candidate) -> Rating:
    return Rating(0.25, "it is never right")


def broken(candidate: Candidate) -> float:
    raise RuntimeError("out of order")


async def test_a_function_judges_the_answer_of_a_run() -> None:
    recorder = Recorder(Stopwatch())
    async with solving(critic=says_42) as solver:
        solution = await solver.solve(PROBLEM, observe=recorder)
        assert solver.models["critic"] == "verifier says_42"
    assert (solution.answer, solution.verified, solution.rejection, solution.degraded) == (
        "42",
        True,
        "",
        (),
    )
    assert solution.ledger.critic.requests == 1
    judged = [event for event in recorder.events if isinstance(event, AnswerJudged)]
    assert [(each.accepted, each.score, each.reason, each.final) for each in judged] == [
        (True, 1.0, "it is 42", True)
    ]


async def test_a_rejected_answer_is_rewritten_and_the_solution_says_what_became_of_it() -> None:
    async with solving(critic={"kind": "function", "function": wrong, "repairs": 2}) as solver:
        solution = await solver.solve(PROBLEM)
    assert (solution.verified, solution.rejection) == (False, "it is never right")
    rejected = [step for step in solution.steps if step.reason == "answer"]
    assert rejected
    assert {(step.grade, step.detail, step.fate) for step in rejected} == {
        (0.25, "it is never right", "rejected")
    }
    assert summary(solution).plain.endswith(", NOT verified")


@pytest.mark.parametrize(("fallback", "verified"), [("accept", None), ("reject", False)])
async def test_a_fallback_that_decides_is_visible(fallback: str, verified: bool | None) -> None:
    async with solving(
        critic={"kind": "function", "function": broken, "fallback": fallback}
    ) as solver:
        solution = await solver.solve(PROBLEM)
    assert (solution.verified, solution.degraded) == (verified, ("critic",))
    assert solution.ledger.critic.failed == solution.ledger.critic.requests > 0


async def test_the_large_model_judges_in_the_place_of_a_verifier_that_fails() -> None:
    events: list[Event] = []
    async with solving(critic=broken) as solver:
        solution = await solver.solve(PROBLEM, observe=events.append)
    assert solution.degraded == ("critic",)
    assert solution.verified is not None
    causes = {event.cause for event in events if isinstance(event, FellBack)}
    assert causes == {"it raised RuntimeError: out of order"}


@pytest.mark.parametrize(
    ("verifier", "authors"),
    [(says_42, {"large", "small"}), (wrong, {"large"}), (broken, {"small"})],
)
async def test_a_verifier_judges_the_steps_of_a_policy_that_needs_a_critic(
    verifier: Any, authors: set[str]
) -> None:
    settings = {"kind": "function", "function": verifier, "judges": "step", "fallback": "accept"}
    async with solving(policy="reward", critic=settings) as solver:
        solution = await solver.solve(PROBLEM)
    kept = {
        step.author for step in solution.steps if step.fate == "kept" and step.text.strip(" \n")
    }
    assert kept == authors
    if verifier is wrong:
        rejected = [step for step in solution.steps if step.fate == "rejected"]
        assert {(step.reason, step.detail) for step in rejected} == {
            ("reward", "it is never right")
        }
    assert solution.verified is None


def test_a_policy_that_needs_rated_steps_refuses_a_verifier_of_answers() -> None:
    urls = ("http://a:1/v1", "http://b:1/v1")
    with pytest.raises(ConfigurationError, match='judges = "step"'):
        Solver(*urls, policy="reward", critic=says_42)
    Solver(
        *urls, policy="reward", critic={"kind": "function", "function": says_42, "judges": "both"}
    )


def test_the_kind_of_a_critic_decides_about_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load(critic="http://c:1").critic, CriticEndpoint)
    assert isinstance(load(critic=says_42).critic, FunctionVerifier)
    monkeypatch.setenv("STEPSPEC_CRITIC__KIND", "function")
    monkeypatch.setenv("STEPSPEC_CRITIC__FUNCTION", "says_42")
    monkeypatch.setenv("STEPSPEC_CRITIC__SECONDS", "3")
    from_variables = load().critic
    assert isinstance(from_variables, FunctionVerifier)
    assert (from_variables.function, from_variables.seconds) == ("says_42", 3)


def test_an_unknown_function_is_refused_before_any_run(nowhere: Path) -> None:
    (nowhere / "stepspec.toml").write_text(
        '[critic]\nkind = "function"\nfunction = "nobody-has-it"\n'
    )
    with pytest.raises(ConfigurationError, match="no verifier 'nobody-has-it'"):
        Solver("http://a:1/v1", "http://b:1/v1")
    # hides the one in the file
    critic = Solver("http://a:1/v1", "http://b:1/v1", critic=says_42).settings.critic
    assert isinstance(critic, FunctionVerifier)
    assert critic.function == "says_42"


def test_the_command_line_prints_what_the_verifier_said(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    printer = RunPrinter(Console(width=200))
    step = Step(ANSWER, "large", "end")
    for accepted, final in ((False, False), (True, True), (False, True), (None, True)):
        printer(AnswerJudged(2, step, accepted, 0.25, "so it is", final))
    printer(FellBack("answer", 2, "it is gone", "accept"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("(rejected: answer: so it is)")
    assert lines[1:] == [
        "answer accepted by the verifier: so it is",
        "answer REJECTED by the verifier: so it is",
        "answer not judged: the verifier failed",
        "the verifier failed, its fallback decides about the answer (accept): it is gone",
    ]
