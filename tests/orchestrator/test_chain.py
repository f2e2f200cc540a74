"""Chains are values: growing one makes another, and cutting a step keeps its tokens true."""

import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Message, Rival, Rollback, Step, Token
from stepspec.orchestrator.chain import beginning

from .arms import BOUNDED

WORDS = st.lists(st.text(max_size=4), max_size=8)


def step(*words: str) -> Step:
    tokens = tuple(Token(word, -0.5, 1, number) for number, word in enumerate(words))
    return Step("".join(words), "small", "delimiter", tokens, "words")


def test_growing_a_chain_leaves_the_old_one_as_it_was() -> None:
    chain = Chain.of("Why?")
    longer = chain.extend(step("So", ".\n\n")).extend(step("Yes", ".\n\n"))
    assert (chain.steps, chain.finished) == ((), False)
    assert (longer.text, longer.tokens) == ("So.\n\nYes.\n\n", 4)
    with pytest.raises(FrozenInstanceError):
        longer.steps = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("stop", "finished"), [("delimiter", False), ("length", False), ("until", False), ("end", True)]
)
def test_a_chain_is_finished_when_its_last_step_ended_the_thinking(
    stop: str, finished: bool
) -> None:
    last = Step("So.", "large", stop)  # type: ignore[arg-type]
    assert Chain.of("Why?").extend(last).finished is finished
    assert not Chain.of("Why?").extend(last).extend(step("And", ".\n\n")).finished


@given(
    st.lists(st.sampled_from(["So.\n\n", "$$x", "$$\n\n", "</think>", "\ud800"]), max_size=8),
    st.integers(0, 8),
)
@BOUNDED
def test_totals_are_those_of_the_steps_however_the_chain_was_made(
    texts: list[str], asked: int
) -> None:
    steps = tuple(step(text) for text in texts)
    chain = Chain.of("Why?")
    for count, each in enumerate(steps):
        if count == asked:
            assert chain.text == "".join(texts[:count])
        chain = chain.extend(each)
    whole = Chain(chain.messages, steps)
    copied = pickle.loads(pickle.dumps(chain))
    end = next(
        (place for place, text in enumerate(texts, 1) if text.endswith("</think>")), len(texts)
    )
    for grown in (chain, whole, copied, replace(chain)):
        assert grown == chain
        assert (grown.text, grown.tokens, grown.closed) == (
            "".join(texts),
            len(texts),
            "</think>" in texts,
        )
        assert grown.totals.hashed.digest() == whole.totals.hashed.digest()
        assert grown.totals.blocks == whole.totals.blocks
        thinking, answer = grown.parts()
        assert (thinking.steps, answer.steps) == (steps[:end], steps[end:])
        assert (thinking.text, answer.text) == ("".join(texts[:end]), "".join(texts[end:]))
    assert replace(chain, steps=steps[:2]).text == "".join(texts[:2])


def test_a_cut_keeps_whole_tokens_with_their_ids_and_the_text_of_a_part() -> None:
    full = step("So", " it", " is", ".\n\n")
    whole = full.cut(5)
    within = full.cut(4)
    assert (whole.text, whole.stop) == ("So it", "length")
    assert whole.tokens == (Token("So", -0.5, 1, 0), Token(" it", -0.5, 1, 1))
    assert within.tokens == (Token("So", -0.5, 1, 0), Token(" i", -0.5, 1, -1))
    assert (within.author, within.vocabulary) == ("small", "words")
    assert Step("So it is.", "large").cut(5) == Step("So it", "large", "length")
    assert Step("So.\n</think>", "large", "end").cut(7) == Step("So.\n", "large", "length")


@given(words=WORDS, keep=st.integers(0, 40))
@BOUNDED
def test_the_tokens_of_a_cut_step_join_to_its_text(words: list[str], keep: int) -> None:
    full = step(*words)
    cut = full.cut(keep)
    assert cut.text == full.text[:keep] == "".join(token.text for token in cut.tokens)
    known = [token for token in cut.tokens if token.id >= 0]
    assert known == list(full.tokens[: len(known)])
    assert len(cut.tokens) - len(known) in (0, 1)


def test_the_kept_steps_are_complete_except_for_the_last() -> None:
    one = step("So", " it")
    two = step(" is", ".\n\n")
    kept = {keep: beginning((one, two), keep) for keep in (-1, 0, 4, 5, 6, 11, 99)}
    assert kept[-1] == kept[0] == ()
    assert kept[4] == (one.cut(4),)
    assert kept[5] == (one,)
    assert kept[6] == (one, two.cut(1))
    assert kept[11] == kept[99] == (one, two)


def test_a_rival_without_a_reason_is_the_chosen_one() -> None:
    one = Rival(step("One."), 8.0, "beaten")
    other = Rival(step("Two."), 9.0)
    assert Rollback(rivals=(one, other)).chosen is other
    assert Rollback(rivals=(one,)).chosen is None
    assert Rollback() == Rollback(keep=0)


def test_a_system_message_stands_first_unless_the_conversation_has_one() -> None:
    def messages(problem: str | Sequence[Message], system: str | None) -> list[tuple[str, str]]:
        return [(each.role, each.content) for each in Chain.of(problem, system=system).messages]

    assert messages("1 + 1", "Be brief.") == [("system", "Be brief."), ("user", "1 + 1")]
    assert messages("1 + 1", None) == messages("1 + 1", "") == [("user", "1 + 1")]
    turns = [Message("user", "1 + 1"), Message("assistant", "2"), Message("user", "and 1?")]
    assert messages(turns, "Be brief.")[0] == ("system", "Be brief.")
    assert messages([Message("system", "Own."), *turns], "Be brief.")[:2] == [
        ("system", "Own."),
        ("user", "1 + 1"),
    ]
