"""
Lookahead Reasoning: drafts that mean the same as the large model's step are accepted; its step
replaces others.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Verdict, reason
from stepspec.policies import LookaheadReasoning

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM

OWN = "The large one says 0.\n\n"


def verdict(
    draft: str, says: Mapping[str, float], chain: Chain = PROBLEM
) -> tuple[Verdict, ScriptedModel]:
    small = ScriptedModel("small", counting("small", 3))
    large = ScriptedModel("large", counting("large", 3), judge=lambda chain, question: says)
    return run(LookaheadReasoning(small, large).verify(chain, Step(draft, "small")))[0], large


@pytest.mark.parametrize("draft", [OWN, "the  large ONE\nsays 0.\n\n", "Thelargeonesays0."])
def test_a_difference_in_case_and_white_space_is_accepted_without_a_question(draft: str) -> None:
    ruling, large = verdict(draft, {"No": 1.0})
    assert ruling == Accept()
    assert not [line for line in large.log if " ask " in line]


@pytest.mark.parametrize(
    ("says", "ruling"),
    [
        ({"Yes": 0.75, "No": 0.25}, Accept(0.75)),
        ({"Yes": 0.25, "No": 0.75}, Rollback(reason="another meaning", score=0.25)),
        ({"Yes": 0.5, "No": 0.5}, Rollback(reason="another meaning", score=0.5)),
        ({"Yes": 0.05, "Well": 0.9}, Accept(0.05)),
        ({"Yes": 0.03125, "Well": 0.9}, Rollback(reason="another meaning", score=0.03125)),
        ({}, Rollback(reason="another meaning", score=0.0)),
    ],
)
def test_not_to_be_sure_is_a_no(says: Mapping[str, float], ruling: Verdict) -> None:
    found, _ = verdict("Something else.\n\n", says)
    if isinstance(found, Rollback):
        assert found.instead is not None
        assert (found.instead.text, found.instead.author) == (OWN, "large")
        found = Rollback(found.keep, found.reason, found.score)
    assert found == ruling


def test_a_draft_that_ends_within_a_paragraph_is_never_accepted() -> None:
    chain = PROBLEM.extend(Step("The large one", "small", "length"))
    ruling, _ = verdict(" says 0.\n\n", {"Yes": 1.0}, chain)  # word for word the large model's
    assert isinstance(ruling, Rollback)
    assert ruling.reason == "half a paragraph"
    assert ruling.instead is not None
    assert ruling.instead.text == " says 0.\n\n"


def test_the_repair_is_the_step_that_was_compared_and_is_not_written_again() -> None:
    small, large = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
    policy = LookaheadReasoning(small, large)
    own = Step("Mine.\n\n", "large")
    assert run(policy.repair(PROBLEM, own, Rollback(instead=own)))[0] is own
    assert large.log == []
    assert run(policy.repair(PROBLEM, own, Rollback(reason="empty")))[0].text == OWN
    assert policy.answerer is large


# The large model's own step begins with the draft: it needs only the chain before it.

STEPS = 12
# seconds per step
SMALL = 1.0
LARGE = 5.0


def pair(script: str = "any") -> tuple[ScriptedModel, ScriptedModel]:
    """
    Two models of one mind, unless the *script* is the small one's; the large one takes five times
    as long.
    """
    small = ScriptedModel("small", counting("small" if script == "small" else "large", STEPS))
    large = ScriptedModel(
        "large", counting("large", STEPS), log=small.log, judge=lambda chain, question: {"No": 1.0}
    )
    small.latency = lambda chain: SMALL
    large.latency = lambda chain: LARGE
    return small, large


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, STEPS * LARGE),  # one after the other, and nobody waits for the draft
        (1, STEPS / 2 * LARGE + SMALL),  # two at a time
        (STEPS, (STEPS - 1) * SMALL + LARGE),  # all at a time
    ],
)
def test_the_large_models_step_begins_with_the_draft(ahead: int, expected: float) -> None:
    assert run(reason(LookaheadReasoning(*pair()), PROBLEM, ahead=ahead))[1] == expected


def test_a_draft_in_a_loop_is_repaired_by_the_step_that_was_begun_with_it() -> None:
    small, large = pair()
    small.script = lambda previous: "no " * 450 + "\n\n"
    (chain, _), took = run(reason(LookaheadReasoning(small, large), PROBLEM))
    assert took == STEPS * LARGE
    assert {step.note for step in chain.steps} == {"repetition"}
    assert [line for line in large.log if line.startswith("large write")] == [
        line
        for place in range(STEPS)
        for line in (f"large write {place}", f"large write {place} done")
    ]
