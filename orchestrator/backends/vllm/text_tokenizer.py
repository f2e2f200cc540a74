"""
Encode text to token ids, and decode ids. No text of users or models becomes a special token.

A mark is the spelling of a special token, such as ``<|im_end|>``. The module `special_tokens` says
how marks in a text are divided.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Generic, TypeVar
from unicodedata import normalize

from ...endpoints.chat_template import Fields
from ...errors import ContextTooLong, MissingCapability
from ...http.http_errors import no_room
from ...http.prompts import EncodedPrompt, Ids
from .special_tokens import (
    SENTINEL,
    divided,
    divided_fields,
    is_mark,
    joined,
    may_spell,
    texts_of,
    without_edges,
    without_inserted,
)
from .tokenizer_source import TokenizerSource

K = TypeVar("K")
V = TypeVar("V")

MAX_CACHED_TEXTS = 8192
"""The most texts whose token ids are cached."""
NOWHERE = "(?!)"
"""A regular expression that matches nothing."""
SEPARATOR = "\0"
"""This character is one token in every byte-level vocabulary."""
MAX_ROUNDS = 5
"""
How often the ids of a text are checked, at most. After a mark was divided, the text may show
another mark.
"""
MAX_PARTS = 256
"""The most parts of a text, if each part takes a request of its own."""


class AsyncCache(Generic[K, V]):
    """Caches what *make* returns for each key. Only the *size* keys used last are kept."""

    def __init__(self, make: Callable[[K], Awaitable[V]], size: int) -> None:
        self._make = make
        self._size = size
        self._values: dict[K, V] = {}  # in the order of their last use

    async def __call__(self, key: K) -> V:
        value = self._values.pop(key) if key in self._values else await self._make(key)
        self._values[key] = value
        if len(self._values) > self._size:
            del self._values[next(iter(self._values))]
        return value


class TextTokenizer:
    """
    The tokenizer of one model, for single texts and for conversations.

    *source* returns the token ids. In any text, *source* encodes a mark as the special token. So
    marks in the text of users and models are divided first.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self.source = source
        """Encodes, renders and decodes."""
        self.encode_special = AsyncCache(self._encode, MAX_CACHED_TEXTS)
        """Encodes our own text. A mark in our own text becomes the special token."""
        self._pieces: dict[int, str] = {}  # the text of each token, by its id
        self._hidden: dict[str, int] = {}  # ids of the marks that the tokenizer finds in no text

    async def encode_ordinary(
        self,
        text: str,
        *,
        before: str = "",
        after: str = "",
    ) -> Ids:
        """
        Encode *text* of users or models. No part of *text* becomes a special token.

        *before* and *after* are our own texts around *text*. All three are encoded as one text.
        Raise `MissingCapability` if the tokenizer still finds a mark in *text* after *text* was
        divided.
        """
        ids = await self.encode_special(before + text + after)
        if not may_spell(text):
            return ids
        own_ids = (*await self.encode_special(before), *await self.encode_special(after))
        own_marks = await self._special_ids(own_ids)
        marks: set[str] = set()
        for _ in range(MAX_ROUNDS):
            if await self._special_ids(ids) == own_marks:
                return ids
            marks |= await self._marks_in_text(ids, text)
            if not all(mark in text for mark in marks):
                # The tokenizer found a mark in the normal form.
                text = normalize("NFKC", text)
            ids = await self._encode_parts(before + divided(text, marks) + after, marks)
        raise self._undividable(marks)

    async def encode_messages(
        self,
        messages: Fields,
        tools: Fields = (),
        *,
        whole: Collection[str] = (),
    ) -> EncodedPrompt:
        """
        Encode the chat template's rendering of *messages* and *tools*, with a generation prompt.

        The marks *whole* are not divided in the assistant's turns, because the template looks for
        them there. Raise `MissingCapability` as `encode_ordinary` does. Raise `ContextTooLong` if
        the prompt does not fit into the context.
        """
        source = self.source
        prompt = await source.render(messages, tools)
        if prompt.count > source.context_length:
            message = no_room(prompt.count, source.context_length)
            raise source.call.error(ContextTooLong, message)
        texts = texts_of([*messages, *tools])
        if not may_spell(texts):
            return prompt
        ids: Sequence[int] = prompt.ids
        marks = await self._marks_in_text(ids, texts)
        if not marks:
            return prompt
        for _ in range(MAX_ROUNDS):
            rendered = (await source.render(*divided_fields([messages, tools], marks, whole))).ids
            text = await source.decode(rendered)
            if [*await self.encode_special(text)] != rendered:
                break
            # If only the template's own special tokens are left, no text became a special token.
            own_text = without_edges(text, marks, divide=False)
            own_marks = await self._special_ids(await self.encode_special(own_text))
            if own_marks == await self._special_ids(ids):
                return EncodedPrompt.of(ids)
            ids = await self._encode_parts(without_edges(text, marks, divide=True), marks)
            marks |= await self._marks_in_text(ids, texts)
        raise self._undividable(marks)

    async def pieces(self, ids: Collection[int]) -> dict[int, str]:
        """
        Return the text of each of *ids*.

        A token with only a part of a character has the replacement character as its text.
        """
        new = [number for number in dict.fromkeys(ids) if number not in self._pieces]
        self._pieces |= zip(new, await self._decode_each(new), strict=True)
        return {number: self._pieces[number] for number in ids}

    async def learn_hidden_ids(self, ids: Collection[int]) -> None:
        """Learn the ids of special tokens among *ids* whose marks the tokenizer does not find."""
        for number in await self._special_ids(ids):
            mark = self._pieces[number]
            if await self._encode(mark) != (number,):
                self._hidden[mark] = number

    async def _encode(self, text: str) -> Ids:
        """Encode our own *text*. The marks that the tokenizer does not find get their ids, too."""
        hidden = "|".join(map(re.escape, self._hidden)) or NOWHERE
        ids: list[int] = []
        for part in re.split(f"({hidden})", text):
            if part in self._hidden:
                ids.append(self._hidden[part])
            elif part:
                ids += await self.source.encode(part)
        return tuple(ids)

    async def _encode_parts(self, text: str, marks: Collection[str]) -> Ids:
        """
        Encode each part of *text* by itself. A sentinel stands between two parts.

        If possible, one request encodes all parts, with one of *marks* between each two parts.
        """
        separators = {piece: number for number, piece in self._pieces.items() if piece in marks}
        for separator, number in sorted(separators.items()):
            whole, inserted = joined(text, separator)
            ids = await self.encode_special(whole)
            if ids.count(number) == len(inserted):
                return without_inserted(ids, number, inserted)
        parts = text.split(SENTINEL)
        if len(parts) > MAX_PARTS:
            raise self._undividable(marks)
        return tuple([number for part in parts for number in await self.encode_special(part)])

    async def _special_ids(self, ids: Collection[int]) -> list[int]:
        """Return each id in *ids* whose text has the shape of a mark."""
        pieces = await self.pieces(set(ids))
        return [number for number in ids if is_mark(pieces[number])]

    async def _marks_in_text(self, ids: Sequence[int], text: str) -> set[str]:
        """Return the marks of *ids* that stand in *text*, the text of users or models."""
        forms = (text, normalize("NFKC", text))
        marks = {self._pieces[number] for number in await self._special_ids(ids)}
        return {mark for mark in marks if any(mark in form for form in forms)}

    async def _decode_each(self, ids: Sequence[int]) -> list[str]:
        """
        Return the text of each of *ids*, with one request if possible.

        A separator stands between the tokens. A token may have the text of the separator. Then each
        token is decoded by itself.
        """
        separator = await self.encode_special(SEPARATOR) if ids else ()
        if len(separator) == 1:
            separated = [part for number in ids for part in (number, *separator)]
            parts = (await self.source.decode([*separator, *separated])).split(SEPARATOR)[1:-1]
            if len(parts) == len(ids):
                return parts
        return [await self.source.decode([number]) for number in ids]

    def _undividable(self, marks: Collection[str]) -> MissingCapability:
        """Make the error for a text whose *marks* cannot be encoded as ordinary text."""
        names = ", ".join(map(repr, sorted(marks)))
        return self.source.call.missing(
            f"a text spells special tokens, {names}, and its tokenizer does not let them be"
            " encoded as text: leave them out of the text, or start vLLM with another"
            " --chat-template"
        )
