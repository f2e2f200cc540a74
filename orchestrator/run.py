"""One run, from the problem to the answer: think within the budget, survive the loss of the small model, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from .answer import (
    AnswerStream,
    CallStream,
    answer_text,
    close,
    closing_step,
    complete_calls,
    extract,
    has_answer,
    has_thought,
    write_answer,
)
from .budget import Budget
from .chain import Chain, Role, Rollback, Step, Stop, ToolCall
from .concurrency import to_the_end
from .errors import ContextTooLong, EndpointError
from .events import (
    Answered,
    Answering,
    Calling,
    Chosen,
    Committed,
    Degraded,
    Drafted,
    Event,
    Finished,
    Judged,
    Observer,
    Repaired,
)
from .interfaces import REQUEST, AnswerParser, Model, Policy, RequestContext, requesting
from .lookahead import LookaheadControl
from .markers import may_open_block
from .reason import End, reason
from .verifiers import AnswerCheck, CheckedAnswer

FinishReason: TypeAlias = Literal["stop", "length", "time", "repetition", "context"]

_REASONS: dict[End, FinishReason] = {
    "finished": "stop",
    "budget": "length",
    "time": "time",
    "repetition": "repetition",
}
_CUT: dict[Stop, FinishReason] = {"length": "length", "repetition": "repetition"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    The result of a run: the committed chain, the text and the *calls* after the thinking, and why the run ended.

    *verified* says whether a verifier accepted the answer, and *rejection* why it did not; None if nobody judged it.
    """

    chain: Chain
    text: str
    reason: FinishReason
    calls: tuple[ToolCall, ...] = ()
    verified: bool | None = None
    rejection: str = ""

    @property
    def answer(self) -> str:
        return extract(self.text)


@dataclass(frozen=True, slots=True)
class RunParts:
    """
    What a run is made of, within its *budget*. It thinks with *policy*, then *answerer* writes the answer.

    Without an *answerer* the policy's own writes it. With *by_method*, *policy* goes on through the answer, whose steps
    are the last ones of the chain. Models that do not think (*thinks*, or `thinks` of the chain, is false) answer as
    they reason. If such a chain shows a thinking block all the same, an answer is written after it.

    The answer may call the tools of the chain if *parser* makes what finds the calls. Then models that do not think
    answer at once: the method has nothing to draft before an answer with calls.

    The answer is emitted in pieces and ends before the first of the *stop* strings. If the time is up, the part that is
    written counts. If the small model fails for good, or rejects what the large one may take, *fallback* continues the
    committed chain; if it is *lost* already, *fallback* begins. Any other failure passes through.

    With a *check* the answer is judged, and rewritten while it is rejected; it is emitted in one piece at the end. An
    answer that calls tools is no answer yet, and is not judged. *ahead* says how far to work ahead, as in `reason`.
    """

    policy: Policy
    budget: Budget
    ahead: int | LookaheadControl = 0
    fallback: Policy | None = None
    thinks: bool = True
    answerer: Model | None = None
    stop: Sequence[str] = ()
    by_method: bool = False
    parser: Callable[[], AnswerParser] | None = None
    check: AnswerCheck | None = None
    lost: EndpointError | None = None


async def run(parts: RunParts, chain: Chain, observe: Observer) -> Outcome:
    """Continue *chain* to the end of its thinking, and answer; *observe* is called with every event."""
    chain = replace(chain, thinks=parts.thinks and chain.thinks)
    current = _Run(parts, chain, observe, asyncio.get_running_loop().time())
    try:
        why = await current.work_or_fall_back()
        calls: tuple[ToolCall, ...] = ()
        if not current.by_method and (current.thought or parts.parser is not None):
            stream, cut = await current.answer()
            text, calls = (stream.text, stream.calls) if stream is not None else ("", ())
            why = cut if why == "stop" else why
        else:
            text = (current.chain.parts()[1] if current.by_method else current.chain).text
            current.stream.finish(text)
        calls = calls if why == "stop" else complete_calls(calls)
        outcome = Outcome(current.chain, answer_text(text, parts.stop, thought=current.thought), why, calls)
        if parts.check is not None:
            outcome = await current.checked(parts.check, outcome)
    finally:
        await to_the_end(current.close())
    observe(Finished(outcome.reason, outcome.answer, asyncio.get_running_loop().time() - current.began))
    return outcome


@dataclass
class _Run:
    """The state of one run: an observer that keeps the committed chain, so that it outlives a failure."""

    parts: RunParts
    chain: Chain
    observe: Observer
    began: float
    early: _EarlyAnswer | None = None
    written: Step | None = None  # the complete answer after the thinking
    partial: bool = False  # whether the time was up before the answer was complete
    answered: bool = False  # whether a part of the answer was emitted

    def __post_init__(self) -> None:
        parts = self.parts
        self.budget, self.stop = parts.budget, parts.stop
        self.by_method = parts.by_method and self.thinks and parts.parser is None
        self.control, self.answerer = LookaheadControl.of(parts.ahead), parts.answerer
        self.optional: Role | None = None if parts.fallback is None else "small"  # that the run can go on without
        self.stream = self.new_stream()  # of a chain that is the answer, or contains it
        self.stream.start()

    def new_stream(self) -> AnswerStream:
        """Make a stream for one answer, which emits nothing if the answer is to be judged first."""
        emit = self if self.parts.check is None else _emit_nothing
        if self.parts.parser is not None:
            return CallStream(emit, self.parts.parser(), self.stop, thought=self.thought)
        return AnswerStream(lambda text: emit(Answering(text)), self.stop, thought=self.thought)

    @property
    def thinks(self) -> bool:
        """Whether the chain begins in a thinking block."""
        return self.chain.thinks

    @property
    def thought(self) -> bool:
        """Whether the answer follows a thinking block."""
        return self.thinks or has_thought(self.chain)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.chain = self.chain.extend(event.step)
        self.answered = self.answered or isinstance(event, Answering | Calling)
        if self.early is not None:
            self.early.observe(event, self.chain)
        self.observe(event)
        if isinstance(event, Committed) and not self.thinks and not may_open_block(self.chain.text):
            self.stream.update(self.chain.text)
        if isinstance(event, Committed) and self.by_method and self.chain.closed:
            self.stream.update(self.chain.parts()[1].text)

    async def close(self) -> None:
        if self.early is not None:
            await self.early.close()

    def remove(self, role: Role, exc: EndpointError) -> None:
        """Continue without the model in *role*, which failed with *exc*."""
        self.observe(Degraded(role, str(exc)))
        self.optional = None
        self.control = replace(self.control, auto=None)  # nothing is left to choose from
        if self.answerer is not None and self.answerer.role == role:
            self.answerer = None

    async def work_or_fall_back(self) -> FinishReason:
        """Let the policy think; the fallback takes over if the small model fails."""
        fallback = self.parts.fallback
        try:
            if self.parts.lost is not None and fallback is not None:
                raise self.parts.lost
            return await self.work(self.parts.policy)
        except EndpointError as exc:
            if fallback is None or exc.role != self.optional:
                raise
            self.remove("small", exc)
            return await self.work(fallback)

    async def work(self, policy: Policy) -> FinishReason:
        """Let *policy* think and, if *by_method*, answer; also where the thinking was cut short."""
        why, closed = await self.think(policy), self.chain.closed
        if not self.by_method or has_answer(self.chain, self.stop) or (closed and why != "time"):
            return why
        if not closed:
            self(Committed(len(self.chain.steps), closing_step(self.chain, policy.answerer)))
        cut = await self._reason(policy, self.budget.seconds)
        return cut if closed or why == "stop" else why

    async def think(self, policy: Policy) -> FinishReason:
        if self.early is not None:
            await self.early.close()

        self._prepare_answer(self.answerer or policy.answerer)
        if self.parts.parser is not None and not self.thinks:
            return "stop"
        return await self._reason(policy, self.budget.thinking_seconds)

    def _prepare_answer(self, author: Model) -> None:
        async def write(chain: Chain, stream: AnswerStream) -> Step:
            limit = self.budget.left_to_answer(chain)
            thought = chain.thinks or has_thought(chain)
            return await write_answer(author, chain, limit=limit, stop=self.stop, stream=stream, thinks=thought)

        self.early = _EarlyAnswer(
            write, self.new_stream, lambda: self.thinks and self.control.depth() > 0 and not self.by_method
        )

    async def _reason(self, policy: Policy, seconds: float | None) -> FinishReason:
        """Let *policy* grow the chain until it is `_over`, or *seconds* have passed since the run began."""
        try:
            _, end = await reason(
                policy,
                self.chain,
                ahead=self.control,
                spent=self.budget.spent,
                deadline=None if seconds is None else self.began + seconds,
                observe=self,
                over=self._over,
            )
        except ContextTooLong as exc:
            if exc.role == self.optional:
                raise
            return "context"
        return _REASONS[end]

    def _over(self, chain: Chain) -> bool:
        return has_answer(chain, self.stop) if self.by_method and chain.closed else chain.finished

    async def answer(self) -> tuple[AnswerStream | None, FinishReason]:
        """
        Write the answer. Return what it was emitted by, None if there is none, and why it ended.

        If the small model fails before a part of it is emitted, the model of the fallback writes it.
        """
        fallback = self.parts.fallback
        try:
            return await self._answer()
        except EndpointError as exc:
            if fallback is None or exc.role != self.optional or self.answered:
                raise
            self.remove("small", exc)
            await self.close()
            self._prepare_answer(fallback.answerer)
            return await self._answer()

    async def _answer(self) -> tuple[AnswerStream | None, FinishReason]:
        deadline = None if self.budget.seconds is None else self.began + self.budget.seconds
        timeout = asyncio.timeout_at(deadline)
        try:
            async with timeout:
                assert self.early is not None
                step = await self.early.take(self.chain)
        except TimeoutError:
            if not timeout.expired():
                raise
            taken = self.early.taken if self.early is not None else None
            self.partial = True
            if taken is None or taken.partial is None:
                return None, "time"
            self(Answered(taken.partial))
            return taken, "time"
        except ContextTooLong as exc:
            if exc.role == self.optional:
                raise
            return None, "context"
        self.written = step
        if self.parts.check is None or self.early.taken is None or self.early.taken.calls:
            self(Answered(step))
        return self.early.taken, _CUT.get(step.stop, "stop")

    async def checked(self, check: AnswerCheck, outcome: Outcome) -> Outcome:
        """Have the answer of *outcome* judged, and rewritten while it is rejected; then emit it."""
        if outcome.text and not outcome.calls and not self.partial:
            if self.written is not None:
                chain = close(self.chain, check.author).extend(self.written)
                answer = CheckedAnswer(chain, self.written, outcome.text)
            else:
                step = _joined(self.chain.parts()[1] if self.by_method else self.chain)
                answer = CheckedAnswer(self.chain, step, outcome.text, committed=True)
            outcome = await self._check(check, answer, outcome)
        if outcome.text:
            self(Answering(outcome.text))
        for index, call in enumerate(outcome.calls):
            self(Calling(index, call.id, call.name, call.arguments))
        return outcome

    async def _check(self, check: AnswerCheck, answer: CheckedAnswer, outcome: Outcome) -> Outcome:
        def keep(latest: CheckedAnswer) -> None:
            nonlocal answer
            answer = latest

        why = outcome.reason
        timeout = asyncio.timeout_at(None if self.budget.seconds is None else self.began + self.budget.seconds)
        try:
            async with timeout:
                await check.run(answer, len(self.chain.steps), self._left, self.stop, self, keep)
        except TimeoutError:
            if not timeout.expired():
                raise
            why = "time"
        except ContextTooLong:  # there is no room to rewrite the answer: it stays as it is
            pass
        if not answer.committed:
            self(Answered(answer.step))
            why = _CUT.get(answer.step.stop, why) if why == "stop" else why
        return replace(outcome, text=answer.text, reason=why, verified=answer.verified, rejection=answer.rejection)

    def _left(self, chain: Chain) -> int:
        """How many tokens a further answer to *chain*, which ends with one, may have."""
        return self.budget.left(chain) if chain.closed else self.budget.tokens - chain.tokens


def _emit_nothing(event: Event) -> None:
    pass


def _joined(answer: Chain) -> Step:
    """The steps of *answer* as one."""
    tokens = tuple(token for step in answer.steps for token in step.tokens)
    return replace(answer.steps[-1], text=answer.text, tokens=tokens, pieces=())


class _EarlyAnswer:
    """
    Starts the answer as a bet, as soon as a draft ends the thinking and while earlier drafts are still being judged.

    There is at most one bet. It is cancelled when a draft before it is rolled back. *write* writes the answer to a
    chain, *new_stream* makes a stream for one answer, and *may_bet* says whether to bet now.
    """

    def __init__(
        self,
        write: Callable[[Chain, AnswerStream], Coroutine[Any, Any, Step]],
        new_stream: Callable[[], AnswerStream],
        may_bet: Callable[[], bool],
    ) -> None:
        self._write, self._new_stream, self._may_bet = write, new_stream, may_bet
        # Events come from the lookahead's tasks, whose kept streams are not for answers.
        self._outside = copy_context()
        self._drafts: dict[int, Step] = {}
        self._rolled_back = False
        self._bet: tuple[Chain, asyncio.Task[Step], AnswerStream] | None = None
        self.taken: AnswerStream | None = None  # the stream of the answer that is used
        self._dropped: list[asyncio.Task[Step]] = []

    def observe(self, event: Event, committed: Chain) -> None:
        """Follow the drafts and verdicts of the loop; *committed* is the chain after *event*."""
        match event:
            case Drafted(index, draft) if not self._rolled_back:
                self._drafts[index] = draft
                if draft.stop == "end" and self._may_bet():
                    steps = (self._drafts[place] for place in sorted(self._drafts))
                    self._start(replace(committed, steps=(*committed.steps, *steps)))
            case Judged(verdict=Rollback()):
                self._rolled_back = True
                self._drop()
            case Repaired() | Chosen():
                self._rolled_back = False
                self._drafts.clear()
            case Committed(index):
                self._drafts.pop(index, None)
            case _:
                pass

    async def take(self, chain: Chain) -> Step:
        """Return the answer to *chain* and emit it in pieces: the bet's, or one that is written now."""
        if self._bet is None or self._bet[0] != chain:
            self.taken = stream = self._new_stream()
            stream.start()
            with requesting(RequestContext("answer", len(chain.steps))):
                step = await self._write(chain, stream)
        else:
            _, writing, stream = self._bet
            self.taken = stream
            stream.start()
            step = await writing
        stream.finish(step.text)
        return step

    async def close(self) -> None:
        """Cancel a bet that was not taken, and wait until all bets are gone."""
        self._drop()
        if self._dropped:
            await asyncio.wait(self._dropped)
        for bet in self._dropped:
            if not bet.cancelled():
                bet.exception()  # The failure of a lost bet does not matter: reading it silences asyncio's warning.

    def _start(self, chain: Chain) -> None:
        self._drop()
        stream = self._new_stream()
        outside = self._outside.copy()
        outside.run(REQUEST.set, RequestContext("answer", len(chain.steps), bet=True))
        writing = asyncio.create_task(self._write(chain, stream), context=outside)
        self._bet = chain, writing, stream

    def _drop(self) -> None:
        if self._bet is not None:
            self._bet[1].cancel()  # An answer that is complete is not affected.
            self._dropped.append(self._bet[1])
            self._bet = None
