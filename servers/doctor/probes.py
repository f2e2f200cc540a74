"""Try what the servers of a pair and a critic can do, and measure what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from random import randrange
from statistics import median
from typing import TypeVar

from stepspec.orchestrator.backends.vllm import RewardModelEndpoint, VllmEndpoint, VllmModel
from stepspec.orchestrator.backends.vllm.probe import RETRIES
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import CriticEndpoint, Endpoint
from stepspec.orchestrator.endpoints.capabilities import LONG_PROMPT_TOKENS, Capabilities
from stepspec.orchestrator.endpoints.settings import Address
from stepspec.orchestrator.errors import EndpointError, EndpointUnreachable, StepspecError
from stepspec.orchestrator.events import Called, Event, Fallback
from stepspec.orchestrator.verifiers import Candidate, FunctionVerifier, SharedVerifier
from stepspec.prompts import load

from .advice import conclude, conclude_critic
from .report import CriticReport, Diagnosis, EndpointReport, PairReport, Reading, WritePace

T = TypeVar("T")
A = TypeVar("A", bound=Address)

GRADE = load("specreason.grade")
"""The question of a judge that is asked for a grade, and the beginning of the reply."""
PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
RATED = (STEP, Step("2 + 2 is 7, as 7 + 7 is 1.\n\n", "small"))
"""A right step and an obviously wrong one."""
DIGITS = "0123456789"
MAX_REQUEST_SECONDS = 120.0
WRITTEN_TOKENS = 32
"""Of a write that is timed."""
TIMED_WRITES = 3
"""The first may be slower than the others."""
TIMED_VERDICTS = 3
"""On a growing chain. Each further verdict costs as much as the last one."""


async def examine(
    small: Endpoint,
    large: Endpoint,
    critic: CriticEndpoint | FunctionVerifier | None = None,
) -> Diagnosis:
    """Examine both endpoints, then the *critic*."""
    pair = await diagnose(small, large)
    return Diagnosis.of(pair, await diagnose_critic(critic) if critic else None)


async def diagnose(small: Endpoint, large: Endpoint) -> PairReport:
    """
    Examine all servers of both endpoints. A server that cannot be used is reported, not raised.

    Capabilities are tried at all servers at once. Times are measured at one server after the other,
    since servers may share a machine.
    """
    examinations = [_Examination(_hasty(server)) for server in (*small.each, *large.each)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(each.run(each.capabilities(stack)) for each in examinations))
        for examination in examinations:
            if not examination.report.problem:
                await examination.run(examination.times())
    reports = [examination.report for examination in examinations]
    reports.sort(key=lambda report: report.problem != "")  # The first that can be used comes first.
    small_report, *small_replicas = [report for report in reports if report.role == "small"]
    large_report, *large_replicas = [report for report in reports if report.role == "large"]
    return conclude(small_report, large_report, *small_replicas, *large_replicas)


async def diagnose_critic(settings: CriticEndpoint | FunctionVerifier) -> CriticReport:
    """
    Have the critic rate a right and a wrong step or answer.

    A critic that cannot be used is reported, not raised.
    """
    report = CriticReport(getattr(settings, "url", ""))
    fallback: Fallback | None = None
    try:
        if isinstance(settings, CriticEndpoint):
            async with RewardModelEndpoint(_hasty(settings)) as endpoint:
                report = replace(report, model=endpoint.name)
                critic = endpoint.critic()
                ratings = [await critic.rate(PROBLEM.extend(step)) for step in RATED]
        else:
            fallback = settings.fallback
            report = replace(report, model=settings.name)
            verifier = SharedVerifier(settings)
            ratings = [await verifier.rate(_candidate(settings, step)) for step in RATED]
        right, wrong = [rating.score for rating in ratings]
        report = replace(report, right=right, wrong=wrong)
    except StepspecError as exc:
        report = replace(report, problem=_cause(exc))
    return conclude_critic(report, fallback)


def _candidate(settings: FunctionVerifier, step: Step) -> Candidate:
    """Return *step* as what the verifier judges, a step or an answer."""
    if settings.judges == "step":
        return Candidate.step(PROBLEM.extend(step))
    return Candidate.final(PROBLEM, step.text.strip())


def _hasty(settings: A) -> A:
    """Return *settings* without retries and with short deadlines. A report says what failed."""
    seconds = min(settings.deadlines.total, MAX_REQUEST_SECONDS)
    deadlines = settings.deadlines.model_copy(update={"total": seconds})
    return settings.model_copy(update={"retries": 0, "deadlines": deadlines})


def _cause(exc: StepspecError) -> str:
    return exc.cause if isinstance(exc, EndpointError) else str(exc)


class _Examination:
    """The examination of one server. The attribute ``report`` has what is known so far."""

    def __init__(self, settings: Endpoint) -> None:
        self._endpoint = VllmEndpoint(settings)
        self._failures: dict[str, str] = {}
        self.report = EndpointReport(settings.role, settings.url)

    async def run(self, part: Awaitable[EndpointReport]) -> None:
        """Run one *part* of the examination. Its failure is the problem of the report."""
        try:
            self.report = await part
        except StepspecError as exc:
            problem = _cause(exc)
            if self.report.model is not None and isinstance(exc, EndpointUnreachable):
                problem = f"it stopped answering while it was examined: {problem}"
            self.report = EndpointReport(
                self.report.role,
                self.report.url,
                problem=problem,
            )

    async def capabilities(self, stack: AsyncExitStack) -> EndpointReport:
        """Try what the server can do. Leave the connection open until *stack* closes it."""
        endpoint = await stack.enter_async_context(self._endpoint)
        self.report = replace(self.report, model=endpoint.name)
        # vLLM resets connections after some requests. That is no finding.
        patient = endpoint.settings.model_copy(update={"retries": RETRIES})
        endpoint.connection.endpoint = patient
        can = await endpoint.capabilities()
        grades = await self._attempt("judging", _grade(endpoint.model(), PROBLEM.extend(STEP)))
        return replace(
            self.report,
            context=endpoint.room,
            vocabulary=endpoint.vocabulary,
            thinks=endpoint.template.thinks,
            faithful=endpoint.tokenizer.faithful,
            digits=None if grades is None else sum(grades.values()),
            can=can,
            thinks_by=endpoint.template.source,
            block=endpoint.template.block,
        )

    async def times(self) -> EndpointReport:
        """Measure how long requests take."""
        endpoint = self._endpoint
        can = self.report.can
        assert can is not None
        scoring = None
        reading = None
        pace = await self._attempt("writing", _pace(endpoint))
        if can.prompt_logprobs and can.suffix_scoring is not False:
            scoring = await self._attempt("scoring", _scoring(endpoint))
        if self.report.digits:
            reading = await self._attempt("verdicts", _verdicts(endpoint, can))
        return replace(
            self.report,
            pace=pace,
            scoring=scoring,
            reading=reading,
            acceptance=await endpoint.acceptance(),
            failures=self._failures,
        )

    async def _attempt(self, check: str, measurement: Awaitable[T]) -> T | None:
        try:
            return await measurement
        except EndpointUnreachable:
            raise
        except StepspecError as exc:
            self._failures[check] = _cause(exc)
            return None


async def _pace(endpoint: VllmEndpoint) -> WritePace:
    """Write a few tokens several times, one write after the other."""
    model, calls = _watched_model(endpoint)
    for _ in range(TIMED_WRITES):
        await model.write(PROBLEM, stop=(), limit=WRITTEN_TOKENS)
    firsts = [call.first or 0.0 for call in calls]
    gaps = [
        (call.seconds - first) / max(1, call.written - 1)
        for call, first in zip(calls, firsts, strict=True)
    ]
    between = median(gaps)
    noise = (max(gaps) - min(gaps)) / between if between else 0.0
    return WritePace(first=median(firsts), between=between, noise=noise)


def _watched_model(endpoint: VllmEndpoint) -> tuple[VllmModel, list[Called]]:
    """Return a model of *endpoint*, and the list of the requests that it will have sent."""
    calls: list[Called] = []

    def observe(event: Event) -> None:
        if isinstance(event, Called):
            calls.append(event)

    return endpoint.model(observe=observe), calls


async def _grade(model: VllmModel, chain: Chain) -> Mapping[str, float]:
    return await model.ask(chain, GRADE.text, DIGITS, opening=GRADE.opening)


async def _verdicts(endpoint: VllmEndpoint, can: Capabilities) -> Reading:
    """
    Measure verdicts on a chain that grows step by step.

    The chain is longer than one and a half blocks of the prefix cache, if the context is.
    """
    model, calls = _watched_model(endpoint)
    block = (can.cache and can.cache.block) or 0
    text = _new_step() + await _long_text(endpoint, max(LONG_PROMPT_TOKENS, block * 3 // 2))
    chain = PROBLEM.extend(replace(STEP, text=text))
    for _ in range(TIMED_VERDICTS):
        chain = chain.extend(STEP)
        await _grade(model, chain)
    done = [call for call in calls if call.fate == "done"]
    last = done[-1]
    return Reading(
        chain=len(await endpoint.tokenizer.encode_chain(chain)),
        read=last.prompt - last.cached if can.cached_tokens else None,
        seconds=last.seconds,
        first=done[0].seconds,
    )


def _new_step() -> str:
    """Return a step that no server has in its cache."""
    return f"{randrange(1_000_000_000)} is a number.\n\n"


async def _long_text(endpoint: VllmEndpoint, tokens: int) -> str:
    """Return steps of about *tokens* tokens, but of no more than half the context."""
    step_tokens = len(await endpoint.tokenizer.encode(STEP.text))
    steps = min(tokens, endpoint.room // 2) // step_tokens
    return STEP.text * max(1, steps)


async def _scoring(endpoint: VllmEndpoint) -> float:
    """Score a new step after a cached chain; return the seconds."""
    model, calls = _watched_model(endpoint)
    chain = PROBLEM.extend(replace(STEP, text=await _long_text(endpoint, LONG_PROMPT_TOKENS)))
    await model.score(chain, STEP.text)
    calls.clear()
    await model.score(chain, _new_step())
    return sum(call.seconds for call in calls)
