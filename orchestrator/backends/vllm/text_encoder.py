"""Text to token ids and back, by one server's tokenizer."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Generic, TypeVar
from unicodedata import normalize

from ...endpoints.chat_template import Fields
from ...errors import MissingCapability
from ...http.client import Connection
from ...http.paths import DETOKENIZE, TOKENIZE, Body
from ...http.prompts import EncodedPrompt, Ids
from .bodies import Variables, detokenize_body, tokenize_body, tokenize_messages_body
from .replies import detokenized, tokenized, tokenized_prompt
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

K = TypeVar("K")
V = TypeVar("V")

MAX_CACHED_TEXTS = 8192
SEPARATOR = "\0"
"""A token of its own in every vocabulary of bytes."""
MAX_ROUNDS = 4
"""Divisions of a text: a divided spelling may leave the spelling of another token."""
MAX_PARTS = 256
"""Parts of a text that need a request each."""


class AsyncCache(Generic[K, V]):
    """Caches the values that *make* returned, for the *size* keys that were used last."""

    def __init__(self, make: Callable[[K], Awaitable[V]], size: int) -> None:
        self._make = make
        self._size = size
        self._made: OrderedDict[K, V] = OrderedDict()

    async def __call__(self, key: K) -> V:
        if key not in self._made:
            self._made[key] = await self._make(key)
            if len(self._made) > self._size:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]


class TextEncoder:
    """
    The tokenizer of one served model, reached over *connection*.

    *template* has variables of its chat template. Text of users and models never becomes a special
    token: see `special_tokens`.
    """

    def __init__(
        self,
        connection: Connection,
        model: str,
        template: Variables | None = None,
    ) -> None:
        self.connection = connection
        """The connection to the server."""
        self.model = model
        """The served name of the model."""
        self._messages_body = partial(tokenize_messages_body, model, template=template)
        self._call = connection.call("tokenize")
        self.literally = AsyncCache(self._encode, MAX_CACHED_TEXTS)
        """Encodes our own text, in which a special token's spelling is meant."""
        self._between = AsyncCache(self._encode_between, MAX_CACHED_TEXTS)
        self._pieces: dict[int, str] = {}  # spellings by token id
        self._hidden: dict[str, int] = {}  # special tokens that the tokenizer finds in no text

    async def between(self, *texts: str) -> Ids:
        """
        Encode *texts* as one. The even places are ours, the odd ones are of users and models.

        Raise `MissingCapability` if the tokenizer makes a special token of a text of users and
        models, however that text is divided.
        """
        if not any(map(may_spell, texts[1::2])):
            return await self._joint(texts)
        return await self._between(texts)

    async def rendered(
        self,
        messages: Fields,
        tools: Fields = (),
        *,
        kept: Collection[str] = (),
    ) -> EncodedPrompt:
        """
        Encode *messages* and *tools* as the chat template shows them, with a generation prompt.

        In the assistant's turns the template also gets the special tokens *kept*. Raise
        `MissingCapability` as `between` does, and `ContextTooLong` if the prompt does not fit into
        the context.
        """
        body = self._messages_body(messages, tools=tools)
        reply = await self.connection.fetch(self._call, TOKENIZE, body)
        prompt = tokenized_prompt(self._call, reply)
        texts = texts_of([*messages, *tools])
        if not may_spell(texts):
            return prompt
        ids: Sequence[int] = prompt.ids
        marks = await self._spelt_marks(ids, texts)
        if not marks:
            return prompt
        for _ in range(MAX_ROUNDS):
            fields, shown_tools = divided_fields([messages, tools], marks, kept)
            shown = await self.render(fields, tools=shown_tools)
            text = await self.decode(shown)
            if [*await self.literally(text)] != shown:
                break
            ours = without_edges(text, marks, divide=False)
            if await self._mark_ids(await self.literally(ours)) == await self._mark_ids(ids):
                return EncodedPrompt.of(ids)
            ids = await self._joined(without_edges(text, marks, divide=True), marks)
            marks |= await self._spelt_marks(ids, texts)
        raise self._forged(marks)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode *ids*, special tokens included."""
        body = detokenize_body(self.model, ids)
        return detokenized(self._call, await self.connection.post(self._call, DETOKENIZE, body))

    async def pieces(self, ids: Collection[int]) -> dict[int, str]:
        """
        Return the spelling of each of *ids*. Half a character becomes a replacement character.
        """
        new = [number for number in dict.fromkeys(ids) if number not in self._pieces]
        self._pieces |= zip(new, await self._spell_each(new), strict=True)
        return {number: self._pieces[number] for number in ids}

    async def render(
        self,
        messages: Fields,
        *,
        generate: bool = True,
        tools: Fields = (),
    ) -> list[int]:
        """Encode what the chat template shows, with all special tokens that *messages* spell."""
        body = self._messages_body(messages, generate=generate, tools=tools)
        return (await self.tokenize(body))[0]

    async def tokenize(self, body: Body) -> tuple[list[int], int]:
        """Send *body*. Return the ids, and the longest sequence that the model takes, in tokens."""
        return tokenized(self._call, await self.connection.post(self._call, TOKENIZE, body))

    async def learn_marks(self, ids: Collection[int]) -> None:
        """Learn which special tokens among *ids* the tokenizer does not find in their own text."""
        for number in await self._mark_ids(ids):
            mark = self._pieces[number]
            if await self._encode(mark) != (number,):
                self._hidden[mark] = number

    async def _encode(self, text: str) -> Ids:
        if not self._hidden:
            return await self._tokenize_text(text)
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self._hidden))})", text):
            if part in self._hidden:
                ids.append(self._hidden[part])
            else:
                ids += await self._tokenize_text(part)
        return tuple(ids)

    async def _tokenize_text(self, text: str) -> Ids:
        if not text:
            return ()
        ids, _ = await self.tokenize(tokenize_body(self.model, text))
        return tuple(ids)

    async def _joint(self, texts: Sequence[str]) -> Ids:
        """
        Encode *texts* of `between` as one.

        Each is encoded by itself if our own may have marks that the tokenizer finds in no text.
        """
        if not self._hidden:
            return await self.literally("".join(texts))
        ids: list[int] = []
        for place, text in enumerate(texts):
            encode = self._tokenize_text if place % 2 else self.literally
            ids += await encode(text)
        return tuple(ids)

    async def _encode_between(self, texts: tuple[str, ...]) -> Ids:
        own = await self._mark_ids(
            [number for text in texts[::2] for number in await self.literally(text)]
        )
        ids = await self._joint(texts)
        marks: set[str] = set()
        for _ in range(MAX_ROUNDS):
            if await self._mark_ids(ids) == own:
                return ids
            others = "".join(texts[1::2])
            marks |= await self._spelt_marks(ids, others)
            if not any(mark in others for mark in marks):
                # The tokenizer finds a mark only in the normal form of the text.
                texts = _with_others(texts, partial(normalize, "NFKC"))
            parts = _with_others(texts, partial(divided, marks=marks))
            ids = await self._joined("".join(parts), marks)
        if await self._mark_ids(ids) == own:
            return ids
        raise self._forged(marks)

    async def _joined(self, text: str, marks: Collection[str]) -> Ids:
        """
        Encode the parts of *text* between the sentinels, each by itself.

        One of *marks* is put between the parts, so that one request encodes all of them.
        """
        names = {piece: number for number, piece in self._pieces.items() if piece in marks}
        for separator, number in sorted(names.items()):
            whole, inserted = joined(text, separator)
            ids = without_inserted(await self._encode(whole), number, inserted)
            if ids is not None:
                return ids
        parts = text.split(SENTINEL)
        if len(parts) > MAX_PARTS:
            raise self._forged(marks)
        return tuple([number for part in parts for number in await self.literally(part)])

    async def _mark_ids(self, ids: Collection[int]) -> list[int]:
        """Return the tokens of *ids* that have the shape of special tokens."""
        pieces = await self.pieces({*ids})
        marks = {number for number, piece in pieces.items() if is_mark(piece)}
        return [number for number in ids if number in marks]

    async def _spelt_marks(self, ids: Sequence[int], text: str) -> set[str]:
        """Return the special tokens among *ids* that *text*, of users and models, spells."""
        texts = (text, normalize("NFKC", text))
        marks = {self._pieces[number] for number in await self._mark_ids(ids)}
        return {mark for mark in marks if any(mark in spelling for spelling in texts)}

    async def _spell_each(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of each of *ids*: by one request if a separator divides them."""
        separator = await self.literally(SEPARATOR) if ids else ()
        if len(separator) == 1:
            separated = [*separator]
            for number in ids:
                separated += [number, *separator]
            parts = (await self.decode(separated)).split(SEPARATOR)[1:-1]
            if len(parts) == len(ids):
                return parts
            half = len(ids) // 2
            if half > 0:  # Half a character spoils the text of its neighbours.
                return [*await self._spell_each(ids[:half]), *await self._spell_each(ids[half:])]
        return [await self.decode([number]) for number in ids]

    def _forged(self, marks: Collection[str]) -> MissingCapability:
        names = ", ".join(map(repr, sorted(marks)))
        return self._call.missing(
            f"a text spells special tokens, {names}, and its tokenizer does not let them be"
            " encoded as text: leave them out of the text, or start vLLM with another"
            " --chat-template"
        )


def _with_others(texts: Sequence[str], change: Callable[[str], str]) -> tuple[str, ...]:
    """Make *change* to the texts of users and models among the *texts* of `between`."""
    return tuple([change(text) if place % 2 else text for place, text in enumerate(texts)])
