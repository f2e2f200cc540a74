"""The end of a step, with its text in any tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepspec.orchestrator.chain import THINK_END, Chain, Step, Stop, Token
from stepspec.orchestrator.step_builder import (
    OUTSIDE,
    Closing,
    StepBounds,
    StepBuilder,
)
from stepspec.orchestrator.step_ends import StepEnds

PIECES = st.lists(
    st.sampled_from(
        ["a", "\n", "\n\n", ".\n", "b.\n\nC", "</", "think", ">", THINK_END, "x</think>y", ""]
    )
)


PROBLEM = Chain.of("How many?")
MARK = 99  # the id of the token that closes the thinking
TEXT = Closing(THINK_END)
TOKEN = Closing(THINK_END, MARK)


def number(piece: str, place: int) -> int:
    return MARK if piece == THINK_END else place


def grown(
    pieces: list[str], limit: int = 1000, closing: Closing = TEXT
) -> tuple[Step, Stop | None, StepBuilder]:
    bounds = StepBounds(StepEnds(blocks=False), limit, closing=closing)
    growing = StepBuilder("small", "v", PROBLEM, bounds)
    for place, piece in enumerate(pieces):
        if stop := growing.add(Token(piece, id=number(piece, place))):
            return growing.end(stop), stop, growing
    return growing.end("end"), None, growing


def first_end(pieces: list[str], closing: Closing) -> int:
    """
    The end of the mark in *pieces*, or of the first blank line that they do not begin with; -1 if
    there is none.
    """
    text = "".join(pieces)
    ends = list[int]()
    if closing.id >= 0:
        ends = [
            len("".join(pieces[: place + 1]))
            for place, piece in enumerate(pieces)
            if piece == THINK_END
        ][:1]
    elif THINK_END in text and closing.text:
        ends = [text.index(THINK_END) + len(THINK_END)]
    ends += [
        end for end in range(2, len(text) + 1) if text[:end].strip() and text[:end].endswith("\n\n")
    ][:1]
    return min(ends, default=-1)


@pytest.mark.parametrize("closing", [TEXT, TOKEN, OUTSIDE], ids=["text", "token", "none"])
@settings(deadline=None)
@given(pieces=PIECES)
def test_it_ends_where_the_first_blank_line_or_mark_is_complete(
    pieces: list[str], closing: Closing
) -> None:
    """A mark counts as text or as a token, and not at all outside of the thinking."""
    text = "".join(pieces)
    end = first_end(pieces, closing)
    step, stop, growing = grown(pieces, closing=closing)
    assert step.text == (text if end < 0 else text[:end])
    reason = "delimiter" if step.text.endswith("\n\n") else "end"
    assert stop == (None if end < 0 else reason)
    assert "".join(token.text for token in step.tokens) == step.text
    complete = [token for token in step.tokens if token.id >= 0]
    assert [token.text for token in complete] == pieces[: len(complete)]
    assert growing.overran or len(complete) == len(step.tokens)


@settings(deadline=None)
@given(PIECES, st.integers(1, 5))
def test_it_ends_at_the_limit_at_the_latest(pieces: list[str], limit: int) -> None:
    step, stop, growing = grown(pieces, limit)
    assert len(step.tokens) <= limit or stop == "end" or growing.in_mark
    assert stop is not None or len(pieces) < limit or growing.in_mark


@pytest.mark.parametrize(
    ("pieces", "text", "stop"),
    [
        (["a", "</", "think", ">", "b"], f"a{THINK_END}", "end"),
        (["a", "</", "b"], "a</", "length"),
        (["a", "</", "th", "\n\n"], "a</", "length"),
        (["a", "b", "</"], "ab", "length"),
    ],
)
def test_a_mark_that_begins_within_the_limit_is_completed(
    pieces: list[str], text: str, stop: Stop
) -> None:
    step, found, _ = grown(pieces, 2)
    assert (step.text, found) == (text, stop)
    assert "".join(token.text for token in step.tokens) == text


def test_the_end_of_a_reply_is_left_out() -> None:
    step, stop, _ = grown(
        ["It", " is.", "\n</", "answer", ">\n"], closing=Closing("</answer>", in_chains="")
    )
    assert (step.text, stop) == ("It is.\n", "end")
    assert "".join(token.text for token in step.tokens) == step.text


def test_an_opening_is_cut_to_the_limit_and_tokens_keep_the_requested_alternatives() -> None:
    rivals = (Token("b"), Token("c"))
    bounds = StepBounds(StepEnds((), blocks=False), limit=2)
    opening = [Token("x"), Token("y"), Token("z")]
    growing = StepBuilder("small", "v", PROBLEM, bounds, opening)
    assert growing.end("length").text == "xy"
    growing = StepBuilder("small", "v", PROBLEM, replace(bounds, top=1))
    for token in (Token("a", top=rivals), Token("d")):
        growing.add(token)
    assert growing.end("length").tokens == (Token("a", top=rivals[:1]), Token("d"))


@pytest.mark.parametrize("stops", [("\n\n", ";"), (";", "\n\n")])
def test_the_first_of_two_stop_strings_counts(stops: tuple[str, ...]) -> None:
    growing = StepBuilder("small", "v", PROBLEM, StepBounds(StepEnds(stops, blocks=False), 9))
    assert growing.add(Token("a; b\n\n")) == "delimiter"
    assert growing.so_far().text == "a;"


@pytest.mark.parametrize("size", [1, 2, 9])
def test_the_text_of_several_tokens_may_come_with_the_last_one(size: int) -> None:
    growing = StepBuilder("small", "v", PROBLEM, StepBounds(StepEnds(), 99, closing=TOKEN))
    for token in [*[Token("", id=7)] * size, Token("", id=MARK), Token("", id=8)]:
        assert growing.add(token) is None
    assert growing.add(Token(f"So.{THINK_END}It is", id=9)) == "end"
    assert growing.so_far().text == f"So.{THINK_END}"


HELD = "\ufffd"


@pytest.mark.parametrize(
    ("held", "pieces", "text"),
    [
        (HELD, [HELD, "a"], "a"),
        (HELD, [HELD + "a"], "a"),
        (HELD, ["", "", HELD, "a"], "a"),
        (HELD, ["a"], "a"),
        (HELD, ["", "", "", "\U0001f642", "a"], "\U0001f642a"),
        (HELD, [HELD, HELD, "a"], HELD + "a"),
        (HELD * 2, [HELD, HELD, "a"], "a"),
        (HELD * 2, [HELD * 2 + "a"], "a"),
        (HELD * 2, [HELD, "a"], "a"),
        (HELD * 2, [HELD, HELD + HELD], HELD),
        ("", [HELD], HELD),
    ],
)
def test_held_text_is_left_out_where_the_model_writes_it_again(
    held: str, pieces: list[str], text: str
) -> None:
    chain = PROBLEM.extend(Step(f"a{held}", "small"))
    growing = StepBuilder("small", "v", chain, StepBounds(StepEnds(), 99))
    growing.hold(held)
    for place, piece in enumerate(pieces):
        assert growing.add(Token(piece, id=place)) is None
    step = growing.end("length")
    assert step.text == "".join(token.text for token in step.tokens) == text
    assert all(token.text == pieces[token.id] for token in step.tokens if token.id >= 0)


def test_a_block_that_the_chain_left_open_goes_on_in_the_step() -> None:
    chain = PROBLEM.extend(Step("```\nsome\nx", "small", "length"))
    growing = StepBuilder("small", "v", chain, StepBounds(StepEnds(), 9))
    assert [growing.add(Token(piece)) for piece in ("\n\ny\n", "```\n", "\n")] == [
        None,
        None,
        "delimiter",
    ]
