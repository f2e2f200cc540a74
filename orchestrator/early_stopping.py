"""
Watches: whoever looks at a chain while it grows, and may end the thinking. Any policy can be watched.

A watch is asked about every chain that is committed, while the next step is being drafted and judged: it delays no
drafting. The next step is committed only when the watch has answered, so that the thinking ends at the same step
however far it was worked ahead and however long the watch took. It may take *patience* seconds; then it says nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from .answer import boxed, close
from .chain import Chain, Step
from .concurrency import to_the_end
from .errors import ConfigurationError, EndpointError
from .interfaces import Model, RequestContext, requesting
from .lookahead import confidence
from .repetition import circles

Halt: TypeAlias = Literal["enough", "hopeless"]

PATIENCE = 10.0  # seconds


class StopRule(Protocol):
    """Is asked about one chain after the other, each an extension of the one before; one watch per run."""

    async def __call__(self, chain: Chain) -> Halt | None:
        """Return "enough" to answer now, "hopeless" to give up, or None to go on. An `EndpointError` means None."""
        ...


class StopRuleRunner:
    """A watch at work, on one chain at a time."""

    def __init__(self, watch: StopRule | None, patience: float) -> None:
        self._watch, self._patience = watch, patience
        self._asked: asyncio.Task[Halt | None] | None = None

    def ask(self, chain: Chain) -> None:
        """Begin to ask about *chain*, which has just been committed, once `told` has told about the one before."""
        if self._watch is not None and not (chain.finished or chain.closed):
            self._asked = asyncio.create_task(self._ask(self._watch, chain))

    async def told(self) -> Halt | None:
        """Wait until the watch has answered; None if it was not asked."""
        return await self._asked if self._asked is not None else None

    async def leave(self) -> None:
        """Cancel what is still being asked, and wait until it is gone."""
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.wait([self._asked])
            if not self._asked.cancelled():
                self._asked.exception()  # Nobody waits for what it says: read it, so that nobody warns of it.

    async def _ask(self, watch: StopRule, chain: Chain) -> Halt | None:
        timeout = asyncio.timeout(self._patience)
        try:
            with requesting(RequestContext("watch", len(chain.steps) - 1)):
                async with timeout:
                    return await watch(chain)
        except EndpointError:
            return None
        except TimeoutError:
            if not timeout.expired():
                raise
            return None


@asynccontextmanager
async def checking_stop_rule(watch: StopRule | None, patience: float = PATIENCE) -> AsyncGenerator[StopRuleRunner]:
    """Let *watch*, if there is one, be asked. Leaving the block cancels what it still does, and waits for that."""
    asked = StopRuleRunner(watch, patience)
    try:
        yield asked
    finally:
        await to_the_end(asked.leave())


@dataclass(frozen=True, slots=True)
class AnyStopRule:
    """Asks all *watches* at the same time; the first in order that has something to say says it."""

    watches: tuple[StopRule, ...]

    async def __call__(self, chain: Chain) -> Halt | None:
        told = await asyncio.gather(*(watch(chain) for watch in self.watches))
        return next((each for each in told if each is not None), None)


TRIAL = "\n\n\\boxed{"
CUES = re.compile(
    r"\s*(?:wait|alternatively|hmm|hold on|let me (?:double-?)?(?:check|verify)|(?:so|therefore|thus|yes),?)\b", re.I
)


@dataclass(eq=False)
class TrialAnswer:
    """
    Enough: a trial answer is *sure*, or the same one came *times* in a row.

    A paragraph that opens with a cue, and every *every*-th step (0: none), make *author* close the thinking and write
    what goes into the box, at most *limit* tokens; its probability is the geometric mean of theirs. After DEER
    (github.com/iie-ycx/DEER: transitions like "Wait", probability 0.95) and Dynasor (github.com/hao-ai-lab/Dynasor: a
    trial every so often, the same answer again and again). Deviations: the trial comes after the paragraph that the cue
    opens, not instead of it, as that one is there already; neither reads whether the model wanted to stop by itself.

    Trials are not part of the chain: their tokens count as discarded. Raise `ConfigurationError` for impossible values.
    """

    author: Model
    sure: float = 0.95
    times: int = 3
    every: int = 0
    limit: int = 48
    _answers: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        if not 0 < self.sure <= 1 or self.times < 2 or self.every < 0 or self.limit < 1:
            raise ConfigurationError(
                f"trial answers: sure={self.sure} has to be above 0 and at most 1, times={self.times} at least 2, "
                f"every={self.every} at least 0, limit={self.limit} at least 1"
            )

    async def __call__(self, chain: Chain) -> Halt | None:
        if not self._due(chain):
            return None
        trial = await self.author.write(
            close(chain, self.author), stop=(), limit=self.limit, until=_complete, opening=TRIAL, top=1
        )
        self._answers.append(" ".join((boxed(trial.text) or "").split()))
        last = self._answers[-self.times :]
        if not last[-1]:
            return None
        return "enough" if _sureness(trial) >= self.sure or last == last[-1:] * self.times else None

    def _due(self, chain: Chain) -> bool:
        if not chain.steps or chain.steps[-1].stop != "delimiter":
            return False
        return bool(CUES.match(chain.steps[-1].text)) or bool(self.every and len(chain.steps) % self.every == 0)


def _complete(trial: Step) -> bool:
    return boxed(trial.text) is not None


def _sureness(trial: Step) -> float:
    """The geometric mean of the probabilities of the tokens after the opening."""
    length = 0
    for place, token in enumerate(trial.tokens):
        length += len(token.text)
        if length > len(TRIAL):
            return confidence(replace(trial, tokens=trial.tokens[place:]))
    return 0.0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """
    Hopeless: a *share* of the thinking's *tokens* is spent and fewer drafts than *floor* stood, or the chain has gone
    round in circles *rounds* times.
    """

    tokens: int
    share: float = 0.5
    floor: float = 0.1
    rounds: int = 4

    async def __call__(self, chain: Chain) -> Halt | None:
        rate = accepted(chain)
        wasted = rate is not None and rate < self.floor and chain.tokens >= self.share * self.tokens
        return "hopeless" if wasted or circles(chain) >= self.rounds else None


def accepted(chain: Chain) -> float | None:
    """The share of the small model's drafts that stood whole; None if it has made none."""
    repaired = sum(bool(step.note) for step in chain.steps)
    whole = [step for step, after in zip(chain.steps, (*chain.steps[1:], None), strict=False) if not _cut(step, after)]
    stood = sum(step.author == "small" and not step.note for step in whole)
    return stood / (stood + repaired) if stood + repaired else None


def _cut(step: Step, after: Step | None) -> bool:
    """Whether *step* is what was kept of a draft that the step *after* it repairs."""
    return step.stop == "length" and after is not None and bool(after.note)
