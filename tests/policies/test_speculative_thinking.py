"""
Speculative Thinking: the words that hand a paragraph over, for how long, and the sequel; computed
by hand.
"""

from collections.abc import Callable
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Chain, Rollback, Step, reason
from stepspec.orchestrator.chain import DELIMITER, THINK_END
from stepspec.orchestrator.events import Called, Event
from stepspec.policies import SpeculativeThinking
from stepspec.policies.speculative_thinking import RECAP, cue

from ..fakes import Previous, ScriptedModel, counting, run, saying
from ..orchestrator.arms import PROBLEM

LAST = f"That is it.\n{THINK_END}"
FIRST = Step("First.\n\n", "small")
REFLECTED = Step("Wait, no.\n\n", "large", "length", note="reflection")
AFFIRMED = Step("Yes, it is.\n\n", "large", "length", note="affirmation")


def pair(
    small: Callable[[Previous], str], large: Callable[[Previous], str]
) -> tuple[ScriptedModel, ScriptedModel]:
    writer = ScriptedModel("small", small)
    return writer, ScriptedModel("large", large, log=writer.log)


def think(policy: SpeculativeThinking, ahead: int = 0) -> tuple[list[tuple[str, str, str]], str]:
    (chain, end), _ = run(reason(policy, PROBLEM, ahead=ahead))
    return [(step.author, step.text, step.note) for step in chain.steps], end


def after(*steps: Step) -> Chain:
    return Chain(PROBLEM.messages, steps)


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("", ""),
        ("So it is 4.", ""),
        ("Wait.", "reflection"),
        ("HOLD ON, is it?", "reflection"),
        ("Let me verify it,", "reflection"),
        ("The final answer", "affirmation"),
        ("Yes, yes, but wait", "affirmation"),
        ("Yes, but wait", "reflection"),
        ("Waiting, await, checking, yesterday, confidently, recaps", ""),
    ],
)
def test_full_words_decide_the_kind_of_a_sentence_and_a_tie_is_a_reflection(
    sentence: str, kind: str
) -> None:
    assert cue(sentence) == kind


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_cue_ends_the_draft_and_the_large_model_begins_the_paragraph_anew(ahead: int) -> None:
    small, large = pair(
        saying("First.\n\n", "Wait, that is wrong again.\n\n", LAST),
        saying("", "Now one two three four five.\n\n", LAST),
    )
    events: list[Event] = []
    small.observe = events.append
    steps, end = think(SpeculativeThinking(small, large, n1=4), ahead)
    assert steps == [
        ("small", "First.\n\n", ""),
        ("large", "Now one two three", "reflection"),
        ("small", " wrong again.\n\n", ""),
        ("small", LAST, ""),
    ]
    assert end == "finished"
    probe = [event.written for event in events if isinstance(event, Called)][1]
    assert probe == 2  # "Wait" and the comma that ends the word


@pytest.mark.parametrize(
    ("paragraph", "n1", "kind"),
    [
        ("So it is, yes.\n\n", 20, "affirmation"),
        ("So it is, yes.\n\n", 6, "affirmation"),
        ("So it is, yes.\n\n", 5, ""),  # cut behind "yes", which may become "yesterday"
        ("Wait.\n\n", 2, "reflection"),
        ("Wait.\n\n", 1, ""),
    ],
)
def test_a_cue_counts_among_the_first_tokens_and_once_its_word_is_over(
    paragraph: str, n1: int, kind: str
) -> None:
    small, large = pair(saying("First.\n\n", paragraph), counting("large", 9))
    policy = SpeculativeThinking(small, large, n1=n1)
    draft = run(policy.draft(after(FIRST)))[0]
    assert run(policy.verify(after(FIRST), draft))[0] == (
        Rollback(reason=kind) if kind else Accept()
    )
    assert draft.text == ("So it is, yes.\n\n" if "So" in paragraph else "Wait.\n\n")
    assert draft.stop == ("until" if kind else "delimiter")


def test_a_verifying_takeover_continues_and_the_rest_of_the_paragraph_has_no_cues() -> None:
    small, large = pair(
        saying("First.\n\n", "Alternatively a b c d e f wait wait.\n\n", LAST),
        saying("", "Let me check one two three four five six seven eight.\n\n", LAST),
    )
    steps, _ = think(SpeculativeThinking(small, large, n1=3, n2=5))
    assert steps == [
        ("small", "First.\n\n", ""),
        ("large", "Let me check", "reflection"),
        ("large", " one two three four five", ""),
        ("small", " wait.\n\n", ""),
        ("small", LAST, ""),
    ]


def test_a_continued_takeover_is_not_continued_again() -> None:
    small, large = pair(
        saying("First.\n\n", "Wait, no.\n\n", LAST), saying("", *["Check.\n\n"] * 3, LAST)
    )
    steps, _ = think(SpeculativeThinking(small, large, n1=2, n2=2))
    assert steps[:4] == [
        ("small", "First.\n\n", ""),
        ("large", "Check.\n\n", "reflection"),
        ("large", "Check.\n\n", ""),
        ("small", LAST, ""),
    ]


@pytest.mark.parametrize(
    ("recaps", "limit", "length", "options"),
    [
        *[(0, 15, 125, {}), (1, 20, 150, {}), (2, 25, 175, {}), (3, 30, 200, {}), (4, 30, 200, {})],
        (1, 40, 300, {"limit": 40, "n3": 300}),  # above the highest they do not grow
    ],
)
def test_after_too_many_reflections_the_large_model_gets_the_recap_prompt(
    recaps: int, limit: int, length: int, options: dict[str, Any]
) -> None:
    recap = Step(RECAP.text, "large", "length")
    small, large = pair(counting("small", 99), lambda previous: " word" * 999)
    policy = SpeculativeThinking(small, large, **options)
    before = (FIRST, *[REFLECTED] * 40, recap) * recaps
    uncounted = (
        AFFIRMED,
        Step("And wait, another.\n\n", "large"),
        Step("So we wait.\n\n", "small"),
    )
    few = after(FIRST, *before, *uncounted, *[REFLECTED] * (limit - 1))
    assert run(policy.draft(few))[0].author == "small"
    many = few.extend(REFLECTED)
    assert run(policy.draft(many))[0] == recap
    assert run(policy.verify(many, recap))[0] == Accept(judged=False)
    assert (
        run(policy.draft(many.extend(Step(f"So.\n{THINK_END}", "small", "end"))))[0].author
        == "small"
    )
    thought = run(policy.draft(many.extend(recap)))[0]
    assert (thought.author, len(thought.tokens), thought.stop) == ("large", length, "length")
    assert run(policy.verify(many.extend(recap), thought))[0] == Accept(judged=False)
    assert run(policy.draft(many.extend(recap).extend(thought)))[0].author == "small"


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_small_model_that_does_not_reason_gives_every_paragraph_up(ahead: int) -> None:
    small, large = pair(
        saying("a b c d e.\n\n", "f g h i j.\n\n", f"k l m n.\n{THINK_END}"),
        saying("A B C D E.\n\n", "F G H I J.\n\n", f"K L M N.\n{THINK_END}"),
    )
    steps, end = think(SpeculativeThinking(small, large, n1=2, begin=4, reasoning=False), ahead)
    assert steps == [
        ("large", "A B C D", ""),
        ("small", " e.\n\n", ""),
        ("large", "F G", "delimiter"),
        ("small", " h i j.\n\n", ""),
        ("large", "K L", "delimiter"),
        ("small", f" m n.\n{THINK_END}", ""),
    ]
    assert end == "finished"
    if not ahead:
        assert [line for line in small.log if line.endswith("done")] == [
            *["large write 0 done", "small write 1 done", "large write 2 done"],
            *["small write 3 done", "large write 4 done", "small write 5 done"],
        ]


def test_a_takeover_may_end_the_thinking_and_a_paragraph_with_a_cue_does_not() -> None:
    small, large = pair(saying("First.\n\n", "Yes, that is all.\n\n"), saying("", LAST))
    steps, end = think(SpeculativeThinking(small, large))
    assert (steps[1], end) == (("large", LAST, "affirmation"), "finished")
    small, large = pair(
        saying("First.\n\n", f"Wait.{THINK_END}", LAST), saying("", "Go on.\n\n", LAST)
    )
    steps, _ = think(SpeculativeThinking(small, large, n1=3))
    assert steps[1:] == [("large", "Go on.\n\n", "reflection"), ("small", LAST, "")]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_step_that_the_loop_refuses_is_written_again_as_a_step(ahead: int) -> None:
    again = " ".join(map(str, range(150))) + DELIMITER
    other = "Something else, and more of it.\n\n"
    small, large = pair(saying(again), saying(again, again, other, LAST))
    steps, _ = think(SpeculativeThinking(small, large, n1=2), ahead)
    assert steps[:3] == [("small", again, ""), ("small", again, ""), ("large", other, "repetition")]
    large.script = saying(again)
    assert think(SpeculativeThinking(small, large, n1=2), ahead)[1] == "repetition"
