"""Tokens: one as a value, and those of a step as columns, which a chain of a million can hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, cast, overload

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text and what one model knows about it."""

    text: str
    """The text."""
    logprob: float = 0.0
    """The log-probability in nats."""
    rank: int = 0
    """The place among the model's choices, from 1; 0 if it is unknown."""
    id: int = -1
    """The number in the vocabulary of its step; -1 if unknown: the text is encoded again."""
    top: tuple[Token, ...] = ()
    """The likeliest tokens of its position, best first; empty if they were not requested."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens(Sequence[Token]):
    """
    The tokens of a text as columns. A `Token` is made whenever one is read.

    Columns are bytes, which garbage collections do not visit. The time of a full collection grows
    with the objects to visit, and the event loop stands still meanwhile.
    """

    text: str
    """The texts of all tokens, joined."""
    ends: bytes
    """The place after each token in the text: an int32 each."""
    numbers: bytes
    """The ids: an int32 each."""
    logprobs: bytes = b""
    """The log-probabilities in nats: a double each; empty if all are 0."""
    ranks: bytes = b""
    """The ranks: an int32 each; empty if all are 0."""
    top: Tokens | None = None
    """The likeliest tokens of all positions, one after the other; None if there are none."""
    top_ends: bytes = b""
    """The place after the likeliest tokens of each position: an int32 each."""

    @classmethod
    def of(cls, tokens: Iterable[Token], text: str | None = None) -> Tokens:
        """
        Turn *tokens* into columns, unless they are columns.

        *text* is what their texts join to, if it is known. Then a step keeps the text only once.
        """
        if isinstance(tokens, cls):
            return tokens
        rows = tuple(tokens)
        logprobs = [token.logprob for token in rows]
        ranks = [token.rank for token in rows]
        top = [other for token in rows for other in token.top]
        return cls(
            text="".join([token.text for token in rows]) if text is None else text,
            ends=_column(accumulate([len(token.text) for token in rows])),
            numbers=_column([token.id for token in rows]),
            logprobs=array("d", logprobs).tobytes() if any(logprobs) else b"",
            ranks=_column(ranks) if any(ranks) else b"",
            top=cls.of(top) if top else None,
            top_ends=_column(accumulate([len(token.top) for token in rows])) if top else b"",
        )

    @property
    def ids(self) -> list[int]:
        """The ids of all tokens; -1 for an unknown one."""
        return _values(self.numbers).tolist()

    def __len__(self) -> int:
        return len(self.numbers) // 4

    def __iter__(self) -> Iterator[Token]:
        return map(self._token, range(len(self)))

    @overload
    def __getitem__(self, place: int) -> Token: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Token, ...]: ...
    def __getitem__(self, place: int | slice) -> Token | tuple[Token, ...]:
        places = range(len(self))[place]
        if isinstance(places, int):
            return self._token(places)
        return tuple(map(self._token, places))

    def _token(self, place: int) -> Token:
        ends = _values(self.ends)
        return Token(
            text=self.text[ends[place - 1] if place else 0 : ends[place]],
            logprob=memoryview(self.logprobs).cast("d")[place] if self.logprobs else 0.0,
            rank=_values(self.ranks)[place] if self.ranks else 0,
            id=_values(self.numbers)[place],
            top=self._top(place),
        )

    def _top(self, place: int) -> tuple[Token, ...]:
        if self.top is None:
            return ()
        ends = _values(self.top_ends)
        return self.top[ends[place - 1] if place else 0 : ends[place]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokens | tuple):
            return NotImplemented
        return tuple(self) == tuple(cast("Iterable[Token]", other))

    def __hash__(self) -> int:
        return hash(tuple(self))  # that of an equal tuple

    def __repr__(self) -> str:
        return repr(tuple(self))

    @classmethod
    def __get_pydantic_core_schema__(
        cls,
        source: object,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        from pydantic_core import core_schema

        rows = handler.generate_schema(tuple[Token, ...])
        return core_schema.no_info_after_validator_function(
            cls.of,
            rows,
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple, return_schema=rows
            ),
        )


def _column(values: Iterable[int]) -> bytes:
    return array("i", values).tobytes()


def _values(column: bytes) -> memoryview[int]:
    return memoryview(column).cast("i")
