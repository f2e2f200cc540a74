"""
Verifiers at work: on a server with the Decisions API, or a function.

`ConnectedVerifier` is what all runs share, `Verifier` that of one run, with deadline and fallback.
One that fails, or is too late, is replaced for that candidate alone: the next one may be easier.
`AnswerCheck` has the answer of a run judged, and rewritten by the large model while it is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias, cast

from ..answer import answer_text
from ..chain import Chain, Rating, Step
from ..endpoints.interfaces import or_now
from ..errors import (
    EndpointError,
    MalformedReply,
    VerifierFailed,
)
from ..events import AnswerJudged, FellBack, Observer, Stage
from ..http.client import Connection
from ..http.http_errors import reading
from ..http.paths import DECISIONS, Body
from ..http.request_meter import metered
from ..interfaces import REQUEST, Model, RequestContext, requesting
from .functions import VERIFIERS, Candidate, in_thread, is_async, read_rating
from .settings import DecisionsVerifier, FunctionVerifier

YES = "Yes"
NO = "No"
QUESTION = "candidate"
"""The name of the one question in a request for a decision."""

AnyVerifier: TypeAlias = DecisionsVerifier | FunctionVerifier


class DecisionsRater:
    """Asks a classifier or judge for the probability of a statement about each candidate."""

    def __init__(self, settings: DecisionsVerifier) -> None:
        self._connection = Connection(settings.address)
        self._settings = settings
        self._model = settings.model

    async def close(self) -> None:
        await self._connection.close()

    async def rate(self, candidate: Candidate) -> Rating:
        """
        Return the probability. Raise an `EndpointError` if there is none, as where the model
        declines to judge.
        """
        call = self._connection.call("judge")
        questions = [
            {"type": "predicate", "name": QUESTION, "instructions": self._settings.question}
        ]
        try:
            self._model = self._model or await self._connection.model_name()
            body: Body = {
                "model": self._model,
                "input": _evidence(candidate),
                "questions": questions,
            }
            reply = await self._connection.post(call, DECISIONS, body)
        except EndpointError:
            self._model = self._settings.model  # It may serve another one by now.
            raise
        with reading(call, "decision", reply):
            [answer] = [each for each in reply["answers"] if each.get("name", QUESTION) == QUESTION]
            if answer["type"] == "refusal":
                raise call.error(MalformedReply, "the model declined to judge")
            if answer["type"] != "predicate":
                raise ValueError(answer["type"])
            return read_rating(round(answer["probability"], 6))  # sums of float32 may exceed 1


def _evidence(candidate: Candidate) -> str:
    """
    Write down what is judged, with the candidate's text last, so that requests of a run share a
    prefix.
    """
    problem = "\n\n".join(message.content for message in candidate.problem)
    steps = "".join(candidate.steps).strip()
    parts = (("Problem", problem), ("Reasoning", steps), ("Candidate", candidate.text.strip()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts if text)


class FunctionRater:
    """Calls the function of a verifier, for as many candidates at a time as *settings* say."""

    def __init__(self, settings: FunctionVerifier) -> None:
        self._function = VERIFIERS.find(settings.function)
        self._name = settings.name
        self._slots = asyncio.Semaphore(settings.max_concurrency)

    async def close(self) -> None:
        """Nothing is held."""

    async def rate(self, candidate: Candidate) -> Rating:
        """
        Return the function's rating. Raise `VerifierFailed` if it raises an exception, or returns
        no rating.
        """
        try:
            value = await self._call(candidate)
        except Exception as exc:  # whatever the code of somebody else raises
            raise VerifierFailed(
                f"it raised {type(exc).__name__}: {exc}", verifier=self._name
            ) from exc
        try:
            return read_rating(value)
        except ValueError as exc:
            raise VerifierFailed(str(exc), verifier=self._name) from exc

    async def _call(self, candidate: Candidate) -> object:
        if is_async(self._function):
            async with self._slots:
                return await cast("Awaitable[object]", self._function(candidate))
        await self._slots.acquire()
        return await in_thread(self._function, candidate, self._slots.release)


async def yes_or_no(model: Model, chain: Chain, question: str, opening: str) -> Rating:
    """Return the probability with which *model* answers Yes to a *question* about *chain*."""
    answer = await model.ask(chain, question, (YES, NO), opening=opening)
    return Rating(min(1.0, answer[YES]))


class ConnectedVerifier:
    """A verifier and the connections to it, which all runs share. Leaving closes them."""

    def __init__(self, settings: AnyVerifier) -> None:
        self.settings = settings
        self.name = settings.name

    async def __aenter__(self) -> Self:
        if isinstance(self.settings, DecisionsVerifier):
            self._rater: DecisionsRater | FunctionRater = DecisionsRater(self.settings)
        else:
            self._rater = FunctionRater(self.settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rater.close()

    async def rate(self, candidate: Candidate) -> Rating:
        """Rate *candidate*. Raise an `EndpointError` if that fails, or takes too long."""
        seconds = self.settings.seconds
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await self._rater.rate(candidate)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise VerifierFailed(
                f"no rating within {seconds:g} s (seconds in [critic])", verifier=self.name
            ) from None


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
        connected: ConnectedVerifier,
        instead: Callable[[Chain, Stage], Awaitable[Rating]] | None = None,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._connected = connected
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
        settings = self._connected.settings
        url = getattr(settings, "url", "")
        try:
            with metered("critic", "rate", self._observe, self._clock, url=url):
                return self._judgement(await self._connected.rate(candidate))
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
        accepted = rating.score >= self._connected.settings.threshold
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
