"""
Examine a pair's servers and a critic: `examine` tries what each can do, and measures what it costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from random import randrange
from statistics import median
from typing import TypeVar

from stepspec.orchestrator.backends.vllm import RewardModelEndpoint, VllmEndpoint
from stepspec.orchestrator.backends.vllm.probe import RETRIES
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import CriticEndpoint, Endpoint
from stepspec.orchestrator.endpoints.capabilities import LONG, Capabilities
from stepspec.orchestrator.endpoints.settings import Address
from stepspec.orchestrator.errors import EndpointError, EndpointUnreachable, StepspecError
from stepspec.orchestrator.events import Called, Event, Fallback
from stepspec.orchestrator.verifiers import Candidate, ConnectedVerifier
from stepspec.orchestrator.verifiers.verifier import AnyVerifier

from .advice import conclude, conclude_critic
from .report import CriticReport, Diagnosis, EndpointReport, Pace, Reading, Report

T = TypeVar("T")
A = TypeVar("A", bound=Address)

QUESTION = "Grade the last step from 0, wrong, to 9, right. Reply with one digit."
OPENING = "The grade is "
PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
WRONG = Step("2 + 2 is 7, as 7 + 7 is 1.\n\n", "small")
PATIENCE = 120.0  # seconds for one request, if the settings allow more
WRITTEN = 32  # tokens of one write to time
WRITES = 3  # the first may be slower than the others
VERDICTS = 3  # asked after a growing chain; the last one is what any further one costs


async def examine(
    pairs: Mapping[str, tuple[Endpoint, Endpoint]],
    critic: CriticEndpoint | AnyVerifier | None = None,
    *,
    question: str = QUESTION,
    opening: str = OPENING,
) -> Report:
    """
    Examine *pairs* of a small and a large endpoint by name, one after the other, and the *critic*.
    """
    diagnoses = [
        await diagnose(small, large, question=question, opening=opening, name=name)
        for name, (small, large) in pairs.items()
    ]
    return Report.of(diagnoses, await diagnose_critic(critic) if critic else None)


async def diagnose(
    small: Endpoint,
    large: Endpoint,
    *,
    question: str = QUESTION,
    opening: str = OPENING,
    name: str = "small with large",
) -> Diagnosis:
    """
    Examine all servers of both endpoints. A server that cannot be used is reported, not raised.

    Capabilities are tried at all servers at once. Times are measured at one server after the other,
    since servers may share a machine. *name* consists of the tables of both models in the settings,
    as those of `neighbours` do.
    """
    tables = dict(zip(("small", "large"), name.split(" with "), strict=True))
    servers = [server for endpoint in (small, large) for server in endpoint.each]
    examinations = [
        _Examination(_hasty(server), tables[server.role], question, opening) for server in servers
    ]
    turn = asyncio.Lock()
    untimed = asyncio.Barrier(len(servers))
    reports = await asyncio.gather(
        *(examination.report(turn, untimed) for examination in examinations)
    )
    first = [
        min(
            (report for report in reports if report.role == endpoint.role),
            key=lambda report: bool(report.problem),
        )
        for endpoint in (small, large)
    ]
    others = (report for report in reports if not any(report is other for other in first))
    return replace(conclude(*first, *others), name=name)


async def diagnose_critic(settings: CriticEndpoint | AnyVerifier) -> CriticReport:
    """
    Have the critic rate a right and a wrong step or answer. One that cannot be used is reported,
    not raised.
    """
    url: str = getattr(settings, "url", "")
    fallback: Fallback | None = None
    name: str | None = None
    try:
        if isinstance(settings, CriticEndpoint):
            async with RewardModelEndpoint(_hasty(settings)) as endpoint:
                name = endpoint.name
                critic = endpoint.critic()
                right, wrong = [
                    (await critic.rate(PROBLEM.extend(step))).score for step in (STEP, WRONG)
                ]
        else:
            fallback = settings.fallback
            name = settings.name
            step = Candidate.step
            final = Candidate.final
            rated = [
                (
                    step(PROBLEM.extend(each))
                    if settings.judges == "step"
                    else final(PROBLEM, each.text.strip())
                )
                for each in (STEP, WRONG)
            ]
            async with ConnectedVerifier(settings) as verifier:
                right, wrong = [(await verifier.rate(each)).score for each in rated]
    except StepspecError as exc:
        return conclude_critic(CriticReport(url, _cause(exc), name), fallback)
    return conclude_critic(CriticReport(url, "", name, right, wrong), fallback)


def _hasty(settings: A) -> A:
    """
    Return *settings* without retries, and with shorter deadlines: a report need not wait for a
    server.
    """
    deadlines = settings.deadlines.model_copy(
        update={"total": min(settings.deadlines.total, PATIENCE)}
    )
    return settings.model_copy(update={"retries": 0, "deadlines": deadlines})


def _cause(exc: StepspecError) -> str:
    return exc.cause if isinstance(exc, EndpointError) else str(exc)


class _Examination:
    """
    The examination of one server: first what needs no clock, then, in the server's turn, the times.
    """

    def __init__(self, settings: Endpoint, table: str, question: str, opening: str) -> None:
        self._settings = settings
        self._table = table
        self._question = question
        self._opening = opening
        self._failures: dict[str, str] = {}

    async def report(self, turn: asyncio.Lock, untimed: asyncio.Barrier) -> EndpointReport:
        """
        Examine the server. *untimed* waits until no server is tried out any more, *turn* is for the
        times.
        """
        entered = False
        waited = False
        settings = self._settings
        try:
            async with VllmEndpoint(settings, self._table) as endpoint:
                entered = True
                # It answers: a connection that is reset once, as vLLM does after some requests, is
                # no finding.
                endpoint.connection.endpoint = settings.model_copy(update={"retries": RETRIES})
                report = await self._tried(endpoint)
                waited = True
                await untimed.wait()
                async with turn:
                    return await self._timed(endpoint, report)
        except StepspecError as exc:
            gone = entered and isinstance(exc, EndpointUnreachable)
            during = "it stopped answering while it was examined: " if gone else ""
            if not waited:
                await untimed.wait()
            return EndpointReport(settings.role, settings.url, problem=f"{during}{_cause(exc)}")

    async def _tried(self, endpoint: VllmEndpoint) -> EndpointReport:
        can = await endpoint.capabilities()
        asking = endpoint.model().ask(
            PROBLEM.extend(STEP), self._question, "0123456789", opening=self._opening
        )
        grades = await self._attempt("judging", asking)
        return EndpointReport(
            role=self._settings.role,
            url=self._settings.url,
            model=endpoint.name,
            context=endpoint.room,
            vocabulary=endpoint.vocabulary,
            thinks=endpoint.template.thinks,
            faithful=endpoint.encoder.faithful,
            digits=None if grades is None else sum(grades.values()),
            can=can,
            thinks_by=endpoint.template.source,
            block=endpoint.template.block,
        )

    async def _timed(self, endpoint: VllmEndpoint, report: EndpointReport) -> EndpointReport:
        can = report.can
        assert can is not None
        pace = await self._attempt("writing", _pace(endpoint))
        scores = can.prompt_logprobs and can.suffix_scoring is not False
        verdicts = (
            _verdicts(endpoint, can, self._question, self._opening) if report.digits else None
        )
        return replace(
            report,
            pace=pace,
            scoring=await self._attempt("scoring", _scoring(endpoint)) if scores else None,
            reading=await self._attempt("verdicts", verdicts) if verdicts else None,
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


async def _pace(endpoint: VllmEndpoint) -> Pace:
    """Write a few tokens several times, one write after the other."""
    firsts = list[float]()
    gaps = list[float]()
    for _ in range(WRITES):
        events: list[Event] = []
        await endpoint.model(observe=events.append).write(PROBLEM, stop=(), limit=WRITTEN)
        called = next(event for event in events if isinstance(event, Called))
        first = called.first or 0.0
        firsts.append(first)
        gaps.append((called.seconds - first) / max(1, called.written - 1))
    middle = median(gaps)
    return Pace(median(firsts), middle, (max(gaps) - min(gaps)) / middle if middle else 0.0)


async def _verdicts(
    endpoint: VllmEndpoint, can: Capabilities, question: str, opening: str
) -> Reading:
    """
    Measure verdicts on a chain that grows step by step, longer than one and a half blocks of the
    prefix cache.
    """
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    block = can.cache.block if can.cache and can.cache.block else 0
    length = min(max(LONG, block * 3 // 2), endpoint.room // 2)
    begun = replace(
        STEP, text=f"{randrange(10**9)} is a number.\n\n" + STEP.text * max(1, length // step)
    )
    chain = PROBLEM.extend(begun)
    for _ in range(VERDICTS):
        chain = chain.extend(STEP)
        await model.ask(chain, question, "0123456789", opening=opening)
    calls = [event for event in events if isinstance(event, Called) and event.fate == "done"]
    first = calls[0]
    last = calls[-1]
    read = last.prompt - last.cached if can.cached_tokens else None
    return Reading(len(await endpoint.encoder.chain(chain)), read, last.seconds, first.seconds)


async def _scoring(endpoint: VllmEndpoint) -> float:
    """Score a new step after a cached chain; return the seconds."""
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    chain = PROBLEM.extend(
        replace(STEP, text=STEP.text * max(1, min(LONG, endpoint.room // 2) // step))
    )
    await model.score(chain, STEP.text)
    events.clear()
    await model.score(chain, f"{randrange(10**9)} is a number.\n\n")
    return sum(event.seconds for event in events if isinstance(event, Called))
