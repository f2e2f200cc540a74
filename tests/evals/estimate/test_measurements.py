"""The costs of a server from what was measured of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.evals.estimate.measurements import NOTHING, UNLIMITED, fit_line
from stepspec.evals.estimate.measuring import LEAST_TOKENS, before_cut, keeps_prompts, pace, run_limit
from stepspec.orchestrator.answer import CLOSED
from stepspec.orchestrator.chain import Accept, Rollback, Step
from stepspec.orchestrator.events import Answered, Answering, Committed, Drafted, Event, Judged
from stepspec.orchestrator.trace import Moment

from .arithmetic import LARGE_SERVER

DRAFT = Step("So.\n\n", "small")


def test_a_line_goes_through_the_times_and_never_falls() -> None:
    assert fit_line({1: 0.03}) == pytest.approx((0.03, 0.0))
    assert fit_line({1: 0.031, 4: 0.034, 16: 0.046}) == pytest.approx((0.03, 0.001))
    assert fit_line({1: 0.03, 16: 0.02}) == pytest.approx((0.0231, 0.0), abs=1e-4)
    assert fit_line({1: 0.01, 16: 0.32}) == pytest.approx((0.0, 0.012))


def test_what_a_request_takes_is_its_first_token_without_the_pass_and_what_it_reads() -> None:
    server = replace(LARGE_SERVER, between={1: (0.031,), 16: (0.046,)}, prompt_token=(0.001,), cached=(0.1,))
    costs = server.costs()
    assert (costs.per_pass, costs.per_sequence) == pytest.approx((0.03, 0.001))
    # A cached prompt ends in the middle of a block of 16: eight tokens are read again.
    assert costs.per_request == pytest.approx(0.1 - 0.031 - 0.008)
    assert costs.seconds(1, 100) == pytest.approx(0.031 + 0.1)
    assert (costs.sequences, costs.block) == (UNLIMITED, 16)


def test_without_a_prefix_cache_every_request_reads_its_prompt() -> None:
    costs = replace(LARGE_SERVER, prefix_cache=False, cached=(1.2,), prompt=1000, sequences=8).costs()
    assert costs.block == NOTHING
    assert costs.per_request == pytest.approx(1.2 - 0.1 - 1.0)
    assert costs.sequences == 8


def test_a_noisy_measurement_gives_no_negative_costs() -> None:
    costs = replace(LARGE_SERVER, prompt_token=(-0.001,), cached=(0.01,)).costs()
    assert (costs.per_prompt_token, costs.per_request) == (0.0, 0.0)


def test_another_pace_is_that_of_writing_alone() -> None:
    assert LARGE_SERVER.at_pace(2.0) == replace(LARGE_SERVER, between={1: (0.2,)})


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
        (at + 1e-6 * place, 4 * number + place + 1) for number, at in enumerate((0.0, 0.4, 0.8)) for place in range(4)
    ]
    assert pace([pieces]) == pytest.approx((0.1, 1), rel=1e-4)
    assert pace([pieces[:4]]) == pytest.approx((1e-6, 1))


def test_a_server_that_is_full_serves_the_others_afterwards() -> None:
    streams = [[(begin, 1), (begin + 1.0, 11)] for begin in (0.0, 0.0, 1.5, 1.5)]
    assert pace(streams) == pytest.approx((0.1, 2))


def test_a_repeated_prompt_shows_a_prefix_cache_if_reading_takes_long_enough() -> None:
    assert keeps_prompts((1.1,), (0.1,), (0.001,), 1000) is True
    assert keeps_prompts((1.1,), (1.0,), (0.001,), 1000) is False
    assert keeps_prompts((1.1,), (1.0,), (0.0001,), 1000) is None


@pytest.mark.parametrize(
    "answer",
    [
        [Committed(1, Step("</think>", "small", "end", note=CLOSED)), Judged(2, DRAFT, Rollback())],
        [Answering("2"), Answered(Step("2", "large", "end"))],
    ],
    ids=["by the method", "by one model"],
)
def test_a_run_that_is_cut_counts_until_then(answer: list[Event]) -> None:
    thinking: list[Event] = [Drafted(0, DRAFT), Judged(0, DRAFT, Accept()), Committed(0, DRAFT)]
    moments = [Moment(float(at), event) for at, event in enumerate([*thinking, *answer])]
    assert [moment.event for moment in before_cut(moments) if not isinstance(moment.event, Answering)] == thinking


def test_runs_are_short_enough_for_the_deadline() -> None:
    # For two problems of four arms, at 0.05 s a token.
    fast = replace(LARGE_SERVER, between={1: (0.05,)})
    assert run_limit(fast, arms=4, seconds=75, most=8192) == 187
    assert run_limit(fast, arms=4, seconds=75, most=100) == 100
    assert run_limit(LARGE_SERVER, arms=40, seconds=75, most=8192) == LEAST_TOKENS
