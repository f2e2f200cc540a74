"""Measured times; scripted models on a clock that jumps, and stand-ins over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from stepspec import Solver, policies
from stepspec.evals.arms import SHIPPED
from stepspec.evals.estimate import measuring
from stepspec.evals.estimate.measurements import Measurements
from stepspec.evals.estimate.measuring import RunPace, measure, pace, spread, with_load
from stepspec.evals.estimate.prediction import predict
from stepspec.evals.sample import Arm
from stepspec.orchestrator.chain import THINK_END, Chain, Step, Token
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError, StepspecError
from stepspec.orchestrator.events import Committed, Observer
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.reason import reason
from stepspec.orchestrator.run_options import RunOptions

from ...fakes import ScriptedModel, run
from ...stand_in import Latency, StandIn
from .made import LARGE_SERVER

PROBLEMS = [f"What is {number} + {number}?" for number in range(20)]
READING = Arm.of("reading", "reading")


def steps(length: int, words: int = 24) -> Callable[[tuple[str, ...]], str]:
    """Script *length* steps of so many words."""

    def script(previous: tuple[str, ...]) -> str:
        text = " ".join(f"w{len(previous)}x{word}" for word in range(words))
        return text + ("\n\n" if len(previous) + 1 < length else THINK_END)

    return script


@dataclass
class World:
    """A pair of scripted models; it takes the place of a `Solver`."""

    length: int = 12
    accepted: float = 0.7
    small_pace: float = 0.01
    large_pace: float = 0.1
    waiting: float = 0.2
    settings: Any = field(default_factory=lambda: SimpleNamespace(run=RunOptions()))

    def __post_init__(self) -> None:
        self.small, self.large = (
            SimpleNamespace(
                role=role, name=role, settings=SimpleNamespace(url=f"http://{role}"), thinks=thinks,
                capabilities=unknown, model=partial(self._opened, role),
            )
            for role in ("small", "large")
        )  # fmt: skip

    def _opened(self, role: str, sampling: Any = None) -> ScriptedModel:
        return self.model(role)

    def model(self, role: Any) -> ScriptedModel:
        def judge(chain: Chain, question: str) -> Mapping[str, float]:
            # even draws
            drawn = (
                crc32(chain.messages[0].content.encode()) * 0.7548 + len(chain.steps) * 0.618
            ) % 1
            return {"9" if drawn < self.accepted else "1": 1.0}

        pace, waiting = (
            (self.large_pace, self.waiting)
            if role == "large"
            else (self.small_pace, self.waiting / 4)
        )
        return ScriptedModel(
            role, steps(self.length), judge=judge, sticky=True, pace=pace,
            latency=lambda chain: waiting, reading=lambda chain: 1.25 * waiting,
        )  # fmt: skip

    def policy(self, name: str, options: Mapping[str, Any]) -> Any:
        return policies.make(name, self.model("small"), self.model("large"), **options)

    async def solve(self, problem: str, run: RunOptions, *, observe: Observer) -> None:
        assert not run.auto
        await reason(
            self.policy(run.policy, run.options), Chain.of(problem), ahead=1, observe=observe
        )

    async def warm_up(self) -> None:
        await asyncio.sleep(1)

    async def plain(
        self, solver: Any, problem: str, sampling: Any, budget: Any, clock: Any
    ) -> tuple[None, Any]:
        await asyncio.sleep(self.waiting + budget.tokens * self.large_pace)
        return None, {"large": self.large_pace}


async def thinks(*_: Any) -> bool:
    return True


async def unknown() -> None:
    return None


def measured(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    *arms: Arm,
    minutes: float = 5.0,
    problems: int = 3,
) -> Measurements:
    monkeypatch.setattr(measuring, "solve_plain", world.plain)
    measurement = measure(world, arms or (SHIPPED,), PROBLEMS[:problems], [4], minutes)  # type: ignore[arg-type]
    found, seconds = run(measurement)
    assert seconds <= 60 * minutes + 1e-6, "the limit is a hard one"
    return found


async def seconds_of(world: World, control: LookaheadControl) -> float:
    """What the loop takes for all problems, the thinking alone."""
    for problem in PROBLEMS * 2:
        policy = world.policy("specreason", {})
        await reason(policy, Chain.of(f"{problem} Again?"), ahead=control)
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(("accepted", "small_pace"), [(0.0, 0.01), (0.4, 0.04)])
def test_known_costs_and_accept_rates_give_the_ratio_of_the_loop(
    accepted: float, small_pace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(accepted=accepted, small_pace=small_pace)
    found = measured(world, monkeypatch, minutes=10.0, problems=20)
    (method,) = predict(found).methods
    assert method.drafts > 100
    assert abs(method.accepted.value - accepted) < 0.12
    # what is compared is the arithmetic, not the luck of the draws
    world.accepted = method.accepted.value
    _, seconds = run(seconds_of(world, LookaheadControl(method.alone.ahead, method.alone.hedge)))
    chain = found.chains[1]
    assert chain.answer
    answer = world.waiting + chain.answer * world.large_pace
    plain = answer + sum(chain.steps) * world.large_pace
    assert method.alone.gain.value == pytest.approx(40 * plain / (seconds + 40 * answer), rel=0.05)
    assert method.alone.gain.low <= method.alone.gain.value <= method.alone.gain.high


@pytest.mark.parametrize("pace", [0.5, 2.0, 20.0])
def test_chains_that_never_end_still_give_an_answer_within_the_minutes(
    pace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(length=10**6, large_pace=pace, small_pace=pace / 5, waiting=pace)
    found = measured(world, monkeypatch, SHIPPED, Arm.of("bild", "bild", {"scale": "step"}))
    estimate = predict(found, [4])
    assert len(estimate.methods) == 2
    assert found.cut == len(found.chains)
    for method in estimate.methods:
        assert 0 < method.alone.gain.low <= method.alone.gain.value <= method.alone.gain.high
    if pace == 20.0:  # fifteen tokens are no step, and what is not known makes the interval wide
        assert estimate.methods[0].alone.gain.high > 1.5 * estimate.methods[0].alone.gain.low


def test_a_server_that_writes_nothing_is_an_error_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(waiting=1000.0)
    with pytest.raises(
        StepspecError, match=r"the large model at http://large wrote no two tokens.*stepspec solve"
    ):
        measured(world, monkeypatch)


def test_a_method_whose_requests_fail_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(World):
        def policy(self, name: str, options: Mapping[str, Any]) -> Any:
            if name == "reading":
                raise StepspecError("no scores")
            return super().policy(name, options)

    found = measured(Deaf(), monkeypatch, SHIPPED, READING)
    assert ([arm.name for arm in found.arms], found.skipped) == (
        [SHIPPED.name],
        {"reading": "no scores"},
    )
    with pytest.raises(StepspecError, match="no method can be measured: reading: no scores"):
        measured(Deaf(), monkeypatch, READING)


def test_the_two_best_methods_run_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    bild = Arm.of("bild", "bild", {"scale": "step"})
    found = measured(
        World(), monkeypatch, SHIPPED, Arm.of("stricter", "specreason", {"threshold": 8}), bild
    )
    estimate = predict(found, [4])
    assert [len(method.gains) for method in estimate.methods] == [2, 2, 1]
    assert set(found.runs) == {(method.arm.name, 4) for method in estimate.methods[:2]}


def test_a_step_that_is_cut_counts_with_its_seconds() -> None:
    async def work() -> None:
        for _ in range(3):
            counted(Committed(0, Step("w" * 10, "small", "delimiter", (Token("w"),) * 10)))
            await asyncio.sleep(2)
        counted.stop()

    counted = RunPace()
    run(work())
    assert counted.seconds == pytest.approx(6)
    assert counted.tokens == 20


def test_places_are_of_all_chains_before_any_chain_has_its_share() -> None:
    first, second = (
        [(Chain.of(f"{number}"), number) for number in range(20)],
        [(Chain.of("x"), None)],
    )
    places = list(spread([first, second, []], 0))
    assert len(places) == measuring.PLACES + 1
    assert second[0] in places[:2]


async def test_a_pair_is_measured_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "TOKENS", 12)
    small = StandIn(
        names=("tiny",), steps=4, step_tokens=8, latency=Latency(first=0.001, token=0.001)
    )
    large = StandIn(
        names=("big",),
        steps=4,
        step_tokens=8,
        latency=Latency(first=0.008, token=0.008),
        accept=0.6,
    )
    async with (
        small.serve("small") as one, large.serve("large") as other, Solver(one, other, sampling=GREEDY) as solver,
    ):  # fmt: skip
        found = await measure(solver, [SHIPPED, READING], PROBLEMS[:2], [3], 0.3)
    # eight to one; this machine may be slow, but for both
    assert found.large.token > 1.5 * found.small.token
    assert (found.small.model, found.large.model, found.cut) == ("tiny", "big", 0)
    assert set(found.large.between) == {1, 3}
    assert set(found.runs) == {(SHIPPED.name, 3), (READING.name, 3)}
    assert found.chains[0].steps == (8, 8, 8, 8)
    assert found.large.prefix_cache
    accepted = [trial.accepted for trial in found.trials[SHIPPED.name]]
    assert 0 < sum(accepted) < len(accepted)
    assert all(trial.accepted for trial in found.trials["reading"]), "stand-ins write the same"


async def test_one_model_twice_and_servers_that_cannot_score() -> None:
    same, lacking = (
        StandIn(names=("same",)),
        StandIn(names=("big",), lacks=frozenset({"prompt_logprobs"})),
    )
    twice = StandIn(names=("same",))
    async with (
        same.serve("small") as one,
        twice.serve("large") as other,
        Solver(one, other) as solver,
    ):
        with pytest.raises(ConfigurationError, match=r"both servers serve 'same'.*--small"):
            await measure(solver, [SHIPPED], PROBLEMS, [], 1.0)
    async with (
        same.serve("small") as one,
        lacking.serve("large") as other,
        Solver(one, other) as solver,
    ):
        with pytest.raises(StepspecError, match="does not score text"):
            await measure(solver, [READING], PROBLEMS[:1], [], 2.0)


def test_tokens_take_longer_under_load_and_wait_for_a_full_server() -> None:
    assert LARGE_SERVER.under(16) is None
    loaded = with_load(LARGE_SERVER, 16, (0.046, 16))
    assert loaded.under(16) == 0.046
    full = with_load(LARGE_SERVER, 16, (0.034, 4))
    assert (full.sequences, set(full.between)) == (4, {1, 4})
    assert full.under(8) == pytest.approx(0.034 * 2)
    assert with_load(full, 8, None) is full


def test_the_time_between_tokens_is_that_of_all_streams_together() -> None:
    def stream(begin: float, between: float, count: int) -> list[tuple[float, int]]:
        return [(begin + place * between, place + 1) for place in range(count)]

    assert pace([]) is None
    assert pace([stream(0.0, 0.1, 11)]) == pytest.approx((0.1, 1))
    # While the second one reads its prompt, the first one is faster: that time does not count.
    first = [(0.0, 1), (0.05, 2), (0.1, 3), *((0.2 + 0.2 * place, 4 + place) for place in range(8))]
    assert pace([first, stream(0.2, 0.2, 8)]) == pytest.approx((0.2, 2))


def test_tokens_that_come_in_one_piece_count_together() -> None:
    pieces = [
        (at + 1e-6 * place, 4 * number + place + 1)
        for number, at in enumerate((0.0, 0.4, 0.8))
        for place in range(4)
    ]
    assert pace([pieces]) == pytest.approx((0.1, 1), rel=1e-4)
    assert pace([pieces[:4]]) == pytest.approx((1e-6, 1))


def test_a_server_that_is_full_serves_the_others_afterwards() -> None:
    streams = [[(begin, 1), (begin + 1.0, 11)] for begin in (0.0, 0.0, 1.5, 1.5)]
    assert pace(streams) == pytest.approx((0.1, 2))
