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
return known && { ...known, asked: asked.map(({ rejected, accepted }) => [numbers(rejected), numbers(accepted)]) };
"""


def threshold_of(policy: str, *verdicts: Verdict, at: tuple[float, ...] = ()) -> Any:
    """What is known about the threshold of a run with these *verdicts*, and what would change *at* other ones."""
    lines = [dump(Moment(0, Started((), policy)))]
    for index, verdict in enumerate(verdicts):
        draft = Step(f"{index}\n\n", "small")
        lines += [dump(Moment(index, event)) for event in (Drafted(index, draft), Judged(index, draft, verdict))]
    return script(BODY, [b"".join(lines).decode(), at])


def test_a_run_without_scores_has_no_slider() -> None:
    assert threshold_of("random", Accept(), Rollback(reason="random")) is None


def test_grades_that_reach_the_threshold_are_accepted() -> None:
    known = threshold_of("specreason", Accept(8.5), Rollback(reason="grade", score=3), Accept(7.5), at=(0, 5, 8, 9))
    assert (known["low"], known["high"], known["between"]) == (0, 9, [3, 7.5])
    assert 3 < known["own"] < 7.5
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
