"""Less speculation while the large model is slow, all of it again when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, reason
from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.events import Called, Degraded, Fate, Verb
from stepspec.orchestrator.feedback.load import Load
from stepspec.policies import SpecReason

from ...fakes import ScriptedModel, counting, run
from ..arms import BOUNDED


def called(
    seconds: float,
    verb: Verb = "ask",
    fate: Fate = "done",
    *,
    role: Party = "large",
    prompt: int = 100,
    cached: int = 0,
) -> Called:
    first = seconds / 2 if verb == "write" else None
    return Called(role, verb, fate, 0.0, seconds, first, prompt, cached)


def loaded(load: Load, *seconds: float, times: int = 1) -> Load:
    for _ in range(times):
        for each in seconds:
            load.observe(called(each))
    return load


def test_without_requests_the_full_depth_is_granted() -> None:
    assert (Load().depth(3), Load().depth(0), Load().calm) == (3, 0, True)


def test_slow_requests_halve_the_depth_down_to_none_and_it_grows_back_step_by_step() -> None:
    load = loaded(Load(), 1.0, times=4)
    depths = [loaded(load, 5.0, times=4).depth(8) for _ in range(5)]
    assert depths == [4, 2, 1, 0, 0]
    assert not load.calm
    grown = [loaded(load, 1.0, times=4).depth(8) for _ in range(9)]
    assert grown == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert load.calm


def test_in_between_nothing_changes() -> None:
    load = loaded(Load(share=0.5), 1.0)
    assert loaded(load, 2.5, times=40).share == 0.5


def test_twice_as_long_as_the_best_is_quick_and_three_times_is_slow() -> None:
    load = loaded(Load(share=0.5), 1.0)
    assert loaded(load, 2.0, times=3).share == 0.5 + 1 / 8
    assert loaded(load, 3.0, times=4).share == (0.5 + 1 / 8) / 2


def test_a_request_without_duration_is_ignored() -> None:
    assert loaded(Load(share=0.5), 0.0, times=8).share == 0.5


def test_one_slow_request_among_others_is_no_load() -> None:
    load = loaded(Load(), 1.0, times=4)
    assert loaded(load, 1.0, 100.0, 1.0, 1.0, times=20).calm


def test_like_is_compared_with_like() -> None:
    """A long prompt that is not cached takes longer, and so does another verb."""
    load = loaded(Load(), 1.0, times=4)
    for _ in range(20):
        load.observe(called(30.0, prompt=3000))
        load.observe(called(1.0, prompt=3000, cached=2900))
        load.observe(called(30.0, "score"))
        load.observe(called(16.0, "write"))  # 8 s to its first token; how long it goes on writing is its own affair
    assert load.calm
    for _ in range(4):
        load.observe(called(16.0 * 3, "write"))
    assert load.share == 0.5
    for _ in range(4):
        load.observe(called(3.0, prompt=3000, cached=2900))
    assert load.share == 0.25


@pytest.mark.parametrize(
    "event",
    [
        called(99.0, fate="cancelled"),
        called(99.0, role="small"),
        called(99.0, role="critic"),
        Degraded("small", "gone"),
    ],
    ids=repr,
)
def test_events_unrelated_to_the_large_models_load_are_ignored(event: Called | Degraded) -> None:
    load = loaded(Load(), 1.0, times=4)
    for _ in range(40):
        load.observe(event)
    assert load.calm


def test_requests_that_fail_are_load() -> None:
    load = loaded(Load(), 1.0, times=4)
    for _ in range(4):
        load.observe(called(0.1, fate="failed"))
    assert load.share == 0.5


def test_the_best_time_expires() -> None:
    load = loaded(Load(window=16), 1.0)
    loaded(load, 5.0, times=16)
    assert load.share < 1
    assert loaded(load, 5.0, times=64).calm


@pytest.mark.parametrize(
    ("running", "waiting", "share"),
    [(0, 1, 1.0), (8, 2, 1.0), (8, 3, 0.5), (0, 2, 0.5), (100, 25, 1.0), (100, 26, 0.5)],
)
def test_a_queue_is_load(running: int, waiting: int, share: float) -> None:
    load = Load()
    load.queue(running, waiting)
    assert load.share == share


@given(
    seconds=st.lists(st.floats(0.001, 1e6), max_size=200), most=st.integers(0, 64), waiting=st.lists(st.integers(0, 50))
)
@BOUNDED
def test_the_depth_never_exceeds_the_option_and_is_reproducible(
    seconds: Sequence[float], most: int, waiting: Sequence[int]
) -> None:
    loads = Load(), Load()
    for load in loads:
        loaded(load, *seconds)
        for each in waiting:
            load.queue(10, each)
    assert loads[0].share == loads[1].share
    assert 0 <= loads[0].depth(most) <= most
    assert not loads[0].calm or loads[0].depth(most) == most


def test_a_depth_shrinks_with_concurrent_runs_and_grows_back_afterwards() -> None:
    """
    A simulation: 40 other users come after 60 s and go after 160 s; the server serves eight requests at full speed.

    Runs of five steps follow each other, each with the depth that is granted as it begins.
    """
    load, granted = Load(), list[tuple[float, int]]()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def others() -> int:
            return 40 if 60 <= loop.time() < 160 else 0

        small = ScriptedModel("small", counting("small", 5), latency=lambda chain: 0.5)
        large = ScriptedModel("large", counting("large", 5), observe=load.observe)
        large.reading = large.latency = lambda chain: 0.5 * max(1.0, (large.open + others()) / 8)
        while loop.time() < 300:
            granted.append((loop.time(), load.depth(4)))
            await reason(SpecReason(small, large), Chain.of("What is 6 x 7?"), ahead=granted[-1][1])

    run(main())
    calm = [depth for at, depth in granted if at < 60]
    busy = [depth for at, depth in granted if 90 <= at < 160]
    after = [depth for at, depth in granted if at >= 160]
    assert set(calm) == {4}
    assert set(busy) == {0}
    assert after == sorted(after)
    assert after[-1] == 4
    falling = [depth for at, depth in granted if 60 <= at < 90]
    assert falling == sorted(falling, reverse=True)
