"""Token-level speculation of the miniature pair: all features work with it, above all judging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from stepspec import Solution, Solver
from stepspec.evals.sample import acceptances_between, read_acceptances
from stepspec.evals.testbed.servers import endpoint, miniature_servers, speculations
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.doctor import diagnose
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.launcher import Served
from stepspec.policies import METHODS
from stepspec.prompts import load

from .conftest import Pair, serving

pytestmark = pytest.mark.servers
COUNT = 20
DRAFTING = {"ngram": {"large", "small"}, "draft_model": {"large"}}
JUDGING = [
    name for name, method in METHODS.items() if method.needs and not method.needs_critic and "cues" not in method.needs
]
CASES = [*(("draft_model", name) for name in JUDGING), ("ngram", "specreason"), ("ngram", "bild")]  # asks, scores


@dataclass(frozen=True, slots=True)
class Speculating:
    """The miniature pair, drafting tokens by *method*."""

    method: str
    served: Mapping[str, Served]

    @asynccontextmanager
    async def solver(self) -> AsyncGenerator[Solver]:
        small, large = endpoint(self.served["small"], "small"), endpoint(self.served["large"], "large")
        async with Solver(small, large, sampling=GREEDY, auto=False) as solver:
            yield solver


@pytest.fixture(scope="module", params=list(DRAFTING))
def speculated(request: pytest.FixtureRequest, pair: Pair, forked: tuple[str, ...]) -> Generator[Speculating]:
    """Start the servers that draft by one method, once for all tests; a model that does not draft is the pair's."""
    method = str(request.param)
    servers = miniature_servers("off", sorted(DRAFTING[method]), speculation=speculations(method))
    with serving(servers, forked) as served:
        yield Speculating(method, {"small": pair.small, **served})


@pytest.fixture(scope="module")
def plain_thoughts() -> dict[str, list[str]]:
    """The thinking by method on servers that do not draft, which each kind of drafting is compared with."""
    return {}


async def test_problems_are_solved_and_judged_with_the_acceptance_in_the_ledger(
    speculated: Speculating, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = fresh_tasks(COUNT, 11)
    async with speculated.solver() as solver:
        before = await read_acceptances(solver)
        solutions = await asyncio.gather(*(solver.solve(task.problem) for task in tasks))
        found = acceptances_between(before, await read_acceptances(solver))
    right = [solution.answer == str(task.gold) for solution, task in zip(solutions, tasks, strict=True)]
    with capsys.disabled():
        for role, acceptance in found.items():
            print(f"\n{speculated.method} under {role}: {acceptance}, {sum(right)} of {COUNT} right")
    assert sum(right) >= COUNT - 3
    assert set(found) == DRAFTING[speculated.method]
    assert all(acceptance.rate is not None and 0 < acceptance.rate <= 1 for acceptance in found.values())
    grades = [step.grade for solution in solutions for step in solution.steps if step.grade is not None]
    assert len(grades) >= 3 * COUNT
    assert min(grades) < 3 < 7 < max(grades)


@pytest.mark.parametrize(("speculated", "policy"), CASES, indirect=["speculated"])
async def test_a_judging_method_gives_the_same_result_with_speculation(
    speculated: Speculating, pair: Pair, policy: str, plain_thoughts: dict[str, list[str]]
) -> None:
    if policy not in plain_thoughts:
        plain = Speculating("none", {"large": pair.large, "small": pair.small})
        plain_thoughts[policy] = await thoughts(plain, policy)
    pairs = zip(plain_thoughts[policy], await thoughts(speculated, policy), strict=True)
    same = sum(before == after for before, after in pairs)
    assert same >= 7  # several tokens in a pass are added up in another order, which may turn one close call


async def thoughts(servers: Speculating, policy: str) -> list[str]:
    """Return the thinking of eight problems."""
    async with servers.solver() as solver:
        solutions = await asyncio.gather(*(solver.solve(task.problem, policy=policy) for task in fresh_tasks(8, 3)))
    assert not any(solution.degraded for solution in solutions)
    assert any(judged(solution) for solution in solutions)
    return [solution.thinking for solution in solutions]


def judged(solution: Solution) -> int:
    """How many steps somebody had a say about."""
    return solution.ledger.large.judging + sum(step.grade is not None for step in solution.steps)


async def test_a_judge_is_as_sure_as_without(speculated: Speculating, pair: Pair) -> None:
    plain = Speculating("none", {"large": pair.large, "small": pair.small})
    chain = Chain.of(fresh_tasks(1, 5)[0].problem)
    prompt = load("specreason.grade")
    found: list[Mapping[str, float]] = []
    for one in (plain, speculated):
        async with one.solver() as solver:
            model = solver.large.model()
            step = await model.write(chain)
            found.append(await model.ask(chain.extend(step), prompt.text, "0123456789", opening=prompt.opening))
    before, after = found
    assert sum(after.values()) > 0.9
    assert after == pytest.approx(before, abs=0.01)  # what is not among the 20 likeliest counts as nothing


async def test_the_doctor_reports_speculation_and_its_cost(speculated: Speculating) -> None:
    small, large = endpoint(speculated.served["small"], "small"), endpoint(speculated.served["large"], "large")
    found = await diagnose(small, large)
    for examined in (found.small, found.large):
        drafts = examined.role in DRAFTING[speculated.method]
        assert examined.can is not None
        assert (examined.can.speculation, examined.acceptance is not None) == (drafts, drafts)
        assert examined.can.chosen_logprobs is not drafts
    assert any("large: no chosen logprobs" in note for note in map(str, found.findings))
