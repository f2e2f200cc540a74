"""A step as it grows token by token, and where it ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..chain import THINK_END, Chain, Role, Step, Stop, Token
from ..step_ends import StepEnds


def ends_in(text: str, stops: Iterable[str], start: int = 0) -> int:
    """Find where the first of the *stops* is complete in *text* after *start*; -1 if none is."""
    ends = [at + len(stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    return min(ends, default=-1)


def step_ends(chain: Chain, stop: Sequence[str] | None) -> StepEnds:
    """Where a write ends: at the *stop* strings wherever they stand, or where the steps of *chain* do."""
    return chain.ends if stop is None else StepEnds(tuple(stop), blocks=False)


class GrowingStep:
    """
    Takes tokens until the step ends, as *ends* says of a text that follows *before*, or the limit is reached.

    A token that reaches beyond the end is cut there: its id becomes -1, and the rest of its text is left out, with the
    tokens that had to be read to know that it is the end. A delimiter has to be written as a whole: what *opening* ends
    in does not count. Of what a token tells about its
    place, the *top* likeliest ones are kept. An opening that is longer than the limit is cut to it. *closing* is how
    the model spells the end of its thinking; the step spells it `THINK_END`.
    """

    def __init__(
        self,
        author: Role,
        vocabulary: str,
        *,
        ends: StepEnds,
        limit: int,
        before: str = "",
        opening: Sequence[Token] = (),
        top: int = 0,
        closing: str = THINK_END,
    ) -> None:
        self._author: Role = author
        self._vocabulary = vocabulary
        self._closing = closing
        self._ends, self._before = ends, before
        self._top = top
        self._tokens = list(opening[:limit])
        self._text = "".join(token.text for token in self._tokens)
        self._written_from = self._look = len(self._text)
        self._room = limit - len(self._tokens)
        self._cut = False

    def add(self, token: Token) -> Stop | None:
        """Append *token*; say why the step ends with it, if it does."""
        if len(token.top) > self._top:
            token = replace(token, top=token.top[: self._top])
        if self._closing != THINK_END and any(rival.text == self._closing for rival in token.top):
            token = replace(token, top=tuple([self._neutral(rival) for rival in token.top]))
        before = len(self._text)
        text = self._text + token.text
        closed = ends_in(text, (self._closing,), max(self._written_from, before - len(self._closing) + 1))
        end, self._look = self._ends.search(self._before, text, self._look)
        self._room -= 1
        self._text = text
        self._tokens.append(token)
        if closed < 0 and end < 0:
            return "length" if self._room <= 0 else None
        self._cut_at(min(place for place in (closed, end) if place >= 0))
        if not self._text.endswith(self._closing):
            return "delimiter"
        if self._closing != THINK_END:
            self._close()
        return "end"

    def _cut_at(self, end: int) -> None:
        """Leave out what was written beyond *end*."""
        beyond = len(self._text) - end
        self._cut = beyond > 0
        self._text = self._text[:end]
        while beyond > 0:
            last = self._tokens.pop()
            beyond -= len(last.text)
            if beyond < 0:
                self._tokens.append(replace(last, text=last.text[:-beyond], id=-1))

    def resume(self) -> None:
        """
        Prepare for a request that goes on where the server stopped at what is no end.

        The last token goes if it was cut there, to be written again as a whole, with those whose text stands on it.
        """
        if self._tokens and self._tokens[-1].id < 0:
            length = len(self._tokens)
            last = self._tokens.pop()
            while self._tokens and not self._tokens[-1].text:
                self._tokens.pop()
            self._text = self._text[: len(self._text) - len(last.text)]
            self._look = min(self._look, max(self._written_from, len(self._text)))
            self._room += length - len(self._tokens)

    @property
    def blocks(self) -> bool:
        """Whether there are places at which a delimiter does not end the step, though the server stops there."""
        return self._ends.blocks

    @property
    def room(self) -> int:
        """How many tokens the step may still have."""
        return self._room

    def _neutral(self, rival: Token) -> Token:
        return replace(rival, text=THINK_END) if rival.text == self._closing else rival

    def _close(self) -> None:
        """Spell the end of the thinking as chains do: on the last token of the mark, the others have no text then."""
        start, at, straddled = len(self._text) - len(self._closing), 0, False
        for place, token in enumerate(self._tokens):
            end = at + len(token.text)
            if end > start:
                straddled = straddled or at < start
                text = token.text[: max(0, start - at)]
                self._tokens[place] = replace(token, text=text, id=-1 if straddled else token.id)
            at = end
        self._tokens[-1] = replace(self._tokens[-1], text=self._tokens[-1].text + THINK_END)
        self._text = self._text[:start] + THINK_END

    @property
    def overran(self) -> bool:
        """Whether the model wrote more than the step that `end` makes of it."""
        return self._cut or bool(self._tokens and not self._tokens[-1].text)

    def so_far(self) -> Step:
        """Show what there is, for a look at it."""
        return Step(self._text, self._author, "until", tuple(self._tokens), self._vocabulary)

    def end(self, stop: Stop) -> Step:
        """
        Make a step of what there is, but for the first bytes of a character whose last ones have not come.

        Tokens without text have to go: after half a character, vLLM repeats the whole prompt as text that was written.
        """
        tokens = list(self._tokens)
        while tokens and not tokens[-1].text:
            tokens.pop()
        return Step(self._text, self._author, stop, tuple(tokens), self._vocabulary)
