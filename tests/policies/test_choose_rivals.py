"""Beginnings of rivals: none is the beginning of another, and none is a stump."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Rival, Rollback, Step, Token
from stepspec.orchestrator.chain import THINK_END
from stepspec.policies.choose import combine, forks, shuffle

from ..orchestrator.arms import BOUNDED, PROBLEM

NEVER = -math.inf
LOGPROBS = st.floats(-6, 0)


def token(text: str, *others: tuple[str, float], id: int = 1) -> Token:
    own = Token(text, -0.1, 1)
    return Token(text, -0.1, 1, id, (own, *[Token(other, logprob) for other, logprob in others]))


def step(*tokens: Token) -> Step:
    return Step("".join(token.text for token in tokens), "small", "delimiter", tokens, "words")


def begun(step: Step, least: float = NEVER) -> list[str]:
    return [one.text for one in forks(PROBLEM, step, least)]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Steps of words that tell different words for their places."""
    words = draw(st.lists(st.sampled_from([" a", " b", " c", "d", ""]), min_size=1, max_size=6))
    likely = st.dictionaries(st.sampled_from([" a", " b", " c", "d", " </s>", "\n\n"]), LOGPROBS, max_size=4)
    return step(*[token(word, *draw(likely).items()) for word in words])


def test_the_likeliest_are_first_and_among_equals_the_earlier() -> None:
    draft = step(token("So", ("Wait", -2.0)), token(" 7", (" 8", -1.0), (" 9", -2.0)), token(".\n\n"))
    assert begun(draft) == ["So 8", "Wait", "So 9"]
    assert begun(draft, -1.0) == ["So 8"]
    assert begun(draft, -0.99) == []


def test_delimiters_and_tokens_without_words_begin_no_rival() -> None:
    odd = ("\n\n", f"a{THINK_END}", "<|im_end|>", "</s>", "\ufffd", "", " <|eot_id|>", "So")
    assert begun(step(token("So", *[(text, -1.0) for text in odd], ("1 < 2 > 0", -1.0)))) == ["1 < 2 > 0"]
    assert begun(step(token("So\n"), token("it", ("\n", -1.0), (" is", -2.0)))) == ["So\n is"]


def test_a_token_that_was_cut_and_the_middle_of_a_character_are_no_place_to_fork() -> None:
    assert begun(step(token("So"), token(".\n\n", (" and", -1.0), id=-1))) == []
    half = token("", (" b", -1.0))
    assert begun(step(token("a"), half, token("é", ("x", -1.0)), token("c", ("y", -1.0)))) == ["a b", "aéy"]
    assert begun(step(token("", (" b", -1.0)), token("é", ("x", -1.0)), token(""))) == [" b"]


def test_rivals_with_the_text_of_the_draft_are_dropped() -> None:
    same = "".join(("S", "o"))
    assert begun(step(token("So", (same, -0.1), ("It", -1.0), id=0))) == ["It"]


def test_beginnings_are_drawn_without_replacement_by_the_seed_and_the_chain() -> None:
    draft = step(token("So", *[(f"w{n}", -1.0 - n / 4) for n in range(6)]))
    found = forks(PROBLEM, draft, NEVER)
    orders = [shuffle(found, 1.0, seed, PROBLEM) for seed in range(40)]
    assert all(sorted(one.text for one in order) == sorted(one.text for one in found) for order in orders)
    assert len({tuple(one.text for one in order) for order in orders}) > 20
    assert shuffle(found, 1.0, 3, PROBLEM) == shuffle(found, 1.0, 3, PROBLEM)
    other = PROBLEM.extend(draft)
    assert any(shuffle(found, 1.0, seed, PROBLEM) != shuffle(found, 1.0, seed, other) for seed in range(5))


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 4 / 9), (0.5, 16 / 21), (2.0, 2 / 7)])
def test_the_first_drawn_is_as_likely_as_its_token_at_that_temperature(temperature: float, share: float) -> None:
    found = forks(PROBLEM, step(token("So", ("a", math.log(0.4)), *[(word, math.log(0.1)) for word in "bcdef"])), NEVER)
    firsts = [shuffle(found, temperature, seed, PROBLEM)[0].text for seed in range(1500)]
    assert firsts.count("a") / len(firsts) == pytest.approx(share, abs=0.05)


def test_one_of_several_equal_rivals_is_accepted() -> None:
    rivals = [Rival(step(token("So")))] * 2
    ruling = combine(Rollback(reason="grade"), rivals, [Accept(8.0)] * 2)
    assert [rival.reason for rival in ruling.rivals] == ["", "beaten"]


@given(draft=steps(), least=st.floats(-6, 0))
@BOUNDED
def test_no_beginning_is_the_beginning_of_another_or_of_the_step(draft: Step, least: float) -> None:
    written = [tuple(token.text for token in draft.tokens)]
    for one in forks(PROBLEM, draft, least):
        assert "".join(token.text for token in one.tokens) == one.text
        assert one.tokens[-1].logprob >= least
        assert one.tokens[:-1] == tuple(
            Token(t.text, t.logprob, t.rank, t.id) for t in draft.tokens[: len(one.tokens) - 1]
        )
        written.append(tuple(token.text for token in one.tokens))
    for place, words in enumerate(written):
        assert not any(other[: len(words)] == words for number, other in enumerate(written) if number != place)
