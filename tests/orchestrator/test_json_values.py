"""JSON that comes out as it went in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator.json_values import (
    SpeltNumber,
    is_json,
    json_text,
    read_json,
    readable_json,
    write_json,
)

UNCHANGED = [
    "1500000000000000000000",
    "-1500000000000000000000",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "9" * 5000,
    "1e999",
    "-1E999",
    "1e-400",
    "1e-99999999999999999999999999",
    "0.1234567890123456789",
    "123456789012345678901234567890.5",
    "5e-324",
    "-0.0",
    '"\\ud83d"',
    '"a\\udc00b"',
    '{"\\ud83d":[1e999,{"a":12345678901234567890123}]}',
    '{"b":1,"a":[true,false,null,"é😀"]}',
]
REFUSED = ["NaN", "[Infinity]", "[" * 100_000, '{"a":1,}', "'a'", "", "\ufeff1", "1 2", "01", "[1"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize("text", UNCHANGED)
def test_a_json_value_comes_out_as_it_went_in(text: str) -> None:
    assert json_text(read_json(text)) == text
    assert is_json(text)


@given(VALUES)
def test_every_value_is_written_as_json_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert json.loads(json_text(read_json(text))) == json.loads(text)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_json_is_refused(text: str) -> None:
    assert not is_json(text)


def test_halves_of_characters_are_escaped_replaced_or_refused() -> None:
    value = {"half": "\ud83d😀", "number": SpeltNumber("1e999")}
    assert write_json(value) == '{"half":"\\ud83d😀","number":1e999}'.encode()
    assert write_json(value, "replace") == '{"half":"\ufffd😀","number":1e999}'.encode()
    with pytest.raises(TypeError, match="half of a surrogate pair"):
        write_json(value, "refuse")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": "\\ud83d\\ude00"}', '{"a":"😀"}'),
        ('{"a": "\\uDEAD", "b": 1e999}', '{"a":"\ufffd","b":1e999}'),
        ('{"a":  "\\\\ud83d"}', '{"a":"\\\\ud83d"}'),
        ('{"a":  "x"}', '{"a":  "x"}'),
        ('{"a": "\\ud83d"', '{"a": "\\ud83d"'),
    ],
)
def test_a_model_reads_a_replacement_for_half_of_a_character(text: str, shown: str) -> None:
    assert readable_json(text) == shown


@pytest.mark.parametrize("value", [{1: 10**30}, {"a": {1}, "b": 10**30}, object()])
def test_what_has_no_json_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        write_json(value)
