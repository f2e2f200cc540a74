"""
Prompts as JSON of token ids, and request bodies that contain them. Pure.

A chain of 64,000 tokens has 400 KB of JSON, and is sent twice for each of its steps. To write it
anew, or to copy it several times, takes longer than the rest of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from ..json_values import write_json

Ids: TypeAlias = tuple[int, ...]
"""Token ids."""

MAX_PARTS = 64
"""Parts of a prompt. More are joined."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """
    The token ids of a prompt, as JSON without its brackets.

    A prompt that grows shares its parts with the shorter one.
    """

    count: int = 0
    """The number of tokens."""
    parts: tuple[bytes, ...] = ()
    """The JSON in parts that join to it: each but the first begins with a comma."""

    @classmethod
    def of(cls, ids: Sequence[int]) -> EncodedPrompt:
        return cls(len(ids), (orjson.dumps(ids)[1:-1],)) if ids else cls()

    def plus(self, ids: Sequence[int]) -> EncodedPrompt:
        """Return the prompt that goes on with *ids*."""
        return self.followed(EncodedPrompt.of(ids))

    def followed(self, other: EncodedPrompt) -> EncodedPrompt:
        """Return the prompt that goes on with the tokens of *other*."""
        if not other.count:
            return self
        if not self.count:
            return other
        first, *rest = other.parts
        parts = (*self.parts, b"," + first, *rest)
        if len(parts) > MAX_PARTS:
            parts = (b"".join(parts),)
        return EncodedPrompt(self.count + other.count, parts)

    def beginning(self, count: int, size: int) -> EncodedPrompt:
        """Return the first *count* tokens, which have *size* bytes of JSON."""
        parts: list[bytes] = []
        for part in self.parts:
            if size <= 0:
                break
            parts.append(part[:size])
            size -= len(part)
        return EncodedPrompt(count, tuple(parts))

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """The number of bytes of the JSON."""
        return sum(map(len, self.parts))

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return self.last(self.count)

    def last(self, count: int) -> list[int]:
        """Return the last *count* token ids, or all."""
        json = b"".join(self.parts)
        if count < self.count:
            json = b",".join(json.rsplit(b",", count)[1:])
        ids: list[int] = orjson.loads(b"[%b]" % json)
        return ids


def write_body(body: Mapping[str, Any]) -> bytes:
    """
    Write the *body* of a request as JSON. A field may be a prompt, or a list of prompts.

    Raise `TypeError` for what is no JSON, and for a half of a surrogate pair.
    """
    return write_json({name: _written(value) for name, value in body.items()}, "refuse")


def _written(value: object) -> object:
    """Return *value*, with the JSON of a prompt, or of each prompt in a list, in its place."""
    if isinstance(value, EncodedPrompt):
        return orjson.Fragment(b"".join((b"[", *value.parts, b"]")))
    if isinstance(value, list):
        members = cast("list[object]", value)
        if members and isinstance(members[0], EncodedPrompt):
            return [_written(member) for member in members]
        return members
    return value
