"""Rounds of watched runs, and the time that rounds take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from stepspec import policies
from stepspec.evals.tune.paces import PairPaces, ServerPace
from stepspec.evals.tune.rounds import Round, RoundWatch, commit_times
from stepspec.orchestrator.chain import Accept, Chain, Rival, Rollback, Step, Token
from stepspec.orchestrator.events import Chosen, Committed, Drafted, Event, Judged, Repaired
from stepspec.orchestrator.reason import reason

from ...fakes import run
from .world import BAD, GOOD, PACES, World, drawn

VERDICT = 0.3  # seconds
# By the paces of `world`: a request takes 0.02 s until its first token, and 0.2 s at the large
# model. Drafts and repairs have ten tokens, each of 0.01 s and 0.1 s; a first token is in the wait
# of the large model, but not in that of the small one.
FIRST_DRAFT = 0.02 + 10 * 0.01
NEXT_DRAFT = 10 * 0.01
REPAIR = 0.2 + 9 * 0.1


def step(author: Any, count: int) -> Step:
    return Step("w" * count, author, "delimiter", (Token("w"),) * count)


def test_a_watched_run_has_its_rounds_and_their_seconds() -> None:
    async def work() -> None:
        watch(Drafted(0, step("small", 4)))
        await asyncio.sleep(0.5)
        watch(Judged(0, step("small", 4), Accept()))
        watch(Committed(0, step("small", 4)))
        await asyncio.sleep(2)
        rollback = Rollback(1)
        watch(Judged(1, step("small", 5), rollback))
        watch(Judged(2, step("small", 6), Accept()))  # a bet, which is lost
        watch(Committed(1, step("small", 1)))
        assert not watch.between
        watch(Repaired(2, step("large", 3), rollback))
        watch(Committed(2, step("large", 3)))
        assert watch.between
        await asyncio.sleep(1)

    watch = RoundWatch()
    run(work())
    assert watch.rounds == [
        Round(4, accepted=True, tokens=4, verdict_seconds=0.5),
        Round(5, accepted=False, tokens=4, written=3),
    ]
    first, last = watch.rounds
    assert (last.at - first.at, watch.tokens) == (2, 8)


def test_a_rival_is_accepted_and_a_step_of_the_large_model_is_no_draft() -> None:
    async def work() -> None:
        rival = step("small", 7)
        watch(Judged(0, step("small", 4), Rollback(rivals=(Rival(rival, 1.0),))))
        watch(Chosen(0, rival))
        watch(Committed(0, rival))
        watch(Judged(1, step("large", 5), Accept()))
        watch(Committed(1, step("large", 5)))

    watch = RoundWatch()
    run(work())
    assert watch.rounds == [
        Round(7, accepted=True, tokens=7),
        Round(0, accepted=True, tokens=5, written=5),
    ]


def test_drafts_ahead_hide_the_verdicts_of_accepted_ones() -> None:
    times = commit_times([GOOD] * 7, PACES, VERDICT)
    first = FIRST_DRAFT + VERDICT
    # The third draft begins at once. The fourth begins when the first one is in the chain, and the
    # seventh when the fourth one is.
    in_chain = [first, first + NEXT_DRAFT, first + 2 * NEXT_DRAFT]
    in_chain += [each + NEXT_DRAFT + VERDICT for each in in_chain]
    in_chain += [in_chain[3] + NEXT_DRAFT + VERDICT]
    assert times == pytest.approx(in_chain)
    sequential = commit_times([GOOD] * 2, replace(PACES, ahead=0), VERDICT)
    assert sequential == pytest.approx([first, first + NEXT_DRAFT + VERDICT])


def test_a_rejected_draft_waits_for_its_verdict_and_its_repair() -> None:
    repaired = FIRST_DRAFT + VERDICT + REPAIR
    times = commit_times([BAD, GOOD], PACES, VERDICT)
    assert times == pytest.approx([repaired, repaired + FIRST_DRAFT + VERDICT])


def test_a_step_of_the_large_model_takes_no_draft_and_no_verdict() -> None:
    by_large = Round(0, accepted=True, tokens=10, written=10)
    times = commit_times([by_large, GOOD], PACES, VERDICT)
    assert times == pytest.approx([REPAIR, REPAIR + FIRST_DRAFT + VERDICT])


@pytest.mark.parametrize("accepted", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_the_replay_takes_the_time_of_the_loop(accepted: float, ahead: int) -> None:
    world = World(length=40, accepted=accepted)
    times: list[float] = []

    async def work() -> int:
        clock = asyncio.get_running_loop().time

        def observe(event: Event) -> None:
            if isinstance(event, Committed):
                times.append(clock())

        policy = policies.make("specreason", world.model("small"), world.model("large"))
        chain, _ = await reason(policy, Chain.of("How?"), ahead=ahead, observe=observe)
        return len(chain.steps[0].tokens)

    tokens, _ = run(work())
    good = [drawn("How?", step + 1) < accepted for step in range(40)]
    rounds = [
        replace(GOOD, drafted=tokens) if each else replace(BAD, drafted=tokens, written=tokens)
        for each in good
    ]
    paces = PairPaces(ServerPace((0.01,), 0.06), ServerPace((0.1,), 0.3), 0.1, 8, ahead)
    assert times == pytest.approx(commit_times(rounds, paces, 0.25), rel=0.03)
