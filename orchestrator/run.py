"""
One run, from the problem to the answer: think within the budget, survive the loss of the small
model, answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from .answer import (
    AnswerStream,
    CallStream,
    answer_text,
    close,
    closing_step,
    complete_calls,
    extract,
    first_stop,
    has_answer,
    write_answer,
)
from .budget import Budget
from .chain import Chain, Role, Step, Stop, ToolCall
from .errors import ContextTooLong, EndpointError
from .events import Answered, Answering, Calling, Committed, Degraded, Event, Finished, Observer
from .interfaces import AnswerParser, Model, Policy, RequestContext, requesting
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
    The result of a run: the committed chain, the text and the *calls* after the thinking, and why
    the run ended.

    *verified* says whether a verifier accepted the answer, and *rejection* why it did not; None if
    nobody judged it.
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
    What a run is made of, within its *budget*. It thinks with *policy*, then *answerer* writes the
    answer.

    Without an *answerer* the policy's own writes it. With *by_method*, *policy* goes on through the
    answer, whose steps are the last ones of the chain. Models that do not think (*thinks*, or
    `thinks` of the chain, is false) answer as they reason. If such a chain shows a thinking block
    all the same, an answer is written after it.

    The answer may call the tools of the chain if *parser* makes what finds the calls. Then models
    that do not think answer at once: the method has nothing to draft before an answer with calls.

    The answer is emitted in pieces and ends before the first of the *stop* strings. If the time is
    up, the part that is written counts. If the small model fails for good, or rejects what the
    large one may take, *fallback* continues the committed chain; if it is *lost* already,
    *fallback* begins. Any other failure passes through; if the run *needs_small*, so does a failure
    of the small model, unless only its context is full.

    With a *check* the answer is judged, and rewritten while it is rejected; it is emitted in one
    piece at the end. An answer that calls tools is no answer yet, and is not judged. *ahead* says
    how far to work ahead, as in `reason`.
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
    without_calls: Model | None = None
    """
    Writes the answer anew, in the format of the request, if it called no tool. None: the answer may
    have any form.
    """

    check: AnswerCheck | None = None
    lost: EndpointError | None = None
    needs_small: bool = False


async def run(parts: RunParts, chain: Chain, observe: Observer) -> Outcome:
    """
    Continue *chain* to the end of its thinking, and answer; *observe* is called with every event.

    Raise `ContextTooLong` if the large model takes so little that nothing at all was written.
    """
    chain = replace(chain, thinks=parts.thinks and chain.thinks)
    current = _Run(parts, chain, observe, asyncio.get_running_loop().time())
    why = await current.work_or_fall_back()
    why = why if current.cut == "stop" else current.cut
    calls: tuple[ToolCall, ...] = ()
    if not current.by_method and (current.chain.thought or parts.parser is not None):
        cut = await current.answer()
        text = current.stream.text
        calls = current.stream.calls
        why = cut if why == "stop" else why
    else:
        if current.full is not None and not current.chain.steps:
            raise current.full
        text = (current.chain.parts()[1] if current.by_method else current.chain).text
        current.stream.finish(text)
    calls = calls if why == "stop" else complete_calls(calls)
    outcome = Outcome(
        current.chain, answer_text(text, parts.stop, thought=current.chain.thought), why, calls
    )
    if parts.check is not None:
        outcome = await current.checked(parts.check, outcome)
    observe(
        Finished(outcome.reason, outcome.answer, asyncio.get_running_loop().time() - current.began)
    )
    return outcome


@dataclass
class _Run:
    """
    The state of one run: an observer that keeps the committed chain, so that it outlives a failure.
    """

    parts: RunParts
    chain: Chain
    observe: Observer
    began: float
    written: Step | None = None  # the complete answer after the thinking
    partial: bool = False  # whether the time was up before the answer was complete
    answered: bool = False  # whether a part of the answer was emitted
    cut: FinishReason = "stop"  # what ended the thinking before an answer of the method
    full: ContextTooLong | None = None  # why a policy could not go on
    held: list[Event] = field(default_factory=list[Event])  # content that no call follows yet

    def __post_init__(self) -> None:
        parts = self.parts
        self.budget = parts.budget
        self.stop = parts.stop
        self.by_method = parts.by_method and self.chain.thinks and parts.parser is None
        self.control = LookaheadControl.of(parts.ahead)
        self.author = parts.answerer or parts.policy.answerer
        # that the run can go on without
        self.optional: Role | None = None if parts.fallback is None else "small"
        # of the answer: at first of a chain that is the answer, or contains it
        self.stream = self.new_stream()

    def new_stream(self) -> AnswerStream:
        """Make a stream for one answer, which emits nothing if the answer is to be judged first."""
        if self.parts.parser is None:
            return self.text_stream()
        parser = self.parts.parser()
        thought = self.chain.thought
        live = parser.live and self.parts.check is None
        emit = self._emit if self.parts.without_calls is None else self._emit_before_calls
        return CallStream(emit, parser, self.stop, thought=thought, live=live)

    def text_stream(self) -> AnswerStream:
        """Make a stream for an answer that calls no tools."""
        self.held.clear()
        return AnswerStream(
            lambda text: self._emit(Answering(text)), self.stop, thought=self.chain.thought
        )

    def _emit(self, event: Event) -> None:
        if self.parts.check is None:
            self(event)

    def _emit_before_calls(self, event: Event) -> None:
        """Hold content back until a call follows it; an answer without calls is written anew."""
        self.held.append(event)
        if isinstance(event, Calling):
            for held in self.held:
                self._emit(held)
            self.held.clear()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.chain = self.chain.extend(event.step)
        self.answered = self.answered or isinstance(event, Answering | Calling)
        self.observe(event)
        if (
            isinstance(event, Committed)
            and not self.chain.thinks
            and not may_open_block(self.chain.text)
        ):
            self.stream.update(self.chain.text)
        if isinstance(event, Committed) and self.by_method and self.chain.closed:
            self.stream.update(self.chain.parts()[1].text)

    def lose_small(self, exc: EndpointError) -> Policy:
        """
        Return the fallback, which goes on without the small model; raise *exc* if that is not what
        failed.

        It is raised as well if the run needs both models, unless only the context of the small one
        is full.
        """
        fallback = self.parts.fallback
        needed = self.parts.needs_small and not isinstance(exc, ContextTooLong)
        if fallback is None or needed or exc.role != self.optional:
            raise exc
        self.observe(Degraded("small", str(exc)))
        self.optional = None
        self.control = replace(self.control, auto=None)  # nothing is left to choose from
        if self.author.role == "small":
            self.author = fallback.answerer
        return fallback

    async def work_or_fall_back(self) -> FinishReason:
        """Let the policy think; the fallback takes over if the small model fails."""
        try:
            if self.parts.lost is not None:
                raise self.parts.lost
            return await self.work(self.parts.policy)
        except EndpointError as exc:
            return await self.work(self.lose_small(exc))

    async def work(self, policy: Policy) -> FinishReason:
        """Let *policy* think and, if *by_method*, answer; also where the thinking was cut short."""
        why = await self.think(policy)
        closed = self.chain.closed
        if not self.by_method or has_answer(self.chain, self.stop) or (closed and why != "time"):
            return why
        if self.full is not None and not self.chain.steps:
            return why
        if not closed:
            self.cut = why
            self(Committed(len(self.chain.steps), closing_step(self.chain, policy.answerer)))
        return await self._reason(policy, self.budget.seconds)

    async def think(self, policy: Policy) -> FinishReason:
        if self.parts.parser is not None and not self.chain.thinks:
            return "stop"
        return await self._reason(
            policy, self.budget.thinking_seconds if self.chain.thinks else self.budget.seconds
        )

    async def _reason(self, policy: Policy, seconds: float | None) -> FinishReason:
        """
        Let *policy* grow the chain until it is `_over`, or *seconds* have passed since the run
        began.
        """
        try:
            _, end = await reason(
                policy,
                self.chain,
                ahead=self.control,
                spent=self.budget.spent,
                deadline=self._deadline(seconds),
                observe=self,
                over=self._over,
            )
        except ContextTooLong as exc:
            if exc.role == self.optional:
                raise
            self.full = exc
            return "context"
        return _REASONS[end]

    def _over(self, chain: Chain) -> bool:
        if self.by_method and chain.closed:
            return has_answer(chain, self.stop)
        return chain.finished or (
            not chain.thought and first_stop(chain.text, self.stop) is not None
        )

    def _deadline(self, seconds: float | None) -> float | None:
        return None if seconds is None else self.began + seconds

    async def answer(self) -> FinishReason:
        """
        Write the answer, which `stream` has, and say why it ended.

        If the small model fails before a part of it is emitted, the model of the fallback writes
        it.
        """
        try:
            return await self._answer()
        except EndpointError as exc:
            if self.answered:
                raise
            self.lose_small(exc)
            return await self._answer()

    async def _answer(self) -> FinishReason:
        timeout = asyncio.timeout_at(self._deadline(self.budget.seconds))
        try:
            async with timeout:
                with requesting(RequestContext("answer", len(self.chain.steps))):
                    step = await self._write()
        except TimeoutError:
            if not timeout.expired():
                raise
            self.partial = True
            self.stream.finish(self.stream.text)
            if self.stream.partial is not None:
                self(Answered(self.stream.partial))
            return "time"
        except ContextTooLong as exc:
            if exc.role == self.optional or not (self.chain.steps or self.stream.text):
                raise
            self.stream.finish(self.stream.text)
            return "context"
        self.stream.finish(step.text)
        self.written = step
        if self.parts.check is None or self.stream.calls:
            self(Answered(step))
        return _CUT.get(step.stop, "stop")

    async def _write(self) -> Step:
        """
        Write the answer. One that may call tools and calls none is written anew if it needs a
        format: no format of a server allows both.
        """
        self.stream = self.new_stream()
        step = await self._write_as(self.author)
        if self.parts.without_calls is None or self.stream.calls:
            return step
        self.stream = self.text_stream()
        return await self._write_as(self.parts.without_calls)

    async def _write_as(self, author: Model) -> Step:
        return await write_answer(
            author,
            self.chain,
            limit=self.budget.left_to_answer(self.chain),
            stop=self.stop,
            stream=self.stream,
            thinks=self.chain.thought,
        )

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
        timeout = asyncio.timeout_at(self._deadline(self.budget.seconds))
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
        return replace(
            outcome,
            text=answer.text,
            reason=why,
            verified=answer.verified,
            rejection=answer.rejection,
        )

    def _left(self, chain: Chain) -> int:
        """How many tokens a further answer to *chain*, which ends with one, may have."""
        return self.budget.left(chain) if chain.closed else self.budget.tokens - chain.tokens


def _joined(answer: Chain) -> Step:
    """The steps of *answer* as one."""
    tokens = tuple(token for step in answer.steps for token in step.tokens)
    return replace(answer.steps[-1], text=answer.text, tokens=tokens, pieces=())
