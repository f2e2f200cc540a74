"""
Whole runs in a simulation: the real loop, with times that are arithmetic, and nothing left behind.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.crowd import Timing
from lab.script import Script, Turn
from lab.simulation.costs import ServerCosts
from lab.simulation.figures import simulate, simulate_block, start_servers
from stepspec.evals.sample import Arm
from stepspec.orchestrator.errors import ConfigurationError

from ..fakes import run

ENDS = Turn(5, 5, author="large", stop="end", ends=True)
GOOD = Turn(5, 5, grade=9.0)
LAST = replace(GOOD, stop="end", ends=True)
BAD = Turn(5, 0, 7, grade=2.0)
SECOND = ServerCosts(1.0)  # every pass takes a second, whatever it has

LARGE = Arm.of("large alone", "large")
SEQUENTIAL = Arm.of("sequential", "specreason", ahead=0, ending="small", answer="large")
AHEAD = Arm.of("ahead", "specreason", ahead=1, ending="small", answer="large")
METHODS = (
    Arm.of("SpecReason", "specreason"),
    Arm.of("BiLD", "bild"),
    Arm.of("BiLD by steps", "bild", {"scale": "step"}),
    Arm.of("Reflective", "reflective"),
    Arm.of("Lookahead Reasoning", "lookahead-reasoning"),
    Arm.of("auto", "specreason", auto=True),
    LARGE,
)


def script(*turns: Turn) -> Script:
    return Script(30, (*turns, ENDS), question=20)


def seconds(arm: Arm, *turns: Turn) -> float:
    return simulate(1, arm, [script(*turns)], start_servers(SECOND, SECOND), problems=2).mean


def test_a_token_takes_a_pass_and_so_does_a_verdict() -> None:
    """Four drafts of 5 tokens, each followed by a verdict; the answer has 5."""
    assert seconds(SEQUENTIAL, GOOD, GOOD, GOOD, LAST) == 4 * (5 + 1) + 5


def test_verdicts_overlap_with_the_drafts_that_follow() -> None:
    """The small model writes 20 tokens without a pause; the answer begins with the last verdict."""
    assert seconds(AHEAD, GOOD, GOOD, GOOD, LAST) == 20 + 1 + 5


def test_a_rejected_draft_costs_its_repair() -> None:
    assert seconds(SEQUENTIAL, GOOD, BAD, GOOD, LAST) == 4 * (5 + 1) + 7 + 5


def test_the_large_model_alone_writes_all_tokens_in_one_request() -> None:
    large = [replace(turn, author="large") for turn in (GOOD, GOOD, LAST)]
    assert seconds(LARGE, *large) == 15 + 5


def test_the_method_answers_too_and_a_draft_does_not_end_the_thinking() -> None:
    """
    SpecReason as it is: the end is cut off the draft, which is judged; the large model writes the
    end.
    """
    opened, end = replace(GOOD, stop="open"), Turn(1, 1, author="large", stop="end", ends=True)
    whole = Script(30, (GOOD, opened, end, replace(GOOD, stop="end", ends=True)), question=20)
    for ahead in (0, 2):
        arm = Arm.of("SpecReason", "specreason", ahead=ahead)
        assert {timing.tokens for timing in timings_of(arm, whole)} == {
            sum(turn.kept for turn in whole.turns)
        }


def timings_of(arm: Arm, *scripts: Script, at_once: int = 2) -> tuple[Timing, ...]:
    servers = start_servers(SECOND, SECOND)
    block, _ = run(simulate_block(at_once, arm, scripts, scripts[:1], servers))
    for server in servers.values():
        assert (server.running, server.waiting) == (0, 0)
        assert not any(resident.requests for resident in server.resident.values())
    assert not any(timing.failure for timing in block)
    return block


MIXED = script(GOOD, BAD, GOOD, replace(BAD, draft=9, kept=4), GOOD, BAD, LAST)


@pytest.mark.parametrize("arm", METHODS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("at_once", [1, 6])
def test_every_request_ends_and_nothing_is_left(arm: Arm, at_once: int) -> None:
    assert len(timings_of(arm, *[MIXED] * 6, at_once=at_once)) == 6


@pytest.mark.parametrize("arm", METHODS, ids=lambda arm: arm.name)
def test_a_run_waits_for_those_that_came_before_it_and_not_for_new_ones(arm: Arm) -> None:
    """
    Six problems at once share two sequences of a server, and another one comes whenever one ends.
    """
    busy = replace(SECOND, sequences=2)
    alone, *_ = run(simulate_block(1, arm, [MIXED], [MIXED], start_servers(busy, busy)))
    block, _ = run(simulate_block(6, arm, [MIXED] * 6, [MIXED], start_servers(busy, busy)))
    assert max(timing.latency for timing in block) < 6 * alone[0].latency


@pytest.mark.parametrize(
    ("arm", "turns"),
    [
        (AHEAD, (GOOD, BAD, GOOD, LAST)),
        (
            Arm.of("BiLD by steps", "bild", {"scale": "step"}, answer="large"),
            (replace(GOOD, stop="until"), Turn(6, 5, 4, stop="until"), replace(GOOD), LAST),
        ),
        (
            Arm.of("BiLD", "bild", answer="large"),
            (Turn(10, 10, stop="length"), Turn(6, 5, 1, stop="until"), LAST),
        ),
        (Arm.of("Reflective", "reflective", answer="large"), (GOOD, Turn(6, 3, 4), GOOD, LAST)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_kept_and_what_is_repaired_is_what_the_script_says(
    arm: Arm, turns: tuple[Turn, ...]
) -> None:
    (timing,) = timings_of(arm, script(*turns))
    assert timing.sample is not None
    ledger = timing.sample.ledger
    assert (ledger.drafts, ledger.accepted) == (
        len(turns),
        sum(turn.kept == turn.draft for turn in turns),
    )
    assert timing.tokens == sum(
        turn.kept + (turn.repair if turn.kept < turn.draft else 0) for turn in (*turns, ENDS)
    )


SHORT = Arm.of(
    "short",
    "reading",
    {"tokens": "all", "threshold": 0, "draft_tokens": 4, "repair_tokens": 1},
    answer="large",
)


def test_short_drafts_go_through_steps_and_meet_every_difference() -> None:
    """
    Ten tokens, of which the models differ at two; drafts of four go on across the end of a step.

    The drafts: tokens 0 to 3 (cut at 2), 3 to 6, 7 to 9 and 0 (cut at 8), 9 and 0 to 2, 3 and 4.
    """
    bad = Turn(10, 2, 10, later=(8,))
    (timing,) = timings_of(SHORT, script(bad, LAST))
    assert timing.sample is not None
    ledger = timing.sample.ledger
    assert timing.tokens == 10 + 5 + 5
    assert (ledger.large.kept, ledger.drafts) == (2 + 5, 5)


def test_the_same_arguments_give_the_same_figures() -> None:
    costs = ServerCosts(0.03, 0.001, 0.0001, 0.000001)
    first, again = (
        simulate(4, METHODS[0], [MIXED], start_servers(costs, costs), problems=12) for _ in range(2)
    )
    assert first == again
    assert first.problems_per_second == 4 / first.mean


def test_a_card_of_its_own_saves_time() -> None:
    costs = ServerCosts(0.03, 0.01, sequences=4)
    own, shared = (
        simulate(8, AHEAD, [MIXED], start_servers(costs, costs, shared=shared), problems=16).mean
        for shared in (False, True)
    )
    assert own < shared


def test_a_simulation_without_problems_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one problem"):
        simulate(1, LARGE, [], start_servers(SECOND, SECOND))
