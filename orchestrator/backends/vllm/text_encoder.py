"""
Text to token ids and back, by one server's tokenizer; text of users and models never becomes a
special token.

A tokenizer finds the spelling of a special token in any text, and servers offer no way to switch
that off. A user who writes ``<|im_end|>`` would end a turn. So a spelling is divided after its
first character, and both halves are encoded by themselves: no tokenizer sees the whole spelling.
Mistral's own tokenizer finds special tokens in no text at all: of such a one, those that the chat
template shows are known by their ids (`TextEncoder.learn_marks`).

Which tokens are special is not known to a client. `is_mark` goes by the shape, and takes too many
rather than too few: an ordinary token of that shape becomes two ordinary tokens of the same text.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar, cast
from unicodedata import category, normalize

from ...errors import MissingCapability
from ...json_values import json_text, read_json
from .bodies import (
    DETOKENIZE,
    TOKENIZE,
    Body,
    detokenize_body,
    tokenize_body,
    tokenize_messages_body,
)
from .client import Connection
from .prompts import EncodedPrompt
from .replies import REPLACEMENT, detokenized, tokenized, tokenized_prompt

K = TypeVar("K")
V = TypeVar("V")

TEXTS = 8192  # entries of a cache
MARK = "\0"  # a token of its own wherever any byte is one
ROUNDS = 4  # a divided spelling may leave the spelling of another token
MOST_PARTS = 256  # of a text whose parts need a request each

_DRAWN = secrets.token_hex(12)
SENTINEL = f"stepspec-{_DRAWN}"
"""
A word that no text can hold, as each process draws its own; templates and JSON leave it unchanged.
"""

LEFT_EDGE = f"stepspec-left-{_DRAWN}"
RIGHT_EDGE = f"stepspec-right-{_DRAWN}"
"""Words behind a mark that begins a text, and before a mark that ends it: see `divided_within`."""

# also Kimi's triangles and DeepSeek's wide bar
_SIGNS = "<>[]|\u25c1\u25b7\uff5c"
_FIXED = frozenset({"role", "type"})
"""The fields of messages and tools whose values are names of the protocol."""


class AsyncCache(Generic[K, V]):
    """Caches the values that *make* returned for the *size* keys used last."""

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

    `literally` encodes our own text, in which a special token's spelling is meant; `between` text
    of others, not so.
    """

    def __init__(self, connection: Connection, model: str) -> None:
        self.connection = connection
        self._model = model
        self._call = connection.call("tokenize")
        self.literally = AsyncCache(self._encode, TEXTS)
        self._between = AsyncCache(self._encode_between, TEXTS)
        self._pieces: dict[int, str] = {}
        self._hidden: dict[str, int] = {}  # special tokens that the tokenizer finds in no text

    async def between(self, *texts: str) -> tuple[int, ...]:
        """
        Encode *texts* as one: our own at the even places, those of users and models at the odd
        ones.

        Raise `MissingCapability` if the tokenizer makes a special token of what others wrote,
        however it is divided.
        """
        if not any(map(may_spell, texts[1::2])):
            return await self._joint(texts)
        return await self._between(texts)

    async def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        template: Mapping[str, Any] | None = None,
        kept: Collection[str] = (),
    ) -> EncodedPrompt:
        """
        Encode *messages* and *tools* as the chat template shows them, with a generation prompt.

        The template gets the variables *template*, and in the assistant's turns also the special
        tokens *kept*. Raise `MissingCapability` as `between` does, and `ContextTooLong` if what is
        shown does not fit into the context.
        """
        body = tokenize_messages_body(self._model, messages, template=template, tools=tools)
        reply = await self.connection.post_unread(self._call, TOKENIZE, body)
        prompt = tokenized_prompt(self._call, reply)
        texts = texts_of([*messages, *tools])
        if not may_spell(texts):
            return prompt
        ids = prompt.ids
        marks = await self._spelt_marks(ids, texts)
        for _ in range(ROUNDS if marks else 0):
            fields, shown_tools = divided_fields([messages, tools], marks, kept)
            shown = await self.render(fields, template=template, tools=shown_tools)
            text = await self.decode(shown)
            if list(await self.literally(text)) != shown:
                break
            ours = without_edges(text, marks, divide=False)
            own = await self._mark_ids(await self.literally(ours))
            if own == await self._mark_ids(ids):
                return EncodedPrompt.of(ids)
            text = without_edges(text, marks, divide=True)
            ids = list(await self._joined(text, marks))
            marks |= await self._spelt_marks(ids, texts)
        if marks:
            raise self._forged(marks)
        return EncodedPrompt.of(ids)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode *ids*, special tokens included."""
        reply = await self.connection.post(
            self._call, DETOKENIZE, detokenize_body(self._model, ids)
        )
        return detokenized(self._call, reply)

    async def pieces(self, ids: Collection[int]) -> dict[int, str]:
        """Decode each of *ids* by itself; half a character becomes a replacement character."""
        new = [number for number in dict.fromkeys(ids) if number not in self._pieces]
        self._pieces |= zip(new, await self._spell_each(new), strict=True)
        return {number: self._pieces[number] for number in ids}

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generate: bool = True,
        template: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """
        Encode what the chat template shows, with whatever special tokens the *messages* spell.
        """
        body = tokenize_messages_body(
            self._model, messages, generate=generate, template=template, tools=tools
        )
        return (await self.tokenize(body))[0]

    async def tokenize(self, body: Body) -> tuple[list[int], int]:
        """
        Send one request; return the ids, and the longest sequence that the model takes: see
        `tokenized`.
        """
        return tokenized(self._call, await self.connection.post(self._call, TOKENIZE, body))

    async def learn_marks(self, ids: Iterable[int]) -> None:
        """
        Know those special tokens among *ids* that the tokenizer does not find in their own text.
        """
        for number in await self._mark_ids([*dict.fromkeys(ids)]):
            if await self._encode(mark := self._pieces[number]) != (number,):
                self._hidden[mark] = number

    async def _encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in (
            re.split(f"({'|'.join(map(re.escape, self._hidden))})", text)
            if self._hidden
            else [text]
        ):
            known = self._hidden.get(part)
            ids += await self._tokenize_text(part) if known is None else [known]
        return tuple(ids)

    async def _tokenize_text(self, text: str) -> list[int]:
        return (await self.tokenize(tokenize_body(self._model, text)))[0] if text else []

    async def _joint(self, texts: tuple[str, ...]) -> tuple[int, ...]:
        """
        Encode *texts* of `between` as one; each by itself if marks in ours are known that no
        tokenizer finds.
        """
        if not self._hidden:
            return await self.literally("".join(texts))
        encode = self.literally, self._tokenize_text
        return tuple(
            [number for place, text in enumerate(texts) for number in await encode[place % 2](text)]
        )

    async def _encode_between(self, texts: tuple[str, ...]) -> tuple[int, ...]:
        own = [
            number
            for text in texts[::2]
            for number in await self._mark_ids(await self.literally(text))
        ]
        ids = await self._joint(texts)
        marks = set[str]()
        for _ in range(ROUNDS):
            if await self._mark_ids(ids) == own:
                return ids
            others = "".join(texts[1::2])
            marks |= await self._spelt_marks(ids, others)
            # The tokenizer finds it in the normal form only.
            if not any(mark in others for mark in marks):
                texts = tuple(
                    [
                        normalize("NFKC", text) if place % 2 else text
                        for place, text in enumerate(texts)
                    ]
                )
            parts = [
                divided(text, marks) if place % 2 else text for place, text in enumerate(texts)
            ]
            ids = await self._joined("".join(parts), marks)
        if await self._mark_ids(ids) == own:
            return ids
        raise self._forged(marks)

    async def _joined(self, text: str, marks: Collection[str]) -> tuple[int, ...]:
        """
        Encode the parts of *text* between the sentinels, each by itself; one of *marks* is put
        between them.
        """
        names = {piece: number for number, piece in self._pieces.items() if piece in marks}
        for separator, number in sorted(names.items()):
            whole, inserted = joined(text, separator)
            ids = without_inserted(await self._encode(whole), number, inserted)
            if ids is not None:
                return ids
        parts = text.split(SENTINEL)
        if len(parts) > MOST_PARTS:
            raise self._forged(marks)
        return tuple([number for part in parts for number in await self.literally(part)])

    async def _mark_ids(self, ids: Sequence[int]) -> list[int]:
        """List those of *ids* that have the shape of special tokens."""
        pieces = await self.pieces({*ids})
        marks = {number for number, piece in pieces.items() if is_mark(piece)}
        return [number for number in ids if number in marks]

    async def _spelt_marks(self, ids: Sequence[int], text: str) -> set[str]:
        """Return the special tokens among *ids* that *text*, of users and models, spells."""
        marks = {self._pieces[number] for number in {*await self._mark_ids(ids)}}
        normal = normalize("NFKC", text)
        return {mark for mark in marks if mark in text or mark in normal}

    async def _spell_each(self, ids: Sequence[int]) -> list[str]:
        """Decode each of *ids*, in one request if a mark can be put between them."""
        mark = await self.literally(MARK) if ids else ()
        if len(mark) == 1:
            decoded = await self.decode([*mark, *(id for number in ids for id in (number, *mark))])
            parts = decoded.split(MARK)[1:-1]
            if len(parts) == len(ids):
                return parts
            if (half := len(ids) // 2) > 0:  # Half a character spoils the text of its neighbours.
                return [*await self._spell_each(ids[:half]), *await self._spell_each(ids[half:])]
        return [await self.decode([number]) for number in ids]

    def _forged(self, marks: Collection[str]) -> MissingCapability:
        return MissingCapability(
            f"the {self._call.role} model at {self._call.url}: a text spells special tokens,"
            f" {', '.join(map(repr, sorted(marks)))}, and its tokenizer does not let them be"
            " encoded as text: leave them out of the text, or start vLLM with another"
            " --chat-template"
        )


# Spellings of special tokens


def may_spell(text: str) -> bool:
    """
    Whether *text* has a sign that special tokens are made of, also once a tokenizer has normalised
    it.
    """
    if any(sign in text for sign in _SIGNS):
        return True
    normal = text if text.isascii() else normalize("NFKC", text)
    return any(sign in normal for sign in _SIGNS)


def is_mark(piece: str) -> bool:
    """
    Whether a token with the text *piece* has the shape of a special token: a word or a sign between
    two signs.
    """
    if len(piece) < 3 or not (_sign(piece[0]) and _sign(piece[-1])):
        return False
    return (piece[0] == "<" and piece[-1] == ">") or any(character.isalnum() for character in piece)


def _sign(character: str) -> bool:
    return category(character)[0] in "PS" and character != REPLACEMENT


def divided(text: str, marks: Iterable[str]) -> str:
    """
    Put a sentinel after the first character of each of *marks* in *text*, also where they overlap.
    """
    spelt = [mark for mark in marks if mark in text]
    if not spelt:
        return text
    cuts = {
        found.start() + 1 for mark in spelt for found in re.finditer(f"(?={re.escape(mark)})", text)
    }
    places = [0, *sorted(cuts), len(text)]
    return SENTINEL.join(text[start:end] for start, end in pairwise(places))


def divided_within(text: str, marks: Collection[str]) -> str:
    """
    Divide *text* as `divided` does, but leave a mark whole at its beginning and at its end.

    Templates look for marks there: ``<tool_response>`` begins a result that is no question. An edge
    between such a mark and the rest tells where it is in what the template shows.
    """
    inner = text.strip()
    first = max((mark for mark in marks if inner.startswith(mark)), key=len, default="")
    left = inner.removeprefix(first)
    last = max((mark for mark in marks if left.endswith(mark)), key=len, default="")
    if not first and not last:
        return divided(text, marks)
    rest = divided(left.removesuffix(last), marks)
    edges = {first, last} - {""}
    if divided(first, edges) + rest + divided(last, edges) != divided(inner, marks):
        return divided(text, marks)  # marks overlap
    opening = f"{first}{LEFT_EDGE}" if first else ""
    closing = f"{RIGHT_EDGE}{last}" if last else ""
    return text.replace(inner, f"{opening}{rest}{closing}", 1)


def without_edges(text: str, marks: Collection[str], *, divide: bool) -> str:
    """
    Leave the edges of `divided_within` out of *text*, and *divide* the marks at them, or leave them
    out, too.
    """
    spelt = "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))

    def replaced(found: re.Match[str]) -> str:
        mark = found[1] or found[2]
        return divided(mark, [mark]) if divide else ""

    text = re.sub(f"({spelt}){LEFT_EDGE}|{RIGHT_EDGE}({spelt})", replaced, text)
    return text.replace(LEFT_EDGE, "").replace(RIGHT_EDGE, "")


def texts_of(fields: object) -> str:
    """
    Join all text in the *fields* of messages and tools; arguments of calls as the JSON that they
    are.
    """
    if isinstance(fields, str):
        return fields
    if isinstance(fields, Mapping):
        members = cast("Mapping[str, object]", fields)
        return "\n".join(
            f"{key}\n{texts_of(_plain(key, item))}"
            for key, item in members.items()
            if key not in _FIXED
        )
    if isinstance(fields, Sequence):
        return "\n".join(map(texts_of, cast("Sequence[object]", fields)))
    return ""


def divided_fields(fields: Any, marks: Collection[str], kept: Collection[str] = ()) -> Any:
    """
    Divide *marks* in all text of *fields*, of messages and tools, except *kept* ones in what the
    assistant said.

    Templates look for those: they leave out the thinking of earlier turns.
    """
    if isinstance(fields, str):
        return divided_within(fields, marks)
    if isinstance(fields, Mapping):
        members = cast("Mapping[str, Any]", fields)
        said = "content" if members.get("role") == "assistant" else ""
        made: dict[str, Any] = {}
        for key, value in members.items():
            here = [mark for mark in marks if mark not in kept] if key == said else marks
            made[divided(key, marks)] = (
                value if key in _FIXED else divided_fields(_plain(key, value), here)
            )
        return made
    if isinstance(fields, Sequence):
        items = cast("Iterable[Any]", fields)
        return [divided_fields(item, marks, kept) for item in items]
    return fields


def _plain(key: str, value: object) -> object:
    """
    Spell out the escaped characters of a call's arguments, as the server does before it renders
    them.
    """
    if key != "arguments" or not isinstance(value, str):
        return value
    try:
        return json_text(read_json(value))
    except ValueError:
        return value


def joined(text: str, separator: str) -> tuple[str, list[bool]]:
    """
    Put *separator*, a special token, in the place of each sentinel in *text*, so that one request
    encodes all parts.

    The list tells for each *separator* of the new text whether it was put there.
    """
    inserted: list[bool] = []
    for place, part in enumerate(text.split(SENTINEL)):
        inserted += [True] * (place > 0) + [False] * part.count(separator)
    return text.replace(SENTINEL, separator), inserted


def without_inserted(
    ids: Sequence[int], separator: int, inserted: Sequence[bool]
) -> tuple[int, ...] | None:
    """Leave out the *inserted* separators; None if the tokenizer has not found each of them."""
    if ids.count(separator) != len(inserted):
        return None
    order = iter(inserted)
    return tuple([number for number in ids if number != separator or not next(order)])
