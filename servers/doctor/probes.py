"""Try what the servers of a pair and a critic can do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from stepspec.orchestrator.backends.vllm import RewardModelEndpoint, VllmEndpoint
from stepspec.orchestrator.backends.vllm.probe import RETRIES
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import CriticEndpoint, Endpoint
from stepspec.orchestrator.endpoints.settings import Address
from stepspec.orchestrator.errors import EndpointError, EndpointUnreachable, StepspecError
from stepspec.prompts import load

from .advice import conclude
from .report import CriticReport, Diagnosis, EndpointReport

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
"""Of the write that is tried."""


async def diagnose(
    small: Endpoint,
    large: Endpoint,
    critic: CriticEndpoint | None = None,
) -> Diagnosis:
    """
    Examine all servers of both endpoints at once, then the *critic*.

    A server that cannot be used is reported, not raised.
    """
    examinations = [_Examination(_hasty(server)) for server in (*small.each, *large.each)]
    await asyncio.gather(*(examination.run() for examination in examinations))
    reports = [examination.report for examination in examinations]
    reports.sort(key=lambda report: report.problem != "")  # The first that can be used comes first.
    small_report, *small_replicas = [report for report in reports if report.role == "small"]
    large_report, *large_replicas = [report for report in reports if report.role == "large"]
    others = (*small_replicas, *large_replicas)
    critic_report = await _examine_critic(critic) if critic else None
    return conclude(small_report, large_report, *others, critic=critic_report)


async def _examine_critic(settings: CriticEndpoint) -> CriticReport:
    """Have the reward model rate a right and a wrong step."""
    report = CriticReport(settings.url)
    try:
        async with RewardModelEndpoint(_hasty(settings)) as endpoint:
            report = replace(report, model=endpoint.name)
            critic = endpoint.critic()
            right, wrong = [await critic.rate(PROBLEM.extend(step)) for step in RATED]
    except StepspecError as exc:
        return replace(report, problem=_cause(exc))
    return replace(report, right=right.score, wrong=wrong.score)


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

    async def run(self) -> None:
        """Examine the server. A failure is the problem of the report."""
        try:
            async with self._endpoint as endpoint:
                self.report = replace(self.report, model=endpoint.name)
                self.report = await self._examined(endpoint)
        except StepspecError as exc:
            problem = _cause(exc)
            if self.report.model is not None and isinstance(exc, EndpointUnreachable):
                problem = f"it stopped answering while it was examined: {problem}"
            self.report = EndpointReport(
                self.report.role,
                self.report.url,
                problem=problem,
            )

    async def _examined(self, endpoint: VllmEndpoint) -> EndpointReport:
        """Try what the server can do."""
        # vLLM resets connections after some requests. That is no finding.
        patient = endpoint.settings.model_copy(update={"retries": RETRIES})
        endpoint.connection.endpoint = patient
        can = await endpoint.capabilities()
        model = endpoint.model()
        await self._attempt("writing", model.write(PROBLEM, stop=(), limit=WRITTEN_TOKENS))
        question = model.ask(PROBLEM.extend(STEP), GRADE.text, DIGITS, opening=GRADE.opening)
        grades = await self._attempt("judging", question)
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
