"""Measurements of scripted models on a clock that jumps, and of stand-ins over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from stepspec import Solver
from stepspec.evals.sample import Arm
from stepspec.evals.tune.drafts import Place, Trier
from stepspec.evals.tune.measuring import CHAIN_PLACES, Measured, Measuring, spread
from stepspec.evals.tune.prediction import predict
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable, StepspecError
from stepspec.orchestrator.reason import reason

from ...fakes import ScriptedModel, run
from ...stand_in import Latency, StandIn
from .world import PROBLEMS, READING, SPECREASON, World


async def nothing_under_way() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def seconds_of(world: Any, ahead: int) -> float:
    """What the loop takes for all problems, the thinking alone."""
    small, large = world.model("small"), world.model("large")
    for problem in PROBLEMS:
        policy = Trier(small, large, world).policy(SPECREASON, small, large)
        await reason(policy, Chain.of(problem), ahead=ahead)
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("accepted", [0.0, 0.5, 0.9])
def test_the_gain_is_that_of_the_loop(accepted: float) -> None:
    world = World(accepted=accepted)
    found, _ = run(world.measured(SPECREASON))
    assert found.paces is not None
    said = predict(found.methods["specreason"], found.paces, found.lengths)
    assert said.drafts > 150
    assert abs(said.accepted.value - accepted) < 0.1
    _, seconds = run(seconds_of(world, ahead=2))
    plain = sum(
        world.waiting + world.large_pace * sum(len(step.tokens) for step in chain.steps[:12])
        for chain in found.chains.values()
    )
    assert said.alone.value == pytest.approx(plain / seconds, rel=0.1)
    assert said.alone.low <= said.alone.value <= said.alone.high


def test_a_small_model_that_is_hardly_faster_ends_it_at_once() -> None:
    found, seconds = run(World(small_pace=0.09).measured(SPECREASON))
    assert found.paces is not None
    assert found.paces.hopeless
    assert not found.chains
    assert seconds < 120


@pytest.mark.parametrize("pace", [0.5, 2.0, 10.0])
def test_chains_that_never_end_still_give_an_answer_within_the_minutes(pace: float) -> None:
    world = World(length=10**6, words=2, large_pace=pace, small_pace=pace / 5, waiting=pace)
    found, _ = run(world.measured(SPECREASON, READING, minutes=30))
    assert found.paces is not None
    for method in found.methods.values():
        said = predict(method, found.paces, found.lengths)
        assert 0 < said.alone.low <= said.alone.value <= said.alone.high


def test_a_server_that_writes_nothing_is_an_error_with_the_cure() -> None:
    with pytest.raises(
        StepspecError, match=r"the large model at http://large wrote no two tokens.*stepspec solve"
    ):
        run(World(waiting=1000.0).measured(SPECREASON, minutes=5))


class Failing(World):
    """A pair whose large model does not score text."""

    error: Exception = StepspecError("no scores")

    def model(self, role: Any) -> ScriptedModel:
        made = super().model(role)
        made.fails = lambda verb, chain: self.error if verb == "score" else None
        return made


def test_a_method_whose_requests_fail_is_left_out_with_the_reason() -> None:
    found, _ = run(Failing().measured(READING, SPECREASON))
    assert found.skipped == {"reading": "no scores"}
    assert found.methods["specreason"].trials
    assert not found.methods["reading"].trials


def test_an_error_says_why_no_method_can_be_measured() -> None:
    with pytest.raises(StepspecError, match="no method can be measured: reading: no scores"):
        run(Failing().measured(READING))


def test_a_server_that_gives_no_verdict_is_not_a_method_that_rejects() -> None:
    world = Failing()
    world.error = EndpointUnavailable("gone", role="large", url="http://large", verb="score")
    found, _ = run(world.measured(READING, SPECREASON))
    assert found.skipped == {"reading": "the server of its judge gave no verdict"}


def test_an_interruption_leaves_what_is_known() -> None:
    async def work() -> Measured:
        task = asyncio.create_task(World().measured(SPECREASON))
        await asyncio.sleep(330)
        task.cancel()
        found = await task
        await nothing_under_way()
        return found

    found, seconds = run(work())
    assert found.interrupted
    assert found.methods["specreason"].trials
    assert seconds < 335


def test_methods_that_may_pay_run_alone_and_with_all_users() -> None:
    stricter = Arm.of("stricter", "specreason", {"threshold": 9.0}, ending="small")
    none = Arm.of("none", "random", {"p": 0.0})
    found, _ = run(World(waiting=1.0).measured(SPECREASON, stricter, none))
    sizes: Mapping[str, set[int]] = {name: {*each.runs} for name, each in found.methods.items()}
    assert sizes == {"specreason": {1, 4}, "stricter": {1, 4}, "none": set()}
    assert len(found.methods["specreason"].runs[4]) >= 4


def test_places_are_of_all_chains_before_any_chain_has_its_share() -> None:
    step = Step("x", "large")
    first = [Place(0, Chain.of(f"{number}"), step) for number in range(30)]
    second = [Place(1, Chain.of("x"), step)]
    places = list(spread([first, second, []], random.Random(0)))
    assert len(places) == CHAIN_PLACES + 1
    assert second[0] in places[:2]


async def test_a_pair_is_measured_over_http() -> None:
    quick, slow = (Latency(first=pace, token=pace) for pace in (0.001, 0.008))
    small = StandIn(names=("tiny",), steps=4, step_tokens=8, latency=quick)
    large = StandIn(names=("big",), steps=4, step_tokens=8, latency=slow, accept=0.6)
    async with (
        small.serve("small") as one,
        large.serve("large") as other,
        Solver(one, other, sampling=GREEDY) as solver,
    ):
        arms = (SPECREASON, READING)
        measuring = Measuring(solver, arms, PROBLEMS[:2], 3)
        found = await measuring.measure(0.6)
    assert found.paces is not None
    # eight to one; this machine may be slow, but for both
    assert found.paces.ratio < 0.7
    assert [len(chain.steps) > 3 for chain in found.chains.values()] == [True, True]
    accepted = [trial.accepted for trial in found.methods["specreason"].trials]
    assert 0 < sum(accepted) < len(accepted)
    read = found.methods["reading"].trials
    assert read
    assert all(trial.accepted for trial in read), "stand-ins write the same"


async def test_one_model_twice_is_refused() -> None:
    async with (
        StandIn(names=("same",)).serve("small") as one,
        StandIn(names=("same",)).serve("large") as other,
        Solver(one, other) as solver,
    ):
        measuring = Measuring(solver, (SPECREASON,), PROBLEMS, 2)
        with pytest.raises(ConfigurationError, match=r"both servers serve 'same'.*--small"):
            await measuring.measure(1.0)
