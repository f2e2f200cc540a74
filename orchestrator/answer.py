"""Close the thinking and write the final answer; find the answer in what was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .chain import THINK_END, Chain, Step
from .interfaces import Model
from .markers import opens_block

BOXED = "\\boxed{"
BRACE = re.compile(r"\\boxed\{|[{}]")


def has_thought(chain: Chain) -> bool:
    """Whether *chain* holds a thinking block: then it is not the answer, whatever its models were taken for."""
    return chain.closed or opens_block(chain.text)


def close(chain: Chain, author: Model) -> Chain:
    """End the thinking of *chain* where it did not end by itself, so that an answer can follow."""
    return chain if chain.closed else chain.extend(closing(chain, author))


def closing(chain: Chain, author: Model) -> Step:
    """The step with which *author* ends the thinking of *chain*, so that an answer can follow."""
    text = f"{'' if chain.text.endswith(chr(10)) else chr(10)}{THINK_END}"
    return Step(text, author.role, "end", note="closed")


def answered(chain: Chain, stops: Sequence[str] = ()) -> bool:
    """Whether *chain* holds its thinking and a whole answer: one that ended, or in which one of the *stops* stands."""
    _, answer = chain.parts()
    return answer.finished or any(stop in answer.text for stop in stops)


class AnswerStream:
    """
    Tells an answer in pieces while it is written; they join to what `said` makes of the whole.

    Nothing is told before the answer is `certain`, for it may be a bet, and nothing that was told is taken back: where
    a model begins again, as another replica does, it has to go on from *partial*.
    """

    def __init__(self, tell: Callable[[str], None], stops: Sequence[str] = ()) -> None:
        self._tell, self._stops = tell, stops
        self._certain = self.restarted = False
        self._told = ""
        self.partial: Step | None = None

    def see(self, partial: Step) -> bool:
        """Look at the *partial* answer after every token; return whether to end the write, which began again."""
        self.restarted = self._told != "" and self.partial is not None and _shorter(partial, self.partial)
        if not self.restarted:
            self.partial = partial
            self.grown(partial.text)
        return self.restarted

    def certain(self) -> None:
        """Tell what there is, and from now on every piece as it comes."""
        self._certain = True
        if self.partial is not None:
            self.grown(self.partial.text)

    def grown(self, text: str) -> None:
        """Tell what is new in *text*, of which there is more to come."""
        self._say(said(text, self._stops, whole=False))

    def end(self, text: str) -> None:
        """Tell the rest of *text*."""
        self._say(said(text, self._stops))

    def _say(self, text: str) -> None:
        if self._certain and len(text) > len(self._told):
            self._tell(text[len(self._told) :])
            self._told = text


def _shorter(one: Step, other: Step) -> bool:
    return len(one.tokens) < len(other.tokens)


def said(text: str, stops: Sequence[str] = (), *, whole: bool = True) -> str:
    """
    What *text*, written after the thinking, says: up to the first of the *stops*, without marker and blank edges.

    Of a text that is not yet *whole*, only what no further token can change.
    """
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    if ends:
        text = text[: min(ends)]
    elif not whole:
        text = text[: len(text) - max(_begun(text, mark) for mark in (THINK_END, *stops))]
    return text.replace(THINK_END, "").strip()


def _begun(text: str, mark: str) -> int:
    """How many of the last characters of *text* may be the beginning of *mark*."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


async def write_answer(
    author: Model, chain: Chain, *, limit: int, stop: Sequence[str] = (), telling: AnswerStream | None = None
) -> Step:
    """Let *author* write what follows the thinking: at most *limit* tokens, or until it wrote a *stop* string."""
    closed = close(chain, author)
    until = telling.see if telling is not None else None
    step = await author.write(closed, stop=stop, limit=limit, until=until)
    while telling is not None and telling.restarted and telling.partial is not None:
        telling.restarted = False
        step = await author.write(closed, stop=stop, limit=limit, until=until, opening=telling.partial.text)
    return step


def extract(text: str) -> str:
    r"""Return what the last complete ``\boxed{}`` of *text* holds, or its last line that says anything."""
    inside = boxed(text)
    if inside is not None:
        return inside
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def boxed(text: str) -> str | None:
    r"""Return what the last complete ``\boxed{}`` of *text* holds, if there is one: the last to begin."""
    open_boxes: list[tuple[int, int]] = []  # where their content starts, and how many braces were open before
    last, found, depth = -1, None, 0
    for brace in BRACE.finditer(text):
        if brace[0] == "}":
            depth -= 1
            if open_boxes and open_boxes[-1][1] == depth:
                start, _ = open_boxes.pop()
                if start > last:
                    last, found = start, text[start : brace.start()]
        else:
            if brace[0] == BOXED:
                open_boxes.append((brace.end(), depth))
            depth += 1
    return found.strip() if found is not None else None
