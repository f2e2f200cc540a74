"""The end of a step, with its text in any tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stepspec.orchestrator.chain import THINK_END, Step, Stop, Token
from stepspec.orchestrator.endpoints.token_stream import StepBuilder, ends_in
from stepspec.orchestrator.step_ends import StepEnds

PIECES = st.lists(
    st.sampled_from(["a", "\n", "\n\n", ".\n", "b.\n\nC", "</", "think", ">", THINK_END, "x</think>y", ""])
)


def grown(pieces: list[str], limit: int = 1000) -> tuple[Step, Stop | None, StepBuilder]:
    growing = StepBuilder("small", "v", ends=StepEnds(blocks=False), limit=limit)
    for number, piece in enumerate(pieces):
        if stop := growing.add(Token(piece, id=number)):
            return growing.end(stop), stop, growing
    return growing.end("end"), None, growing


@settings(deadline=None)
@given(PIECES)
def test_it_ends_where_the_first_stop_string_is_complete(pieces: list[str]) -> None:
    text = "".join(pieces)
    end = ends_in(text, ("\n\n", THINK_END))
    step, stop, growing = grown(pieces)
    assert step.text == (text if end < 0 else text[:end])
    assert stop == (None if end < 0 else "end" if step.text.endswith(THINK_END) else "delimiter")
    assert "".join(token.text for token in step.tokens) == step.text
    complete = [token for token in step.tokens if token.id >= 0]
    assert [token.text for token in complete] == pieces[: len(complete)]
    assert growing.overran or len(complete) == len(step.tokens)


@settings(deadline=None)
@given(PIECES, st.integers(1, 5))
def test_it_ends_at_the_limit_at_the_latest(pieces: list[str], limit: int) -> None:
    step, stop, _ = grown(pieces, limit)
    assert len(step.tokens) <= limit
    assert stop is not None or len(pieces) < limit


def test_an_opening_is_cut_to_the_limit_and_tokens_keep_the_requested_alternatives() -> None:
    rivals = (Token("b"), Token("c"))
    growing = StepBuilder(
        "small", "v", ends=StepEnds((), blocks=False), limit=2, opening=[Token("x"), Token("y"), Token("z")]
    )
    assert growing.end("length").text == "xy"
    growing = StepBuilder("small", "v", ends=StepEnds((), blocks=False), limit=2, top=1)
    for token in (Token("a", top=rivals), Token("d")):
        growing.add(token)
    assert growing.end("length").tokens == (Token("a", top=rivals[:1]), Token("d"))


def test_the_first_of_two_stop_strings_counts() -> None:
    assert ends_in("a; b\n\n", ("\n\n", ";")) == 2
    assert ends_in("a", ("\n\n",)) == -1
    assert ends_in("a\n\nb", ("\n\n",), start=2) == -1
