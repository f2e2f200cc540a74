"""Speed-ups, break-even rates and loads, from measurements made by hand and a simulation that is arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.estimate.prediction import (
    MAXIMUM_CORRECTION,
    Predictor,
    count_drafts,
    count_tokens,
    interpolated,
    stopping_load,
    with_accept_rate,
)
from stepspec.evals.results import wilson
from stepspec.evals.sample import Arm
from stepspec.evals.script import Script, Turn

from .arithmetic import ALONE, BAD, GOOD, LARGE_SERVER, SMALL_SERVER, measured, recorded, script, simulate


def test_the_speed_up_is_that_of_the_simulation_at_the_best_depth() -> None:
    # The large model alone takes 10 s. Eight drafts of 0.1 s are accepted, their verdicts hidden; two take 0.1 s, a
    # verdict of 0.1 s and a repair of 1 s.
    estimate = Predictor(measured(script(8, 2)), simulate).estimate([])
    (method,) = estimate.methods
    assert (method.arm, method.drafts, method.alone.ahead, method.correction) == (SHIPPED, 10, 1, 1.0)
    assert method.accepted == wilson(8, 10)
    assert method.alone.seconds == pytest.approx(8 * 0.1 + 2 * 1.2)
    assert method.alone.seconds_large == pytest.approx(10.0)
    assert method.alone.speed_up.value == pytest.approx(10 / 3.2)
    assert estimate.best is method
    assert (estimate.problems, estimate.highest, method.stop) == (1, 1, None)


def test_a_method_whose_verdicts_take_too_long_does_not_pay_at_any_rate() -> None:
    slow = replace(SMALL_SERVER, between={1: (0.2,)})
    estimate = Predictor(measured(script(8, 2), small=slow), simulate).estimate([])
    assert estimate.best is None
    assert estimate.methods[0].alone.break_even is None


def test_it_breaks_even_where_the_times_are_equal() -> None:
    # Drafts of 0.5 s: with the share a, ten steps take 10 (0.5 + (1 - a) 1.1) s, which is 10 s at a = 6/11.
    half = replace(SMALL_SERVER, between={1: (0.05,)})
    estimate = Predictor(measured(script(2, 8), small=half), simulate).estimate([])
    assert estimate.methods[0].alone.break_even == pytest.approx(6 / 11, abs=0.01)
    assert not estimate.methods[0].pays


def test_methods_are_ordered_by_their_speed_up() -> None:
    other = Arm.of("bild", "bild")
    both = measured(script(4, 6), arms=(LARGE, SHIPPED, other), runs={"bild": recorded(script(9, 1))})
    seen: list[str] = []
    estimate = Predictor(both, simulate, lambda: seen.append("method")).estimate([])
    assert [method.arm.name for method in estimate.methods] == ["bild", SHIPPED.name]
    assert estimate.best is estimate.methods[0]
    assert len(seen) == 2


def test_times_are_corrected_by_what_runs_with_nothing_beside_them_took() -> None:
    # The run took 7.2 s, and the simulation says 3.2 s at the arm's own depth; the large model took 20 s, not 10 s.
    runs = {LARGE.name: recorded(ALONE, seconds=15.0), SHIPPED.name: recorded(script(8, 2), seconds=4.8)}
    (method,) = Predictor(measured(script(8, 2), runs=runs), simulate).estimate([]).methods
    assert method.alone.seconds_large == pytest.approx(15.0)
    assert method.alone.seconds == pytest.approx(4.8)
    assert method.correction == pytest.approx(1.0)
    slow = {**runs, SHIPPED.name: recorded(script(8, 2), seconds=320.0)}
    (method,) = Predictor(measured(script(8, 2), runs=slow), simulate).estimate([]).methods
    assert method.alone.seconds == pytest.approx(3.2 * MAXIMUM_CORRECTION)


def test_the_interval_covers_the_accept_rate_even_if_all_problems_are_alike() -> None:
    (method,) = Predictor(measured(*[script(8, 2)] * 5), simulate).estimate([]).methods
    speed_up, rate = method.alone.speed_up, method.accepted
    assert (method.drafts, rate.value) == (50, 0.8)
    assert speed_up.low == pytest.approx(10 / (10 * (0.1 + 1.1 * (1 - rate.low))), rel=0.03)
    assert speed_up.high > speed_up.value * 1.1


def test_the_interval_is_wider_where_problems_differ_or_paces_vary() -> None:
    alike = measured(*[script(8, 2)] * 10)
    differing = measured(*[script(10, 0), script(6, 4)] * 5)
    shaky = measured(*[script(8, 2)] * 10, large=replace(LARGE_SERVER, between={1: (0.08, 0.1, 0.12)}))

    def width(measurements: object) -> float:
        (method,) = Predictor(measurements, simulate).estimate([]).methods  # type: ignore[arg-type]
        return method.alone.speed_up.high / method.alone.speed_up.low

    assert width(shaky) > width(alike)
    assert width(differing) >= width(alike)


def test_it_stops_paying_at_the_load_where_the_large_model_alone_is_faster() -> None:
    # A verdict takes as many passes as there are problems, unless it is hidden: 0.1 s with one, 1.6 s with sixteen.
    estimate = Predictor(measured(script(4, 6)), simulate).estimate([4, 16])
    (method,) = estimate.methods
    assert [each.concurrency for each in method.expected] == [1, 4, 16]
    first, _, last = (each.speed_up.value for each in method.expected)
    assert first == pytest.approx(10 / (4 * 0.1 + 6 * 1.2))
    assert last == pytest.approx(10 / (4 * 0.1 + 6 * (0.1 + 1.6 + 1.0)))
    assert method.stop is not None
    assert 4 < method.stop < 16
    breaking = [each.break_even for each in method.expected]
    assert breaking == sorted(breaking, key=lambda share: share or 0.0)


def test_an_accept_rate_is_changed_by_few_turns_spread_over_all_scripts() -> None:
    partly, own = Turn(10, 4, 3, 2.0), Turn(5, 5, author="large")
    scripts = [script(8, 2), Script(50, (*(GOOD,) * 8, partly, partly, own))]
    assert count_drafts(scripts) == (16, 20)
    assert count_tokens(scripts) == 100 + 80 + 14 + 5
    assert with_accept_rate(scripts, 0.8) == scripts
    more = with_accept_rate(scripts, 0.9)
    assert count_drafts(more) == (18, 20)
    assert [before.turns[:8] == after.turns[:8] for before, after in zip(scripts, more, strict=True)] == [True, True]
    none = with_accept_rate(scripts, 0.0)
    assert count_drafts(none) == (0, 20)
    assert none[1].turns[-1] == own
    # A rejected draft keeps what the rejected ones keep in the middle: 0 or 4 of 10, and 3 or 10 tokens of repair.
    assert {(turn.kept, turn.repair, turn.grade) for turn in none[0].turns[:8]} == {(2, 3, 1.0)}
    half = with_accept_rate([script(8, 0), script(8, 0)], 0.5)
    assert [count_drafts([each])[0] for each in half] == [4, 4]
    assert {(turn.kept, turn.repair, turn.grade) for each in half for turn in each.turns if turn.grade != 9.0} == {
        (0, 0, 0.0)
    }


def test_a_value_between_two_points_is_on_the_line_and_beyond_them_that_of_the_nearest() -> None:
    assert interpolated({0.0: 1.0, 1.0: 3.0}, 0.25) == 1.5
    assert interpolated({0.2: 1.0, 1.0: 3.0}, 0.1) == 1.0


def test_a_method_that_never_pays_stops_at_one_and_one_that_always_does_never() -> None:
    (method,) = Predictor(measured(script(4, 6)), simulate).estimate([4, 16]).methods
    assert stopping_load([replace(each, concurrency=2) for each in method.expected[2:]]) == 1
    assert stopping_load(method.expected[:1]) is None


def test_a_draft_that_nobody_judged_is_no_draft() -> None:
    judged = Script(50, (GOOD, BAD, Turn(0, 0, 7), Turn(4, 4, author="large")))
    assert count_drafts([judged]) == (1, 2)
