"""The budget of a run. Pure: how much is left is a function of the chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, Unpack

from pydantic import ConfigDict, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from .chain import Chain, Role, Step, Token
from .interfaces import DEFAULT_LIMIT, Model, WriteOptions

ANSWER_TOKENS = 512
ANSWER_SHARE = 0.25


@pydantic_dataclass(
    frozen=True,
    slots=True,
    config=ConfigDict(extra="forbid", use_attribute_docstrings=True),
)
class Budget:
    """
    The limits of one run.

    If the models do not think, their chain is the answer, and nothing is kept for another one.
    The answer may also use what the thinking leaves. Raise `ValueError` for a limit that leaves no
    room.

    SpecReason's own budget is 8192 tokens (section 5.1). The makers of reasoning models recommend
    32768.
    """

    tokens: PositiveInt = 32_768
    """
    The most tokens of a run, for thinking and answer together.

    The model that wrote a token counts it in its own vocabulary.
    """
    steps: PositiveInt | None = None
    """
    The most thinking steps of a run.

    None: no limit.
    """
    seconds: PositiveFloat | None = None
    """
    The most seconds of a run.

    A quarter of them is kept for the answer. None: no limit.
    """
    answer: PositiveInt | None = None
    """
    Tokens that are kept for the answer.

    None: 512 or a quarter of all, whichever is less.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.answer is not None and self.answer >= self.tokens:
            raise ValueError(
                f"{self.answer} tokens kept for the answer: must be from 1 to {self.tokens - 1}"
            )
        return self

    @property
    def for_answer(self) -> int:
        if self.answer is not None:
            return self.answer
        return min(ANSWER_TOKENS, max(1, int(self.tokens * ANSWER_SHARE)))

    @property
    def thinking_seconds(self) -> float | None:
        if self.seconds is None:
            return None
        return self.seconds * (1 - ANSWER_SHARE)

    def left(self, chain: Chain) -> int:
        """How many tokens the next write may have, in the thinking or, after it, in the answer."""
        if not (chain.finished or chain.closed):
            kept = self.for_answer if chain.thought else 0
            return max(0, self.tokens - kept - chain.tokens)
        thinking, answer = chain.parts()
        return max(0, self.left_to_answer(thinking) - answer.tokens)

    def left_to_answer(self, chain: Chain) -> int:
        """How many tokens the answer may have; *chain* is the thinking alone."""
        return max(self.for_answer, self.tokens - chain.tokens)

    def fit(self, room: int) -> Budget:
        """Cut the budget to the *room* for tokens, at least 2, in the models' contexts."""
        tokens = min(self.tokens, room)
        answer = self.answer if self.answer is None else min(self.answer, tokens - 1)
        return replace(self, tokens=tokens, answer=answer)

    def after(self, seconds: float) -> Budget:
        """Return what is left after so many *seconds*. A millisecond always is."""
        if self.seconds is None:
            return self
        return replace(self, seconds=max(self.seconds - seconds, 0.001))

    def spent(self, chain: Chain) -> bool:
        steps = self.steps is not None and len(chain.steps) >= self.steps and not chain.closed
        return self.left(chain) == 0 or steps


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A model that writes no more tokens than are left."""

    model: Model
    """The model."""
    left: Callable[[Chain], int]
    """Returns how many tokens may follow a chain."""

    @property
    def role(self) -> Role:
        return self.model.role

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        options["limit"] = self._most(chain, options.get("limit", DEFAULT_LIMIT))
        if options["limit"] < 1 and not options.get("opening"):
            return Step("", self.role, "length")
        return await self.model.write(chain, **options)

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self.model.score(chain, *spans, top=top)

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        return await self.model.ask(chain, question, choices, opening=opening)

    def _most(self, chain: Chain, limit: int) -> int:
        return min(limit, self.left(chain))
