"""What differs between a rejected draft and its repair: whole words, and only where both are alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .script import script

BODY = "return given.map(([before, after]) => diff.difference(before, after))"
TEXTS = st.lists(st.sampled_from(["So", "9", " + ", "3.5", "\n\n", "é", "🦊", "_a", " "]), max_size=12).map("".join)


def differences(*pairs: tuple[str, str]) -> Any:
    return script(BODY, pairs)


def marked(parts: list[dict[str, Any]]) -> str:
    return "".join(f"[{part['text']}]" if part["differs"] else part["text"] for part in parts)


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        ("So 61 + 9 = 60.", "So 61 + 9 = 70.", ("So 61 + 9 =[ 60].", "So 61 + 9 =[ 70].")),
        ("It is 5, I think.", "It is 5.", ("It is 5[, I think].", "It is 5.")),
        ("a b c d", "a c d e", ("a[ b] c d", "a c d[ e]")),
        ("same", "same", ("same", "same")),
        ("x\n = 1", "x = 1", ("x\n = 1", "x = 1")),
    ],
)
def test_words_that_differ_are_marked(before: str, after: str, marks: tuple[str, str]) -> None:
    (found,) = differences((before, after))
    assert (marked(found["before"]), marked(found["after"])) == marks


def test_texts_with_little_in_common_are_not_compared() -> None:
    unlike = ("Let me start over with another idea.", "The sum of all digits is nine")
    endless = ("a " * 1100 + "b", "c " * 1100 + "d")
    assert differences(unlike, endless, ("", "a"), ("a", "")) == [None] * 4


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=30, max_size=30))
@settings(max_examples=4, deadline=None)  # a browser answers
def test_both_sides_are_whole_and_share_what_is_not_marked(pairs: list[tuple[str, str]]) -> None:
    for (before, after), found in zip(pairs, differences(*pairs), strict=True):
        if found is None:
            continue
        assert "".join(part["text"] for part in found["before"]) == before
        assert "".join(part["text"] for part in found["after"]) == after
        common = [
            "".join("".join(part["text"].split()) for part in found[side] if not part["differs"])
            for side in ("before", "after")
        ]
        assert common[0] == common[1]


def longest(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        above = row
        row = [0]
        for place, each in enumerate(other):
            row.append(above[place] + 1 if each == word else max(row[-1], above[place + 1]))
    return row[-1]


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=9)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=40, max_size=40))
@settings(max_examples=4, deadline=None)  # a browser answers
def test_as_little_as_possible_is_marked(pairs: list[tuple[list[str], list[str]]]) -> None:
    found = differences(*((" ".join(one), " ".join(other)) for one, other in pairs))
    for (one, other), parts in zip(pairs, found, strict=True):
        if parts is not None:
            for side in ("before", "after"):
                same = "".join(part["text"] for part in parts[side] if not part["differs"])
                assert len(same.split()) == longest(one, other)
