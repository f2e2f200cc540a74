"""Chains are values: growing one makes another, and cutting a step keeps its tokens true."""

import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Chain, Message, Rival, Rollback, Step, Token
from stepspec.orchestrator.chain import beginning

from .arms import BOUNDED

WORDS = st.lists(st.text(max_size=4), max_size=8)


def step(*words: str) -> Step:
    tokens = tuple(Token(word, -0.5, 1, number) for number, word in enumerate(words))
    return Step("".join(words), "small", "delimiter", tokens, "words")


def test_a_chain_begins_with_one_question_or_a_whole_conversation() -> None:
    assert Chain.of("Why?").messages == (Message("user", "Why?"),)
    turns = [Message("system", "Be brief."), Message("user", "Why?")]
    assert Chain.of(turns).messages == tuple(turns)
    assert not Chain.of("Why?").finished


def test_growing_a_chain_leaves_the_old_one_as_it_was() -> None:
    chain = Chain.of("Why?")
    longer = chain.extend(step("So", ".\n\n")).extend(step("Yes", ".\n\n"))
    assert chain.steps == ()
    assert (longer.text, longer.tokens) == ("So.\n\nYes.\n\n", 4)
    with pytest.raises(FrozenInstanceError):
        longer.steps = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    "value",
    [Message("user", "Why?"), Token("So"), step("So"), Chain.of("Why?"), Rival(step("So")), Accept(), Rollback()],
    ids=lambda value: type(value).__name__,
)
def test_a_chain_is_an_immutable_value(value: Any) -> None:
    assert hash(replace(value)) == hash(value)
    for part in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, part.name, getattr(value, part.name))


@pytest.mark.parametrize(
    ("stop", "finished"), [("delimiter", False), ("length", False), ("until", False), ("end", True)]
)
def test_a_chain_is_finished_when_its_last_step_ended_the_thinking(stop: str, finished: bool) -> None:
    last = Step("So.", "large", stop)  # type: ignore[arg-type]
    assert Chain.of("Why?").extend(last).finished is finished
    assert not Chain.of("Why?").extend(last).extend(step("And", ".\n\n")).finished


@given(st.lists(st.sampled_from(["So.\n\n", "$$x", "$$\n\n", "</think>", "\ud800"]), max_size=8), st.integers(0, 8))
@BOUNDED
def test_totals_are_those_of_the_steps_however_the_chain_was_made(texts: list[str], asked: int) -> None:
    steps = tuple(step(text) for text in texts)
    chain = Chain.of("Why?")
    for count, each in enumerate(steps):
        if count == asked:
            assert chain.text == "".join(texts[:count])
        chain = chain.extend(each)
    whole, copied = Chain(chain.messages, steps), pickle.loads(pickle.dumps(chain))
    end = next((place for place, text in enumerate(texts, 1) if text.endswith("</think>")), len(texts))
    for grown in (chain, whole, copied, replace(chain)):
        assert grown == chain
        assert (grown.text, grown.tokens, grown.closed) == ("".join(texts), len(texts), "</think>" in texts)
        assert grown.totals.hashed.digest() == whole.totals.hashed.digest()
        assert grown.totals.blocks == whole.totals.blocks
        thinking, answer = grown.parts()
        assert (thinking.steps, answer.steps) == (steps[:end], steps[end:])
        assert (thinking.text, answer.text) == ("".join(texts[:end]), "".join(texts[end:]))
    assert replace(chain, steps=steps[:2]).text == "".join(texts[:2])


def test_cutting_at_the_border_of_a_token_keeps_whole_tokens_with_their_ids() -> None:
    cut = step("So", " it", " is", ".\n\n").cut(5)
    assert (cut.text, cut.stop) == ("So it", "length")
    assert cut.tokens == (Token("So", -0.5, 1, 0), Token(" it", -0.5, 1, 1))


def test_cutting_within_a_token_keeps_its_text_but_not_its_id() -> None:
    cut = step("So", " it", " is").cut(4)
    assert cut.tokens == (Token("So", -0.5, 1, 0), Token(" i", -0.5, 1, -1))
    assert (cut.author, cut.vocabulary) == ("small", "words")


@given(words=WORDS, keep=st.integers(0, 40))
@BOUNDED
def test_the_tokens_of_a_cut_step_join_to_its_text(words: list[str], keep: int) -> None:
    full = step(*words)
    cut = full.cut(keep)
    assert cut.text == full.text[:keep] == "".join(token.text for token in cut.tokens)
    known = [token for token in cut.tokens if token.id >= 0]
    assert known == list(full.tokens[: len(known)])
    assert len(cut.tokens) - len(known) in (0, 1)


def test_a_step_without_tokens_is_cut_by_its_text() -> None:
    assert Step("So it is.", "large").cut(5) == Step("So it", "large", "length")


def test_the_kept_steps_are_complete_except_for_the_last() -> None:
    one, two = step("So", " it"), step(" is", ".\n\n")
    kept = {keep: beginning((one, two), keep) for keep in (-1, 0, 4, 5, 6, 11, 99)}
    assert kept[-1] == kept[0] == ()
    assert kept[4] == (one.cut(4),)
    assert kept[5] == (one,)
    assert kept[6] == (one, two.cut(1))
    assert kept[11] == kept[99] == (one, two)


def test_the_pieces_of_a_step_are_cut_with_it_and_have_their_authors() -> None:
    tiny, inner = step("So", " it"), step(" is", ".\n\n")
    piece = replace(inner, author="large", pieces=(inner,))
    full = replace(step("So", " it", " is", ".\n\n"), pieces=(tiny, piece))
    assert list(tiny.leaves()) == [("small", tiny)]
    assert list(full.leaves()) == [("small.small", tiny), ("small.large.small", inner)]
    assert full.cut(7).pieces == (tiny, piece.cut(2))
    assert [leaf.text for _, leaf in full.cut(7).leaves()] == ["So it", " i"]


def test_a_rival_without_a_reason_is_the_chosen_one() -> None:
    one, other = Rival(step("One."), 8.0, "beaten"), Rival(step("Two."), 9.0)
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
    assert messages([Message("system", "Own."), *turns], "Be brief.")[:2] == [("system", "Own."), ("user", "1 + 1")]
