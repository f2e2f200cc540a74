"""
The spellings of special tokens in text of users and models. Pure: no I/O.

A tokenizer finds the spelling of a special token in any text, and servers offer no way to switch
that off: a user who writes ``<|im_end|>`` would end a turn. A spelling is therefore divided after
its first character, and both halves are encoded by themselves: no tokenizer sees all of it.
Mistral's own tokenizer finds special tokens in no text at all. Those that its chat template shows
are known by their ids (`TextTokenizer.learn_hidden_ids`).

A client does not know which tokens are special. `is_mark` goes by the shape, and takes too many
rather than too few: an ordinary token of that shape becomes two ordinary tokens of the same text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, cast
from unicodedata import category, normalize

from ...http.prompts import Ids
from ...json_values import json_text, read_json
from .replies import REPLACEMENT

_DRAWN = secrets.token_hex(12)
SENTINEL = f"stepspec-{_DRAWN}"
"""
A word that no text holds, as each process draws its own. Templates and JSON leave it unchanged.
"""

LEFT_EDGE = f"stepspec-left-{_DRAWN}"
"""Stands after a mark that begins a text: see `divided_within`."""

RIGHT_EDGE = f"stepspec-right-{_DRAWN}"
"""Stands before a mark that ends a text: see `divided_within`."""

MARK_SIGN = re.compile("[]<>[|\u25c1\u25b7\uff5c]")
"""Special tokens have one of these; the last three are Kimi's triangles and DeepSeek's wide bar."""

PROTOCOL_FIELDS = frozenset({"role", "type"})
"""The fields of messages and tools whose values are names of the protocol."""


def may_spell(text: str) -> bool:
    """
    Return whether *text*, or its normal form, has a sign that special tokens are made of.

    Some tokenizers normalise a text before they look for special tokens.
    """
    return any(map(MARK_SIGN.search, (text, normalize("NFKC", text))))


@cache
def is_mark(piece: str) -> bool:
    """
    Return whether a token with the text *piece* has the shape of a special token.

    That is a word between two signs, or anything between ``<`` and ``>``.
    """
    if len(piece) < 3 or not (_is_sign(piece[0]) and _is_sign(piece[-1])):
        return False
    return (piece[0] == "<" and piece[-1] == ">") or any(character.isalnum() for character in piece)


def _is_sign(character: str) -> bool:
    return category(character)[0] in "PS" and character != REPLACEMENT


def divided(text: str, marks: Iterable[str]) -> str:
    """
    Put a sentinel after the first character of each of *marks* in *text*, also where they overlap.
    """
    any_mark = _any_of([mark for mark in marks if mark in text])
    if not any_mark:
        return text
    return re.sub(f"(?={any_mark})(.)", rf"\g<1>{SENTINEL}", text, flags=re.DOTALL)


def divided_within(text: str, marks: Collection[str]) -> str:
    """
    Divide *text* as `divided` does, but leave a mark at its beginning and at its end whole.

    Templates look for marks there: ``<tool_response>`` begins a result of a tool. `LEFT_EDGE` and
    `RIGHT_EDGE` mark such a place, to be found in the rendered text.
    """
    inner = text.strip()
    any_mark = _any_of(marks)
    found = re.fullmatch(f"({any_mark}|)(.*?)({any_mark}|)", inner, re.DOTALL)
    first, middle, last = found.groups() if found else ("", inner, "")
    rest = divided(middle, marks)
    edges = {first, last} - {""}
    if divided(first, edges) + rest + divided(last, edges) != divided(inner, marks):
        return divided(text, marks)  # marks overlap
    opening = f"{first}{LEFT_EDGE}" if first else ""
    closing = f"{RIGHT_EDGE}{last}" if last else ""
    return text.replace(inner, f"{opening}{rest}{closing}", 1)


def _any_of(marks: Iterable[str]) -> str:
    """Return the regular expression of any of *marks*, the longest first."""
    return "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))


def without_edges(text: str, marks: Collection[str], *, divide: bool) -> str:
    """
    Leave the edges of `divided_within` out of *text*.

    *divide* divides the marks at the edges. Otherwise these marks are left out, too.
    """
    any_mark = _any_of(marks)

    text = re.sub(
        f"({any_mark})(?={LEFT_EDGE})|(?<={RIGHT_EDGE})({any_mark})",
        lambda found: divided(found[0], [found[0]]) if divide else "",
        text,
    )
    return text.replace(LEFT_EDGE, "").replace(RIGHT_EDGE, "")


def texts_of(fields: object) -> str:
    """Return all text in the *fields* of messages and tools, joined by line breaks."""
    if isinstance(fields, str):
        return fields
    if isinstance(fields, Mapping):
        members = cast("Mapping[str, object]", fields)
        shown = {key: value for key, value in members.items() if key not in PROTOCOL_FIELDS}
        return "\n".join(f"{key}\n{texts_of(_plain(key, value))}" for key, value in shown.items())
    if isinstance(fields, Sequence):
        return "\n".join(map(texts_of, cast("Sequence[object]", fields)))
    return ""


def divided_fields(fields: Any, marks: Collection[str], whole: Collection[str] = ()) -> Any:
    """
    Divide *marks* in all text of *fields*, the fields of messages and tools.

    The marks *whole* stay whole in the assistant's content. Templates look for these marks to leave
    out the thinking of earlier turns.
    """
    if isinstance(fields, str):
        return divided_within(fields, marks)
    if isinstance(fields, Mapping):
        members = cast("Mapping[str, Any]", fields)
        is_assistant = members.get("role") == "assistant"
        divided_members: dict[str, Any] = {}
        for key, value in members.items():
            inner_marks = marks
            if is_assistant and key == "content":
                inner_marks = [mark for mark in marks if mark not in whole]
            if key not in PROTOCOL_FIELDS:
                value = divided_fields(_plain(key, value), inner_marks)
            divided_members[divided(key, marks)] = value
        return divided_members
    if isinstance(fields, Sequence):
        items = cast("Iterable[Any]", fields)
        return [divided_fields(item, marks, whole) for item in items]
    return fields


def _plain(key: str, value: object) -> object:
    """
    Return the arguments of a call without escaped characters, any other *value* as it is.

    The server does the same before it renders a call.
    """
    if key == "arguments" and isinstance(value, str):
        with suppress(ValueError):
            return json_text(read_json(value))
    return value


def joined(text: str, separator: str) -> tuple[str, list[bool]]:
    """
    Put *separator*, a special token, in the place of each sentinel in *text*.

    The list says for each *separator* in the new text whether it replaces a sentinel.
    """
    found = re.findall(f"{SENTINEL}|{re.escape(separator)}", text)
    return text.replace(SENTINEL, separator), [mark == SENTINEL for mark in found]


def without_inserted(ids: Sequence[int], separator: int, inserted: Sequence[bool]) -> Ids:
    """Return *ids* without the *inserted* separators of `joined`."""
    order = iter(inserted)
    return tuple([number for number in ids if number != separator or not next(order)])
