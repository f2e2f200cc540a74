"""
Verifiers at work.

All runs share a `SharedVerifier`, which calls the function within a deadline. Each run has a
`Verifier`, which has a fallback. The fallback replaces a rating that failed for that candidate
alone: the next candidate may be easier. `AnswerCheck` has the answer of a run judged. The large
model rewrites the answer while it is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..answer import answer_text
from ..chain import Chain, Rating, Step
from ..endpoints.interfaces import or_now
from ..errors import EndpointError, VerifierFailed
from ..events import AnswerJudged, FellBack, Observer, Stage
from ..http.request_meter import metered
from ..interfaces import REQUEST, Model, RequestContext, requesting
from .functions import VERIFIERS, Candidate, in_thread, is_async, read_rating
from .settings import FunctionVerifier

YES = "Yes"
NO = "No"


async def yes_or_no(model: Model, chain: Chain, question: str, opening: str) -> Rating:
    """Return the probability with which *model* answers Yes to a *question* about *chain*."""
    answer = await model.ask(chain, question, (YES, NO), opening=opening)
    return Rating(min(1.0, answer[YES]))


class SharedVerifier:
    """
    The verifier that all runs share.

    It rates at most `FunctionVerifier.max_concurrency` candidates at a time.
    """

    def __init__(self, settings: FunctionVerifier) -> None:
        self.settings = settings
        self.name = settings.name
        self._function = VERIFIERS.find(settings.function)
        self._slots = asyncio.Semaphore(settings.max_concurrency)

    async def rate(self, candidate: Candidate) -> Rating:
        """
        Rate *candidate*.

        Raise `VerifierFailed` if the function raises an exception, returns no rating, or takes too
        long.
        """
        seconds = self.settings.seconds
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                value = await self._call(candidate)
        except Exception as exc:  # whatever the code of somebody else raises
            cause = f"it raised {type(exc).__name__}: {exc}"
            if timeout.expired():
                cause = f"no rating within {seconds:g} s (seconds in [critic])"
            raise VerifierFailed(cause, verifier=self.name) from exc
        try:
            return read_rating(value)
        except ValueError as exc:
            raise VerifierFailed(str(exc), verifier=self.name) from exc

    async def _call(self, candidate: Candidate) -> object:
        if is_async(self._function):
            async with self._slots:
                return await cast("Awaitable[object]", self._function(candidate))
        await self._slots.acquire()
        return await in_thread(self._function, candidate, self._slots.release)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a candidate."""

    accepted: bool
    """Whether it was accepted."""
    score: float | None = None
    """Its rating. None: the verifier failed, and nobody judged in its place."""
    reason: str = ""
    """The reason of the rating, or the cause of the failure."""


class Verifier:
    """
    The verifier of one run: a `Critic` for its steps, and what judges its answer.

    *instead* judges in its place where the settings want the large model to. *clock* returns the
    seconds since the run began; by default it begins now.
    """

    def __init__(
        self,
        shared: SharedVerifier,
        instead: Callable[[Chain, Stage], Awaitable[Rating]] | None = None,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._shared = shared
        self._instead = instead
        self._observe = observe
        self._clock = or_now(clock)

    async def rate(self, chain: Chain) -> Rating:
        """
        Rate the last step of *chain*; one that only ends the thinking has nothing to judge, and is
        accepted.
        """
        candidate = Candidate.step(chain)
        if not candidate.text.strip():
            return Rating(1.0)
        judgement = await self._judge(candidate, chain)
        score = judgement.score
        if score is None:
            score = float(judgement.accepted)
        return Rating(score, judgement.reason)

    async def judge_answer(self, chain: Chain, text: str) -> Judgement:
        """Judge the answer *text*, which *chain* ends with."""
        return await self._judge(Candidate.final(chain, text), chain)

    async def _judge(self, candidate: Candidate, chain: Chain) -> Judgement:
        settings = self._shared.settings
        try:
            with metered("critic", "rate", self._observe, self._clock):
                return self._judgement(await self._shared.rate(candidate))
        except EndpointError as exc:
            failure = exc
        fallback = settings.fallback
        step = REQUEST.get().step
        self._observe(FellBack(candidate.stage, step, failure.cause, fallback))
        if fallback == "accept":
            return Judgement(accepted=True)
        if fallback == "reject":
            return Judgement(accepted=False, reason=failure.cause)
        if fallback == "large" and self._instead is not None:
            return self._judgement(await self._instead(chain, candidate.stage))
        raise VerifierFailed(failure.cause, verifier=settings.name) from failure

    def _judgement(self, rating: Rating) -> Judgement:
        accepted = rating.score >= self._shared.settings.threshold
        return Judgement(accepted, rating.score, rating.reason)


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """An answer, and what is known about it."""

    chain: Chain
    """The chain that ends with the answer."""
    step: Step
    """The answer as the model wrote it."""
    text: str
    """The text of the answer."""
    committed: bool = False
    """Whether the steps of the answer are part of the chain already."""
    verified: bool | None = None
    """Whether the answer was accepted. None: nobody judged it."""
    rejection: str = ""
    """Why the answer was rejected. "": it was not."""

    def judged(self, judgement: Judgement) -> CheckedAnswer:
        """Return the answer with what *judgement* says."""
        if judgement.accepted and judgement.score is None:
            return replace(self, verified=None, rejection="")
        rejection = "" if judgement.accepted else judgement.reason
        return replace(self, verified=judgement.accepted, rejection=rejection)


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """
    Judges the answer of a run, and has it written again while it is rejected.

    The author reads its thinking, the rejected answer, and the note.
    """

    verifier: Verifier
    """Judges the answer."""
    author: Model
    """Writes the answer again."""
    note: Callable[[str], str]
    """Makes the note that the author reads, of the reason of a rejection."""
    repairs: int
    """How many times the answer may be written again."""

    async def run(
        self,
        answer: CheckedAnswer,
        index: int,
        left: Callable[[Chain], int],
        stop: Sequence[str],
        observe: Observer,
        keep: Callable[[CheckedAnswer], None],
    ) -> None:
        """
        Judge *answer*, step *index* of the chain, and rewrite it while tokens are *left*.

        *keep* receives what is known after every verdict and every new answer, so that a deadline
        may pass.
        """
        for repairs in range(self.repairs, -1, -1):
            with requesting(RequestContext("verify", index)):
                judgement = await self.verifier.judge_answer(answer.chain, answer.text)
            answer = answer.judged(judgement)
            noted = answer.chain.extend(Step(self.note(judgement.reason), self.author.role))
            limit = left(noted) if repairs and not judgement.accepted else 0
            verdict = AnswerJudged(
                index,
                answer.step,
                answer.verified,
                judgement.score,
                judgement.reason,
                final=limit < 1,
            )
            observe(verdict)
            keep(answer)
            if limit < 1:
                return
            with requesting(RequestContext("answer", index)):
                step = await self.author.write(noted, stop=stop, limit=limit)
            text = answer_text(step.text, stop, thought=True)
            if not text.strip():
                return
            answer = CheckedAnswer(noted.extend(step), step, text)
            keep(answer)
