"""
Text that spells special tokens: where it does, and how it is divided so that it stays text. Pure: no I/O.

A tokenizer finds the spelling of a special token in any text, and servers offer no way to switch that off. A user who
writes ``<|im_end|>`` would end a turn. So a spelling is divided after its first character, and both halves are encoded
by themselves: no tokenizer sees the whole spelling.

Which tokens are special is not known to a client. `is_mark` goes by the shape, and takes too many rather than too few:
an ordinary token of that shape becomes two ordinary tokens of the same text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast
from unicodedata import category, normalize

import orjson

from .vllm_protocol import REPLACEMENT

SENTINEL = f"stepspec-{secrets.token_hex(12)}"
"""A word that no text can hold, as each process draws its own; templates and JSON leave it unchanged."""

_SIGNS = re.compile("[<>\\[\\]|\u25c1\u25b7\uff5c]")  # also Kimi's triangles and DeepSeek's wide bar
_FIXED = frozenset({"role", "type"})
"""The fields of messages and tools whose values are names of the protocol."""


def may_spell(text: str) -> bool:
    """Whether *text* has a sign that special tokens are made of, also once a tokenizer has normalised it."""
    return _SIGNS.search(text) is not None or (
        not text.isascii() and _SIGNS.search(normalize("NFKC", text)) is not None
    )


def is_mark(piece: str) -> bool:
    """Whether a token with the text *piece* has the shape of a special token: a word or a sign between two signs."""
    if len(piece) < 3 or not (_sign(piece[0]) and _sign(piece[-1])):
        return False
    return (piece[0] == "<" and piece[-1] == ">") or any(character.isalnum() for character in piece)


def _sign(character: str) -> bool:
    return category(character)[0] in "PS" and character != REPLACEMENT


def divided(text: str, marks: Iterable[str], by: str = SENTINEL) -> str:
    """Put *by* after the first character of each of *marks* in *text*, also where they overlap."""
    cuts = {found.start() + 1 for mark in marks for found in re.finditer(f"(?={re.escape(mark)})", text)}
    places = [0, *sorted(cuts), len(text)]
    return by.join(text[start:end] for start, end in pairwise(places))


def texts_of(fields: object) -> str:
    """Join all text in the *fields* of messages and tools; arguments of calls as the JSON that they are."""
    if isinstance(fields, str):
        return fields
    if isinstance(fields, Mapping):
        members = cast("Mapping[str, object]", fields)
        return "\n".join(
            f"{key}\n{texts_of(_plain(key, value))}" for key, value in members.items() if key not in _FIXED
        )
    if isinstance(fields, Sequence):
        return "\n".join(map(texts_of, cast("Sequence[object]", fields)))
    return ""


def divided_fields(fields: Any, marks: Collection[str], kept: Collection[str] = ()) -> Any:
    """
    Divide *marks* in all text of *fields*, of messages and tools, except *kept* ones in what the assistant said.

    Templates look for those: they leave out the thinking of earlier turns.
    """
    if isinstance(fields, str):
        return divided(fields, marks)
    if isinstance(fields, Mapping):
        members = cast("Mapping[str, Any]", fields)
        said = "content" if members.get("role") == "assistant" else ""
        made: dict[str, Any] = {}
        for key, value in members.items():
            here = [mark for mark in marks if mark not in kept] if key == said else marks
            made[divided(key, marks)] = value if key in _FIXED else divided_fields(_plain(key, value), here)
        return made
    if isinstance(fields, Sequence):
        items = cast("Iterable[Any]", fields)
        return [divided_fields(item, marks, kept) for item in items]
    return fields


def _plain(key: str, value: object) -> object:
    """Spell out the escaped characters of a call's arguments, as the server does before it renders them."""
    if key != "arguments" or not isinstance(value, str):
        return value
    try:
        return orjson.dumps(orjson.loads(value)).decode()
    except orjson.JSONDecodeError:
        return value


def joined(text: str, separator: str) -> tuple[str, list[bool]]:
    """
    Put *separator*, a special token, in the place of each sentinel in *text*, so that one request encodes all parts.

    The list tells for each *separator* of the new text whether it was put there.
    """
    inserted: list[bool] = []
    for place, part in enumerate(text.split(SENTINEL)):
        inserted += [True] * (place > 0) + [False] * part.count(separator)
    return text.replace(SENTINEL, separator), inserted


def without_inserted(ids: Sequence[int], separator: int, inserted: Sequence[bool]) -> tuple[int, ...] | None:
    """Leave out the *inserted* separators; None if the tokenizer has not found each of them."""
    if ids.count(separator) != len(inserted):
        return None
    order = iter(inserted)
    return tuple([number for number in ids if number != separator or not next(order)])
