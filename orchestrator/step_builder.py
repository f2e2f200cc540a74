"""From the tokens of a stream to a step: `StepBuilder` takes tokens until the step ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from .chain import THINK_END, Chain, Role, Step, Stop, Token, Tokens
from .interfaces import Until
from .markers import opened_by, partial_match
from .step_ends import StepEnds


def step_ends(chain: Chain, stop: Sequence[str] | None) -> StepEnds:
    """
    Return what ends the steps of a write.

    The strings *stop* end a step also within blocks. None: the delimiters of *chain* end it.
    """
    return chain.ends if stop is None else StepEnds(tuple(stop), blocks=False)


@dataclass(frozen=True, slots=True)
class Closing:
    """The mark that ends the thinking, or the reply, in the stream of a model."""

    text: str
    """The mark as the model writes it. "": there is none."""
    id: int = -1
    """The token that is the mark. -1: the mark takes several tokens."""
    open: bool = True
    """Whether the block is open. If not, a mark that the model writes may open it."""
    in_chains: str = THINK_END
    """What chains have in place of the mark."""

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings for the server. (): the server stops at the token `id`, or at none."""
        return (self.text,) if self.id < 0 and self.open else ()

    @property
    def room(self) -> int:
        """The most tokens of a mark that begins with the last token of the limit."""
        return len("".join(self.stops))


OUTSIDE = Closing("", open=False, in_chains="")
"""The closing of an answer, in which marks are text."""


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Where a step ends, and what its tokens keep."""

    ends: StepEnds
    """The delimiters."""
    limit: int
    """The most tokens, with the opening. Only a closing mark may exceed this number."""
    top: int = 0
    """How many of the likeliest tokens each token keeps of its position."""
    closing: Closing = OUTSIDE
    """What ends the thinking or the reply."""


def text_of(tokens: Sequence[Token]) -> str:
    """Return the joined text of *tokens*."""
    return "".join([token.text for token in tokens])


def without_end(tokens: Sequence[Token], characters: int) -> list[Token]:
    """
    Return *tokens* without their last *characters*.

    A token of which a part is left has the id -1.
    """
    kept = list(tokens)
    while characters > 0:
        last = kept.pop()
        characters -= len(last.text)
        if characters < 0:
            kept.append(replace(last, text=last.text[:-characters], id=-1))
    return kept


class StepBuilder:
    """
    Takes the tokens of the next step of *chain* until the step ends.

    A token that reaches beyond the end is cut there, and its id becomes -1. A delimiter has to be
    written whole after the *opening*. An opening longer than the limit is cut to the limit.
    """

    def __init__(
        self,
        author: Role,
        vocabulary: str,
        chain: Chain,
        bounds: StepBounds,
        opening: Sequence[Token] = (),
    ) -> None:
        self.bounds = bounds
        """Where the step ends."""
        self._author: Role = author
        self._vocabulary = vocabulary
        self._chain = chain
        self._closing = bounds.closing
        self._marked = False  # the token of the closing mark has arrived
        self._held = ""  # see `hold`
        self._waiting: list[Token] = []  # tokens without text that may be held text
        self._tokens = list(opening[: bounds.limit])
        self._text = text_of(self._tokens)
        self._written_from = len(self._text)  # the place after the opening
        self._room = bounds.limit - len(self._tokens)
        self._cut = False

    def following(self, chain: Chain) -> StepBuilder:
        """Return the builder of the next step of *chain*, with the same bounds."""
        return StepBuilder(self._author, self._vocabulary, chain, self.bounds)

    @property
    def room(self) -> int:
        """The number of tokens that the step may still have."""
        return self._room

    @property
    def in_mark(self) -> bool:
        """Whether the text may end in the beginning of a closing mark of several tokens."""
        return any(partial_match(self._text, mark) for mark in self._closing.stops)

    @property
    def overran(self) -> bool:
        """Whether the model wrote more text or tokens than the step that `end` returns."""
        return self._cut or bool(self._tokens and not self._tokens[-1].text)

    def so_far(self) -> Step:
        """Return the partial step."""
        return Step(
            self._text,
            self._author,
            "until",
            tuple(self._tokens),
            self._vocabulary,
        )

    def end(self, stop: Stop) -> Step:
        """
        Return the step, without the first bytes of a character that is not complete.

        The tokens of these bytes have no text and are left out: after half a character, vLLM
        returns the prompt as written text.
        """
        tokens = list(self._tokens)
        while tokens and not tokens[-1].text:
            tokens.pop()
        return Step(
            self._text,
            self._author,
            stop,
            Tokens.of(tokens, self._text),
            self._vocabulary,
        )

    def add(self, token: Token) -> Stop | None:
        """Append *token*. Return why the step ends with it, or None if the step goes on."""
        if self._held:
            return self._add_held(token)
        self._room -= 1
        self._text += token.text
        self._tokens.append(self._with_rivals(token))
        closed = self._closed(token)
        ends = self.bounds.ends
        end = ends.search(
            self._chain.text,
            self._text,
            max(self._written_from, len(self._text) - len(token.text) - ends.longest + 1),
            self._chain.totals.blocks,
        )
        if closed >= 0 and (end < 0 or closed <= end):
            self._cut_at(closed)
            if self._closing.text != self._closing.in_chains:
                self._spell_closing()
            return "end"
        if end >= 0 and self._room >= 0:
            self._cut_at(end)
            return "delimiter"
        if end < 0 and (self._room > 0 or self.in_mark):
            return None
        fitting = len(self._tokens) + self._room
        self._cut_at(len(text_of(self._tokens[:fitting])))
        return "length"

    def hold(self, text: str) -> None:
        """
        Leave *text* out if the model writes it next.

        *text* is the end of the chain, if the model's server has not read it.
        """
        self._held = text

    def _add_held(self, token: Token) -> Stop | None:
        """Take a token that may be held text. Its first bytes may come as tokens without text."""
        if self._held.startswith(token.text):
            self._held = self._held.removeprefix(token.text)
            self._waiting = [] if token.text else [*self._waiting, token]
            return None
        arrived = [*self._waiting, token]
        if token.text.startswith(self._held):
            arrived = [replace(token, text=token.text.removeprefix(self._held), id=-1)]
        self._held = ""
        self._waiting = []
        for each in arrived:
            stop = self.add(each)
            if stop:
                return stop
        return None

    def _with_rivals(self, token: Token) -> Token:
        """Return *token* with the requested number of rivals, which spell the mark as chains do."""
        if not token.top:
            return token
        closing = self._closing
        top = [
            replace(rival, text=closing.in_chains) if rival.text == closing.text else rival
            for rival in token.top[: self.bounds.top]
        ]
        return replace(token, top=tuple(top))

    def _closed(self, token: Token) -> int:
        """
        Return where the closing mark ends in the text, which ends in *token*. -1: nowhere.

        The mark may be in the text of a later token than its own. A block that the model has opened
        has its own mark.
        """
        closing = self._closing
        if closing.text and not closing.open:
            markers = opened_by(self._chain.text + self._text)
            if markers is None:
                return -1
            number = closing.id if markers.closing == closing.text else -1
            closing = Closing(markers.closing, number)
            self._closing = closing
        self._marked = self._marked or closing.id < 0 or token.id == closing.id
        if not closing.text or not self._marked:
            return -1
        start = len(self._text) - len(token.text) - len(closing.text) + 1
        found = self._text.find(closing.text, max(self._written_from, start))
        return -1 if found < 0 else found + len(closing.text)

    def _cut_at(self, end: int) -> None:
        """Leave out the text beyond place *end*."""
        beyond = len(self._text) - end
        self._cut = beyond > 0
        self._text = self._text[:end]
        self._tokens = without_end(self._tokens, beyond)

    def _spell_closing(self) -> None:
        """
        Replace the mark at the end of the text by what chains have in its place.

        The last token gets all of that text, the other tokens of the mark get none.
        """
        tokens = without_end(self._tokens, len(self._closing.text))
        straddled = tokens != self._tokens[: len(tokens)]  # A token had other text and the mark's.
        for token in self._tokens[len(tokens) :]:
            tokens.append(replace(token, text="", id=-1 if straddled else token.id))
        last = tokens[-1]
        tokens[-1] = replace(last, text=last.text + self._closing.in_chains)
        self._tokens = tokens
        self._text = text_of(tokens)

    def resume(self) -> None:
        """
        Prepare for another request: the server has stopped at a delimiter that does not end the
        step.

        A last token that was cut there is removed, with the tokens whose text it holds. The model
        writes it again, uncut.
        """
        if not self._tokens or self._tokens[-1].id >= 0:
            return
        self._tokens.pop()
        while self._tokens and not self._tokens[-1].text:
            self._tokens.pop()
        self._text = text_of(self._tokens)
        self._room = self.bounds.limit - len(self._tokens)


async def grow(
    growing: StepBuilder,
    take: Callable[[], Awaitable[Token | Stop]],
    until: Until,
) -> Step | None:
    """
    Add tokens from *take* until the step is complete, the stream ends, or *until* wants no more.

    Return None for a step that is not complete: the server stopped at a delimiter in a block.
    """
    while True:
        token = await take()
        if isinstance(token, Token):
            step = grown(growing, token, until)
            if step:
                return step
        elif token == "delimiter" and growing.bounds.ends.blocks:
            return None
        else:
            return growing.end(token)


def grown(growing: StepBuilder, token: Token, until: Until) -> Step | None:
    """
    Add *token*. Return the step if it is complete, or if *until* returns true for it.

    *until* sees no part of a closing mark and no held text.
    """
    room = growing.room
    stop = growing.add(token)
    if stop != "end" and until and growing.room < room and not growing.in_mark:
        stop = "until" if until(growing.so_far()) else stop
    return growing.end(stop) if stop else None
