"""
Verifiers that are functions: what they may return, threads that are late, and what is no verifier.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stepspec.orchestrator import Chain, Rating
from stepspec.orchestrator.errors import ConfigurationError, VerifierFailed
from stepspec.orchestrator.verifiers import (
    VERIFIERS,
    Candidate,
    FunctionVerifier,
    SharedVerifier,
)

PROBLEM = Chain.of("What is 6 x 7?")
CANDIDATE = Candidate.final(PROBLEM, "It is \\boxed{42}.")


def right(candidate: Candidate) -> bool:
    return candidate.answer == "42"


# A lambda is what is refused.
unnamed: Callable[[Candidate], float] = lambda candidate: 1.0  # noqa: E731


def two(candidate: Candidate, more: object) -> float:
    return 1.0


def shared(function: Any, **settings: Any) -> SharedVerifier:
    return SharedVerifier(FunctionVerifier(function=function, **settings))


async def test_a_thread_that_cannot_start_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    verifier = shared(right, max_concurrency=1, seconds=5)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(VerifierFailed, match="can't start new thread"):
            await verifier.rate(CANDIDATE)
    assert await verifier.rate(CANDIDATE) == Rating(1.0)


@pytest.mark.parametrize(
    ("value", "rating"),
    [
        (True, Rating(1.0)),
        (False, Rating(0.0)),
        (1, Rating(1.0)),
        (0.25, Rating(0.25)),
        (Rating(0.5, " so</think> so "), Rating(0.5, "so so")),
        (Rating(True, "x" * 3000), Rating(1.0, "x" * 2000)),
        *[(wrong, None) for wrong in (None, 1.5, -0.1, float("nan"), "0.5", Rating(2.0), [1.0])],
    ],
)
async def test_a_function_returns_a_rating_a_number_or_a_truth_and_all_else_is_a_failure(
    value: object, rating: Rating | None
) -> None:
    def rate(candidate: Candidate) -> Any:
        return value

    async def rate_later(candidate: Candidate) -> Any:
        return value

    for function in (rate, rate_later):
        verifier = shared(function)
        if rating is not None:
            assert await verifier.rate(CANDIDATE) == rating
            continue
        with pytest.raises(VerifierFailed, match="has to be a number from 0 to 1"):
            await verifier.rate(CANDIDATE)


async def test_what_a_function_raises_is_a_failure_that_names_it() -> None:
    def ends(candidate: Candidate) -> bool:
        raise SystemExit(3)

    def breaks(candidate: Candidate) -> bool:
        raise KeyError("unknown")

    def runs_out(candidate: Candidate) -> bool:
        return next(iter(()))

    causes = {
        ends: "RuntimeError: SystemExit: 3",
        breaks: "KeyError: 'unknown'",
        runs_out: "RuntimeError: StopIter",
    }
    for function, cause in causes.items():
        verifier = shared(function)
        with pytest.raises(VerifierFailed, match=cause):
            await verifier.rate(CANDIDATE)


async def test_a_function_that_blocks_leaves_the_loop_free_and_keeps_its_place_when_late() -> None:
    free = threading.Event()
    entered = asyncio.Event()
    calls = list[str]()
    loop = asyncio.get_running_loop()

    def blocks(candidate: Candidate) -> bool:
        calls.append(candidate.text)
        loop.call_soon_threadsafe(entered.set)
        return free.wait(60)

    verifier = shared(blocks, seconds=1.5, max_concurrency=1)
    rating = asyncio.create_task(verifier.rate(CANDIDATE))
    await entered.wait()  # the loop goes on while the function blocks
    with pytest.raises(VerifierFailed, match=r"no rating within 1\.5 s \(seconds in \[critic\]\)"):
        await rating
    with pytest.raises(VerifierFailed, match="no rating"):
        await verifier.rate(CANDIDATE)
    assert len(calls) == 1
    free.set()
    assert await verifier.rate(CANDIDATE) == Rating(1.0)
    assert len(calls) == 2


async def test_at_most_so_many_run_at_a_time() -> None:
    running = most = 0

    async def counts(candidate: Candidate) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return True

    verifier = shared(counts, max_concurrency=3)
    await asyncio.gather(*(verifier.rate(CANDIDATE) for _ in range(10)))
    assert most == 3


async def test_an_instance_may_be_a_verifier_and_so_may_what_arguments_are_bound_to() -> None:
    class Near:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        async def __call__(self, candidate: Candidate) -> float:
            return float(candidate.answer == self.answer)

    def matches(expected: str, candidate: Candidate) -> bool:
        return candidate.answer == expected

    for function in (Near("42"), partial(matches, "42"), right):
        verifier = shared(function)
        assert await verifier.rate(CANDIDATE) == Rating(1.0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unnamed, "has to have a name"),
        (Chain, "of a class, pass an instance"),
        (two, "has to take one argument"),
    ],
)
def test_what_cannot_be_a_verifier_is_refused_with_the_cure(function: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        VERIFIERS.add(function)
