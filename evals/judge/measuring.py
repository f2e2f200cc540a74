"""
Read right steps and slips in every way that a method does, on the servers of a pair, within a
deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from statistics import median
from typing import Any

from stepspec.api import Solver
from stepspec.orchestrator import Accept
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import (
    ConfigurationError,
    EndpointUnreachable,
    MissingCapability,
    StepspecError,
)

from ..estimate.drafts import attempt
from ..estimate.measuring import OnPart, check_models, opened
from ..results import wilson
from .cases import Case, built_in, own_case, own_cases, spread
from .figures import DraftFigures, JudgedStep
from .readings import Judges, Request

ALONE = 6  # steps whose requests are timed, with nothing beside them
AT_ONCE = 8  # steps that are read at the same time
FEWEST = 12  # steps of which figures are made
DRAFTS = 40  # of the small model
TEMPERATURE = 0.6  # at which the steps of the large model's chains are sampled
CANNOT_SCORE = (
    "the large model's server does not score text, which most readings need: it needs vLLM's"
    " completions with prompt_logprobs; `stepspec doctor` says what the server can do"
)


@dataclass
class JudgedSteps:
    """
    The *steps* of so many *cases*, the *seconds* of each request that was alone, and why a request
    is *skipped*.
    """

    cases: int = 0
    steps: list[JudgedStep] = field(default_factory=list[JudgedStep])
    seconds: dict[Request, list[float]] = field(default_factory=dict[Request, list[float]])
    skipped: dict[Request, str] = field(default_factory=dict[Request, str])


async def make_cases(
    solver: Solver, problems: Sequence[str], seed: int, on_part: OnPart, minutes: float = inf
) -> list[Case]:
    """
    The built-in cases, or those of the large model's own chains about *problems*, if any, as far as
    *minutes* allow.

    Raise `ConfigurationError` if the chains have no steps to judge.
    """
    if not problems:
        return spread(built_in(), seed)
    step = on_part("the large model's own steps", len(problems))
    gate, clock = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop().time
    end = clock() + 60 * minutes

    async def write(number: int, problem: str) -> list[Case]:
        async with (
            gate,
            opened(solver.large) as greedy,
            opened(solver.large, _sampling(seed + number)) as sampling,
        ):
            cases = await own_cases(greedy, sampling, problem, number, seed, lambda: clock() > end)
            step()
            return cases

    cases = [case for cases in await at_once(map(write, count(), problems)) for case in cases]
    if len(cases) < FEWEST:
        raise ConfigurationError(
            f"--problems: only {len(cases)} steps to judge, and {FEWEST} are needed: whole steps of"
            " the large model's chains with a number, a sign, a unit or a variable; name more"
            " problems, or leave out --problems for the built-in steps"
        )
    return spread(cases, seed)


def _sampling(seed: int) -> Sampling:
    return Sampling(temperature=TEMPERATURE, seed=seed)


async def judge_cases(
    solver: Solver, cases: Sequence[Case], minutes: float, seed: int, on_part: OnPart
) -> JudgedSteps:
    """
    Read both versions of as many *cases* as *minutes* allow, and own steps in the places of written
    ones.

    The first cases are read alone, to time the requests. Raise `StepspecError`, with the cure, if
    servers cannot do it.
    """
    check_models(solver)
    step, clock = on_part("judging steps", len(cases)), asyncio.get_running_loop().time
    async with opened(solver.large) as large:
        judges = Judges(large, _rate(solver) if solver.settings.rates_steps else None)
        judged = JudgedSteps(skipped=await _untried(judges, cases[0]))
        gate, end = asyncio.Semaphore(AT_ONCE), clock() + 60 * minutes

        async def read(case: Case, *, alone: bool = False) -> None:
            """
            Read *case*, and an own step in its place if it is not one itself; *alone*: nothing else
            is read now.
            """
            async with gate:
                if clock() > end:
                    return
                steps: list[JudgedStep] = []
                for each in (case, *await _own(solver, case, seed)):
                    for right, version in each.versions():
                        values, seconds = await judges.read(each.chain, version, judged.skipped)
                        steps.append(JudgedStep(each.problem, right, values, each.own))
                        for request, taken in seconds.items() if alone else ():
                            judged.seconds.setdefault(request, []).append(taken)
                judged.steps += steps
                judged.cases += 1
                step()

        for case in cases[:ALONE]:
            await read(case, alone=True)
        await at_once(read(case) for case in cases[ALONE:])
    if judged.cases < min(FEWEST, len(cases)):
        raise StepspecError(
            f"only {judged.cases} steps were judged in {minutes:g} minutes: it needs more --minutes"
        )
    return judged


async def _own(solver: Solver, case: Case, seed: int) -> list[Case]:
    """
    A step of the large model's own in the place of a written *case*, if it has one with a slip.
    """
    if case.own:
        return []
    rng = random.Random(f"{seed}/{case.problem}/{len(case.chain.steps)}")
    async with opened(solver.large, _sampling(seed)) as sampling:
        own = await own_case(sampling, case.chain, case.problem, rng)
    return [] if own is None else [own]


async def _untried(judges: Judges, case: Case) -> dict[Request, str]:
    """
    Why requests that the server cannot answer are left out; they are found by trying each of them
    once.
    """
    skipped: dict[Request, str] = {}
    for name, request in judges.requests.items():
        try:
            await request(case.chain, case.versions()[0][1])
        except EndpointUnreachable:
            raise
        except StepspecError as exc:
            skipped[name] = str(exc)
    if "score" in skipped:
        raise MissingCapability(f"{CANNOT_SCORE} ({skipped['score']})")
    return skipped


def _rate(solver: Solver) -> Callable[[Chain, Step], Any]:
    async def rate(chain: Chain, step: Step) -> float:
        verdict = await solver.policy("reward", {}).verify(chain, step)
        return verdict.score or 0.0

    return rate


async def try_drafts(
    solver: Solver,
    cases: Sequence[Case],
    policy: str,
    options: Mapping[str, Any],
    minutes: float,
    on_part: OnPart,
) -> DraftFigures:
    """
    Let the small model draft where steps of *cases* begin, and *policy* with these *options* judge
    the drafts.

    After *minutes* no more than those that are under way count, but one at least.
    """
    chosen = list({(case.problem, len(case.chain.steps)): case for case in cases}.values())[:DRAFTS]
    step, clock = on_part("the small model's drafts", len(chosen)), asyncio.get_running_loop().time
    gate, end = asyncio.Semaphore(AT_ONCE), clock() + 60 * minutes
    judging, paces, accepted = list[float](), list[float](), list[bool]()

    async def draft(case: Case, *, alone: bool = False) -> None:
        async with gate:
            if accepted and clock() > end:
                return
            made = await attempt(solver.policy(policy, options), case.chain)
            accepted.append(isinstance(made.verdict, Accept))
            if alone:
                judging.append(made.verdict_seconds)
                paces.append(
                    made.pace / (await attempt(solver.policy("large", {}), case.chain)).pace
                )
            step()

    for case in chosen[:ALONE]:
        await draft(case, alone=True)
    await at_once(draft(case) for case in chosen[ALONE:])
    return DraftFigures(
        len(accepted), wilson(sum(accepted), len(accepted)), median(judging), median(paces)
    )
