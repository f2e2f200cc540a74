"""Which verdicts the threshold slider says would have been others."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rollback, Step
from stepspec.orchestrator.chain import Verdict
from stepspec.orchestrator.events import Drafted, Judged, Started
from stepspec.orchestrator.trace import Moment, dump

from .script import script

BODY = """
const known = threshold.thresholds(seen(given[0]));
const numbers = (drafts) => drafts.map((one) => one.number);
const asked = given[1].map((at) => threshold.changes(known, at));
const usual = known && threshold.usual(known);
const answers = asked.map(({ rejected, accepted }) => [numbers(rejected), numbers(accepted)]);
return known && { ...known, usual, asked: answers };
"""


def threshold_of(
    policy: str, *verdicts: Verdict, at: tuple[float, ...] = (), own: tuple[str, float] | None = None
) -> Any:
    """What is known about the threshold of a run with these *verdicts*, and what would change *at* other ones."""
    lines = [dump(Moment(0, Started((), policy, threshold=own)))]
    for index, verdict in enumerate(verdicts):
        draft = Step(f"{index}\n\n", "small")
        lines += [dump(Moment(index, event)) for event in (Drafted(index, draft), Judged(index, draft, verdict))]
    return script(BODY, [b"".join(lines).decode(), at])


def test_a_run_without_scores_has_no_slider() -> None:
    assert threshold_of("random", Accept(), Rollback(reason="random")) is None


def test_grades_that_reach_the_threshold_are_accepted() -> None:
    known = threshold_of("specreason", Accept(8.5), Rollback(reason="grade", score=3), Accept(7.5), at=(0, 5, 8, 9))
    assert (known["low"], known["high"], known["between"]) == (0, 9, [3, 7.5])
    assert known["own"] is None
    assert 3 < known["usual"] < 7.5
    assert known["asked"] == [[[], [1]], [[], []], [[2], []], [[0, 2], []]]


def test_a_doubt_that_passes_the_threshold_is_rejected() -> None:
    known = threshold_of("bild", Accept(0.5), Rollback(3, "rollback", 4.5), Accept(1.5), at=(0.4, 1, 3, 9))
    assert known["between"] == [1.5, 4.5]
    assert known["asked"] == [[[0, 2], []], [[2], []], [[], []], [[], [1]]]


def test_verdicts_that_the_score_did_not_decide_stay() -> None:
    verdicts = Accept(0.5), Accept(1.0), Rollback(3, "rollback", 4.5), Rollback(2, "fallback", 0.7)
    known = threshold_of("bild", *verdicts, at=(0.4, 2, 9))
    assert known["asked"] == [[[0, 1], []], [[], []], [[], [2]]]


@pytest.mark.parametrize("verdict", [Accept(8.5), Rollback(reason="grade", score=3.0)])
def test_one_kind_of_verdicts_is_enough(verdict: Verdict) -> None:
    known = threshold_of("specreason", verdict, at=(0, 9))
    below, above = known["asked"]
    assert sorted(map(len, below + above)) == [0, 0, 0, 1]


def test_scores_without_end_do_not_break_it() -> None:
    known = threshold_of("bild", Accept(0.5), Rollback(3, "rollback", float("inf")), Accept(1.0))
    assert [one["number"] for one in known["scored"]] == [0, 2]


def test_probabilities_have_the_whole_range() -> None:
    known = threshold_of("cascade", Accept(0.9), Rollback(reason="large check", score=0.4))
    assert (known["low"], known["high"]) == (0, 1)


def test_a_runs_own_threshold_is_that_of_its_trace() -> None:
    known = threshold_of("specreason", Accept(8.5), Accept(9.0), own=("threshold", 4.0), at=(3, 4, 8.6))
    assert (known["own"], known["usual"], known["option"]) == (4.0, 4.0, "threshold")
    assert known["asked"] == [[[], []], [[], []], [[0], []]]
    known = threshold_of("bild", Accept(0.5), own=("rollback", 6.0))
    assert (known["own"], known["option"]) == (6.0, "rollback")
    assert known["high"] >= 6


def test_verdicts_are_compared_with_the_threshold_of_the_trace() -> None:
    """A draft that was rejected with a grade above the threshold fell for another reason: it stays rejected."""
    verdicts = Accept(8.5), Rollback(reason="no grade", score=8.0)
    assert threshold_of("specreason", *verdicts, own=("threshold", 7.0), at=(0,))["asked"] == [[[], []]]
    assert threshold_of("specreason", *verdicts, at=(0,))["asked"] == [[[], [1]]]


def test_scores_are_counted_in_bins_of_the_same_width() -> None:
    body = "return threshold.bins({ scored: given.map((verdict) => ({ verdict })), low: 0, high: 9 }, 3)"
    verdicts = [{"kind": kind, "score": score} for kind, score in (("accept", 9), ("accept", 3), ("rollback", 2.9))]
    assert script(body, [*verdicts, {"kind": "rollback", "score": -1}]) == [
        {"accepted": 0, "rejected": 2},
        {"accepted": 1, "rejected": 0},
        {"accepted": 1, "rejected": 0},
    ]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 9, 10, [*range(10)]),
        (0, 1, 10, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 1.32, 8, [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2]),
        (0, 81.3, 9, [*range(0, 81, 10)]),
        (-3, 12, 4, [0, 5, 10]),
        (5, 5, 4, [5]),
    ],
)
def test_an_axis_has_round_ticks(low: float, high: float, most: int, expected: list[float]) -> None:
    assert script("return axis.ticks(...given)", [low, high, most]) == expected
