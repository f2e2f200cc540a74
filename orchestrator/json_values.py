r"""
Reading and writing JSON that users and models wrote, without changing any of it.

orjson turns integers beyond 64 bits into floats, and refuses ``1e999`` and half of a surrogate pair
(``"\ud83d"``), all of which are JSON (RFC 8259). Long decimals lose digits in a float. Here each
of these comes out as it went in. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import orjson

Halves: TypeAlias = Literal["escape", "replace", "refuse"]
"""What to do with a half of a surrogate pair: it is no character, though JSON can spell it."""

# Python converts no longer ones, as this takes time that grows with the square of the length
MAX_DIGITS = 4000
MAX_EXACT = 16  # characters of a decimal with a point and at most the 15 digits that a float holds
HALF = re.compile("[\ud800-\udfff]")
SPELT_HALF = re.compile(r"\\u[dD][89a-fA-F]")
REPLACEMENT = "\ufffd"


class SpeltNumber(float):
    """A number with the *spelling* that it has in JSON, because no Python number equals it."""

    spelling: str

    def __new__(cls, spelling: str) -> SpeltNumber:
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number


def read_json(text: str | bytes) -> Any:
    """Read a JSON value. Raise `ValueError` for anything else, and for one nested too deep."""
    content = text.decode() if isinstance(text, bytes) else text
    read = partial(json.loads, content, parse_float=_decimal, parse_constant=_constant)
    try:
        return read()
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer is too long for Python
        return read(parse_int=_integer)
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc


def is_json(text: str) -> bool:
    """Whether *text* is one JSON value."""
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def write_json(value: object, halves: Halves = "escape") -> bytes:
    """
    Write *value* as compact JSON in UTF-8, and *halves* of surrogate pairs in one of three ways.

    Raise `TypeError` for what is no JSON, and for halves that are refused.
    """
    try:
        return orjson.dumps(value, default=_spelling)
    except TypeError:
        return _by_parts(value, halves)


def json_text(value: object) -> str:
    """Write *value* as compact JSON text."""
    return write_json(value).decode()


def readable_json(text: str) -> str:
    """
    Return the JSON *text* with a replacement character for each half of a surrogate pair.

    No tokenizer has tokens for such a half. A *text* that is no JSON stays as it is.
    """
    if not SPELT_HALF.search(text):
        return text
    try:
        return write_json(read_json(text), "replace").decode()
    except ValueError:
        return text


def _integer(spelling: str) -> int | SpeltNumber:
    return SpeltNumber(spelling) if len(spelling) > MAX_DIGITS else int(spelling)


def _decimal(spelling: str) -> float:
    number = float(spelling)
    if len(spelling) <= MAX_EXACT and "e" not in spelling.lower():
        return number
    try:
        is_exact = Decimal(spelling) == Decimal(repr(number))
    except InvalidOperation:  # The exponent has too many digits.
        is_exact = False
    return number if is_exact else SpeltNumber(spelling)


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON value")


def _spelling(value: object) -> orjson.Fragment:
    if isinstance(value, SpeltNumber):
        return orjson.Fragment(value.spelling)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _by_parts(value: object, halves: Halves) -> bytes:
    """Write *value*, which orjson refuses as a whole, part by part."""
    if isinstance(value, Mapping):
        members: list[bytes] = []
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.80} is no text")
            members.append(b"%b:%b" % (_by_parts(key, halves), _by_parts(item, halves)))
        return b"{%b}" % b",".join(members)
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join(
            [_by_parts(item, halves) for item in cast("Sequence[object]", value)]
        )
    if isinstance(value, str) and HALF.search(value):
        if halves == "refuse":
            raise TypeError(f"{value!r:.80} has half of a surrogate pair")
        text = json.dumps(value, ensure_ascii=False)
        if halves == "replace":
            text = HALF.sub(REPLACEMENT, text)
        return text.encode(errors="backslashreplace")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    return orjson.dumps(value, default=_spelling)
