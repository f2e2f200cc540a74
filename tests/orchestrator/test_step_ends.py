"""Where steps end, as a property of the text alone."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator.step_ends import BLANK_LINES, MAX_BLOCK_CHARACTERS, NO_BLOCKS, StepEnds

from .arms import BOUNDED

PARTS = [
    "So x = 3.", "\n", "\n\n", "\r\n", " ", ";",
    "```", "```python\n", "~~~", "$$", "\\begin{align}", "\\end{align}", "\\[", "\\]",
    "| a |", "\\end{cases}", "`x`", "</think>", "<table>", "</table>", "\\\\[2pt]", "Step 2: no",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=24).map("".join)
ENDS = st.sampled_from([BLANK_LINES, StepEnds((";", "\n\n")), StepEnds(blocks=False)])


def steps(text: str, ends: StepEnds = BLANK_LINES) -> list[str]:
    """Divide *text* as a model would that wrote all of it."""
    found = list[str]()
    before = ""
    while text:
        end = ends.search(before, text)
        end = len(text) if end < 0 else end
        found.append(text[:end])
        before = before + text[:end]
        text = text[end:]
    return found


@pytest.mark.parametrize(
    ("text", "divided"),
    [
        ("a\n\nb\n\nc", ["a\n\n", "b\n\n", "c"]),
        ("a\n\n\nb", ["a\n\n", "\nb"]),
        (
            "a\r\n\r\n```\r\nb\r\n\r\n```\r\n\r\nc",
            ["a\r\n\r\n", "```\r\nb\r\n\r\n```\r\n\r\n", "c"],
        ),
        ("```\na\n\nb\n```\n\nc", ["```\na\n\nb\n```\n\n", "c"]),
        (
            "1. So:\n   ```py\n   a\n\n   b\n   ```\n\nc",
            ["1. So:\n   ```py\n   a\n\n   b\n   ```\n\n", "c"],
        ),
        ("````\n```\na\n\n```\n\n````\n\nc", ["````\n```\na\n\n```\n\n````\n\n", "c"]),
        ("~~~\na\n\n```\n\n~~~\n\nc", ["~~~\na\n\n```\n\n~~~\n\n", "c"]),
        ("Write ```x``` so.\n\nb", ["Write ```x``` so.\n\n", "b"]),
        ("```x``` is it.\n\nb", ["```x``` is it.\n\n", "b"]),
        (
            "\\begin{align}\na\n\nb\n\\end{align}\n\nc",
            ["\\begin{align}\na\n\nb\n\\end{align}\n\n", "c"],
        ),
        (
            "\\begin{a}\\begin{b}\n\n\\end{b}\n\n\\end{a}\n\nc",
            ["\\begin{a}\\begin{b}\n\n\\end{b}\n\n\\end{a}\n\n", "c"],
        ),
        ("$$\na\n\nb\n$$\n\nc", ["$$\na\n\nb\n$$\n\n", "c"]),
        ("\\[\na\n\nb\n\\]\n\nc", ["\\[\na\n\nb\n\\]\n\n", "c"]),
        ("$$a \\\\[2pt] b$$\n\nc", ["$$a \\\\[2pt] b$$\n\n", "c"]),
        ("\\end{align}\n\nc", ["\\end{align}\n\n", "c"]),
        ("<table>\n\n<tr>\n\n</table>\n\nc", ["<table>\n\n<tr>\n\n</table>\n\n", "c"]),
        ("| a |\n|---|\n| 1 |\n\n| 2 |\n\nc", ["| a |\n|---|\n| 1 |\n\n", "| 2 |\n\n", "c"]),
        ("```\na\n\n</think>\n\nb\n\nc", ["```\na\n\n</think>\n\n", "b\n\n", "c"]),
    ],
)
def test_blank_lines_end_steps_outside_blocks_alone(text: str, divided: list[str]) -> None:
    assert steps(text) == divided


def test_an_unclosed_block_ends_at_the_maximum() -> None:
    text = "".join(["```\n", *repeat("a\n\n", MAX_BLOCK_CHARACTERS)])
    assert MAX_BLOCK_CHARACTERS < len(steps(text)[0]) < MAX_BLOCK_CHARACTERS + 9
    assert len(steps(text)[1]) == 3


@pytest.mark.parametrize(
    ("delimiter", "text", "divided"),
    [
        ("\n", "a\nb\n", ["a\n", "b\n"]),
        (["; ", "\n\n"], "a; b\n\nc\r\n\r\n", ["a; ", "b\n\n", "c\r\n\r\n"]),
    ],
)
def test_delimiters_are_texts(delimiter: str | list[str], text: str, divided: list[str]) -> None:
    assert steps(text, StepEnds.of(delimiter)) == divided


@pytest.mark.parametrize("delimiter", ["", [], [""], ["\n\n", ""]])
def test_impossible_delimiters_are_refused(delimiter: str | list[str]) -> None:
    with pytest.raises(ValueError, match="a delimiter is"):
        StepEnds.of(delimiter)


@given(TEXTS, TEXTS, ENDS, st.lists(st.integers(1, 9), min_size=1, max_size=9))
@BOUNDED
def test_the_pieces_in_which_a_text_arrives_do_not_matter(
    before: str, text: str, ends: StepEnds, sizes: list[int]
) -> None:
    """Nor is an end that was found moved by what follows it."""
    full = ends.search(before, text)
    at = 0
    turn = 0
    end = -1
    while at < len(text) and end < 0:
        look = max(0, at - ends.longest + 1)
        at += sizes[turn % len(sizes)]
        end = ends.search(before, text[:at], look)
        turn += 1
    assert end == full


@given(st.lists(TEXTS, max_size=4), TEXTS, ENDS, st.booleans())
@BOUNDED
def test_blocks_that_are_known_need_not_be_searched_for_again(
    parts: list[str], text: str, ends: StepEnds, long: bool
) -> None:
    before = ""
    blocks = NO_BLOCKS
    for part in parts:
        before += part + "x" * (MAX_BLOCK_CHARACTERS if long else 0)
        blocks = blocks.advance(before)
    assert ends.search(before, text, 0, blocks) == ends.search(before, text)
    assert ends.at_end(before, blocks) == ends.at_end(before)
    assert ends.in_block(before + text, blocks) == ends.in_block(before + text)


@given(TEXTS, ENDS)
@BOUNDED
def test_steps_join_to_the_text_and_their_ends_are_marked(text: str, ends: StepEnds) -> None:
    divided = steps(text, ends)
    assert "".join(divided) == text
    for place in range(1, len(divided)):
        assert ends.at_end("".join(divided[:place]))
