"""The arithmetic of an estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.evals.arms import SHIPPED
from stepspec.evals.estimate.measurements import DraftTrial, SeenChain
from stepspec.evals.estimate.prediction import predict
from stepspec.evals.sample import Arm

from .made import BAD, GOOD, LARGE_SERVER, SMALL_SERVER, measured


def test_the_gain_is_that_of_adding_up_the_tokens() -> None:
    (method,) = predict(measured(8, 2)).methods
    # Verdicts of 0.25 s hide behind two drafts ahead. Of ten drafts of 0.1 s two are rejected, each
    # of which waits for its verdict, for a repair (0.2 + 9 x 0.1 s) and for the first token of the
    # next draft (0.11 / 0.11 of 0.02 s).
    each = max(0.1, 0.35 / 4)
    seconds = each + 0.2 * (0.02 + 0.1 + 0.25 - each + 0.2 + 0.9)
    assert method.alone.ahead == 3
    assert method.alone.gain.value == pytest.approx((0.2 + 10) / (0.02 + 10 * seconds))
    assert (method.drafts, method.accepted.value, method.verdict_seconds) == (10, 0.8, 0.25)
    assert method.alone.gain.low < method.alone.gain.value < method.alone.gain.high
    assert max(method.widths, key=lambda cause: method.widths[cause]) == "accept"


def test_it_breaks_even_where_the_gain_is_one() -> None:
    (few,) = predict(measured(20, 80)).methods
    # the depth at its rate is 0, which no other rate wants
    (never,) = predict(measured(0, 10)).methods
    assert few.break_even is not None
    assert never.break_even == few.break_even
    even = round(100 * few.break_even)
    (there,) = predict(measured(even, 100 - even)).methods
    assert there.alone.gain.value == pytest.approx(1, abs=0.05)
    trials = {SHIPPED.name: (replace(GOOD, seconds=None),) * 8 + (replace(BAD, seconds=None),) * 2}
    slow = measured(0, 0, trials=trials, small=replace(SMALL_SERVER, between={1: (0.2,)}))
    assert predict(slow).methods[0].break_even is None
    assert predict(slow).best is None


def test_more_drafts_narrow_the_interval_and_none_leave_it_open() -> None:
    few, many, none = (
        predict(measured(*counts)).methods[0] for counts in ((8, 2), (80, 20), (0, 0))
    )
    widths = [method.alone.gain.high / method.alone.gain.low for method in (many, few, none)]
    assert widths == sorted(widths)
    assert (none.accepted.low, none.accepted.high) == (0, 1)


def test_an_accepted_draft_counts_between_its_own_tokens_and_those_of_the_large_step() -> None:
    longer = replace(GOOD, own=40)
    usual, long = (
        predict(measured(0, 0, trials={SHIPPED.name: (trial,) * 8 + (BAD,) * 2})).methods[0]
        for trial in (GOOD, longer)
    )
    assert usual.widths["length"] == 0
    assert long.widths["length"] > 0.5
    assert (
        long.alone.gain.low < usual.alone.gain.value < long.alone.gain.value < long.alone.gain.high
    )


def test_what_is_kept_of_rejected_drafts_counts() -> None:
    kept = DraftTrial(False, 10, 8, 2, 10, (0.11, 0.25))
    whole, part = (
        predict(measured(0, 0, trials={SHIPPED.name: (GOOD,) * 5 + (trial,) * 5})).methods[0]
        for trial in (BAD, kept)
    )
    assert part.alone.gain.value > 1.3 * whole.alone.gain.value


def test_answers_of_the_large_model_alone_shorten_the_gain() -> None:
    cascade, chains = Arm.of("cascade", "cascade"), (SeenChain((10,) * 10, answer=100),)
    trials = {cascade.name: (GOOD,) * 10}
    (alone,) = predict(measured(0, 0, arms=(cascade,), trials=trials, chains=chains)).methods
    (method,) = predict(measured(10, 0, chains=chains)).methods
    assert method.alone.gain.value > 4
    assert 1 < alone.alone.gain.value < 2


def test_a_small_model_that_stands_still_while_the_large_one_reads_gains_less() -> None:
    shared = replace(SMALL_SERVER, contended=(0.05, 0.04))  # three quarters of a verdict of 0.25 s
    alone, contended = (
        predict(measured(10, 0, small=small)).methods[0].alone for small in (SMALL_SERVER, shared)
    )
    assert alone.gain.value / contended.gain.value == pytest.approx(
        (0.1 + 0.75 * 0.25) / 0.1, rel=0.03
    )


def test_drafts_are_hedged_where_many_are_rejected_and_no_card_is_shared() -> None:
    hedged, certain = (predict(measured(good, 10 - good)).methods[0].alone for good in (5, 8))
    assert (hedged.hedge, certain.hedge) == (1.0, 0.0)
    shared = (
        predict(measured(5, 5, small=replace(SMALL_SERVER, contended=(0.02,)))).methods[0].alone
    )
    assert shared.hedge == 0.0
    # A rejected draft of 0.02 + 0.1 s and its verdict of 0.25 s go on while the large model writes
    # its repair of 1.1 s.
    each = max(0.1, 0.35 / 4)
    seconds = each + 0.5 * (0.02 + 0.1 + 0.25 - each + (0.2 + 0.9 - 0.37))
    assert hedged.gain.value == pytest.approx((0.2 + 10) / (0.02 + 10 * seconds))


def test_under_load_runs_are_compared_with_as_many_streams() -> None:
    busy = replace(LARGE_SERVER, between={1: (0.1,), 4: (0.2,)})
    (method,) = predict(measured(9, 1, large=busy, runs={(SHIPPED.name, 4): 0.05}), [4, 8]).methods
    assert {each.concurrency: each.gain.value for each in method.gains[1:]} == pytest.approx(
        {4: (0.2 + 20) / (0.02 + 5)}
    )
    answering = measured(
        9,
        1,
        large=busy,
        runs={(SHIPPED.name, 4): 0.05},
        chains=(SeenChain((10,) * 10, answer=100),),
    )
    assert predict(answering, [4]).methods[0].gains[1].gain.value == pytest.approx(
        (0.2 + 40) / (0.02 + 10)
    )
