"""One run, from the problem to the answer. The run survives the loss of the small model."""

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
from .reason import End, Loop
from .verifiers import AnswerCheck, CheckedAnswer

FinishReason: TypeAlias = Literal["stop", "length", "time", "repetition", "context"]
"""Why a run ended. "stop": the run is complete. Any other reason cut the run short."""

_FINISH_REASONS: dict[End, FinishReason] = {
    "finished": "stop",
    "budget": "length",
    "time": "time",
    "repetition": "repetition",
}
_ANSWER_CUTS: dict[Stop, FinishReason] = {"length": "length", "repetition": "repetition"}
"""Why the run ended, by the `stop` of a cut answer. With other values, the answer is complete."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    chain: Chain
    """The committed chain."""
    text: str
    """The text after the thinking, without tool calls."""
    reason: FinishReason
    """Why the run ended."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls in the answer."""
    verified: bool | None = None
    """Whether a verifier accepted the answer. None: nobody judged the answer."""
    rejection: str = ""
    """Why the verifier rejected the answer. "": the verifier accepted it, or nobody judged it."""
    stopped: str = ""
    """The stop string that ended the answer. "": none did."""

    @property
    def answer(self) -> str:
        return extract(self.text)


@dataclass(frozen=True, slots=True)
class RunParts:
    """
    The parts of a run. The policy thinks, then a model writes the answer.

    The answer is emitted in pieces. If the time is up, the text until then is the answer.
    """

    policy: Policy
    """The method."""
    budget: Budget
    """The limits of the run."""
    ahead: int | LookaheadControl = 0
    """How far to work ahead, as in `reason`."""
    fallback: Policy | None = None
    """
    Continues the committed chain without the small model.

    The fallback begins if the small model fails for good or rejects a request. The large model can
    accept such a request if, for example, its context is longer. None: the failure is raised.
    """
    answerer: Model | None = None
    """The model that writes the answer. None: the policy's own answerer writes it."""
    stop: Sequence[str] = ()
    """The answer ends before the first of these strings."""
    by_method: bool = False
    """Whether the policy also writes the answer. The answer is then the last steps of the chain."""
    parser: Callable[[], AnswerParser] | None = None
    """
    Makes the parser that finds the tool calls in the answer. None: the answer can call no tool.

    With a parser, one model writes the whole answer. If the chain does not think, the policy is
    then not used: there is no thinking to draft.
    """
    without_calls: Model | None = None
    """
    Writes the answer again, in the requested format, if the first answer calls no tool.

    None: the answer may have any form.
    """
    check: AnswerCheck | None = None
    """
    Judges the answer. A rejected answer is rewritten and judged again. None: nobody judges.

    With a check, the answer is emitted in one piece at the end. An answer that calls tools is not
    judged.
    """
    small_model_error: EndpointError | None = None
    """
    The small model failed with this error before the run. The fallback does all the thinking.

    None: the policy thinks.
    """
    needs_small: bool = False
    """Whether the run fails if the small model fails. A full context is no such failure."""


async def run(parts: RunParts, chain: Chain, observe: Observer) -> Outcome:
    """
    Continue *chain* to the end of its thinking, and answer. Call *observe* with every event.

    If *chain* does not think, its steps are the answer. If the steps open a thinking block all the
    same, an answer is written after the block.

    Raise `ContextTooLong` if nothing was written because the problem leaves no room in the context
    of a model that the run needs.
    """
    clock = asyncio.get_running_loop().time
    current = _CurrentRun(parts, chain, observe, began=clock())
    outcome = await current.outcome()
    if parts.check is not None:
        outcome = await current.checked(parts.check, outcome)
    observe(Finished(outcome.reason, outcome.answer, clock() - current.began))
    return outcome


@dataclass
class _CurrentRun:
    """
    The state of one run.

    This object observes the loop. It keeps the committed chain, so that the fallback can continue
    the chain after a failure.
    """

    parts: RunParts
    """The models, the policies and the options of the run."""
    chain: Chain
    """The committed chain."""
    observe: Observer
    """Is called with every event."""
    began: float
    """When the run began, in seconds on the event loop's clock."""
    written: Step | None = None
    """The complete answer after the chain. None: such an answer is not complete yet."""
    partial: bool = False
    """Whether the time was up, or the context full, before the answer was complete."""
    answered: bool = False
    """Whether a part of the answer was emitted."""
    thinking_cut: FinishReason = "stop"
    """If the method answers: why its thinking ended. "stop": the thinking was not cut short."""
    context_error: ContextTooLong | None = None
    """The error of a full context that ended the work of a policy. None: there was none."""
    held: list[Event] = field(default_factory=list[Event])
    """Events of the answer. They are emitted when a tool call follows."""

    def __post_init__(self) -> None:
        parts = self.parts
        self.budget = parts.budget
        self.stop = parts.stop
        # Without thinking, the chain is the answer, and the method writes no other answer. With a
        # parser, one model writes the whole answer.
        self.by_method = parts.by_method and self.chain.thinks and parts.parser is None
        self.control = LookaheadControl.of(parts.ahead)
        self.author = parts.answerer or parts.policy.answerer
        self.optional: Role | None = None
        """The run can go on without this model. None: the run needs each of its models."""
        if parts.fallback is not None:
            self.optional = "small"
        self.stream = self.new_stream()
        """
        Emits the answer.

        The first stream is for an answer in the chain. An answer after the chain gets another
        stream.
        """

    async def outcome(self) -> Outcome:
        """Think and answer."""
        reason = await self.work_or_fall_back()
        if self.thinking_cut != "stop":
            reason = self.thinking_cut
        calls: tuple[ToolCall, ...] = ()
        has_parser = self.parts.parser is not None
        answer_follows_chain = not self.by_method and (self.chain.thought or has_parser)
        if answer_follows_chain:
            answer_cut = await self.answer()
            if reason == "stop":
                reason = answer_cut
            text = self.stream.text
            calls = self.stream.calls
        else:
            # The problem left no room for a first step.
            if self.context_error is not None and not self.chain.steps:
                raise self.context_error
            text = self._answering_chain().text
            self.stream.finish(text)
        if reason != "stop":
            calls = complete_calls(calls)
        return Outcome(
            self.chain,
            answer_text(text, self.stop, thought=self.chain.thought),
            reason,
            calls,
            stopped=self._stop_in(text),
        )

    def _stop_in(self, text: str) -> str:
        """Return the first stop string in the answer *text*. "": there is none."""
        found = first_stop(text, self.stop)
        return found[1] if found else ""

    def _answering_chain(self) -> Chain:
        """
        Return the answer in the chain.

        Call this only if no answer was written after the chain.
        """
        if self.by_method:
            return self.chain.parts()[1]
        return self.chain

    def new_stream(self) -> AnswerStream:
        """Make a stream for one answer. If the answer will be judged, the stream emits nothing."""
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
            lambda text: self._emit(Answering(text)),
            self.stop,
            thought=self.chain.thought,
        )

    def _emit(self, event: Event) -> None:
        if self.parts.check is None:
            self(event)

    def _emit_before_calls(self, event: Event) -> None:
        """Hold *event* back until a tool call follows. An answer without calls is written again."""
        self.held.append(event)
        if isinstance(event, Calling):
            for held in self.held:
                self._emit(held)
            self.held.clear()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Answering | Calling):
            self.answered = True
        if not isinstance(event, Committed):
            self.observe(event)
            return
        self.chain = self.chain.extend(event.step)
        self.observe(event)
        chain_is_answer = not self.chain.thinks and not may_open_block(self.chain.text)
        if chain_is_answer:
            self.stream.update(self.chain.text)
        if self.by_method and self.chain.closed:
            self.stream.update(self.chain.parts()[1].text)

    def lose_small(self, exc: EndpointError) -> Policy:
        """
        Return the fallback. The fallback goes on without the small model.

        Raise *exc* if another model failed, or if there is no fallback. If the run needs the small
        model, raise *exc*, too, unless only the context of the small model is full.
        """
        fallback = self.parts.fallback
        needed = self.parts.needs_small and not isinstance(exc, ContextTooLong)
        if fallback is None or needed or exc.role != self.optional:
            raise exc
        self.observe(Degraded("small", str(exc)))
        self.optional = None
        self.control = replace(self.control, auto=None)  # With one model left, there is no choice.
        if self.author.role == "small":
            self.author = fallback.answerer
        return fallback

    async def work_or_fall_back(self) -> FinishReason:
        """Let the policy think. The fallback takes over if the small model fails."""
        try:
            if self.parts.small_model_error is not None:
                raise self.parts.small_model_error
            return await self.work(self.parts.policy)
        except EndpointError as exc:
            return await self.work(self.lose_small(exc))

    async def work(self, policy: Policy) -> FinishReason:
        """
        Let *policy* think. If the method writes the answer, let *policy* answer, too.

        The method answers even if its thinking was cut short.
        """
        reason = await self.think(policy)
        if not self.by_method or has_answer(self.chain, self.stop):
            return reason
        closed = self.chain.closed
        # The time limit of the thinking can pass while the method already answers. Then go on,
        # because the answer can use the rest of the time of the run.
        if closed and reason != "time":
            return reason
        # Without room for a first step, there is no room for an answer.
        if self.context_error is not None and not self.chain.steps:
            return reason
        if not closed:
            self.thinking_cut = reason
            self(Committed(len(self.chain.steps), closing_step(self.chain, policy.answerer)))
        return await self._reason(policy, self.budget.seconds)

    async def think(self, policy: Policy) -> FinishReason:
        if self.parts.parser is not None and not self.chain.thinks:
            return "stop"
        seconds = self.budget.seconds
        if self.chain.thinks:
            seconds = self.budget.thinking_seconds
        return await self._reason(policy, seconds)

    async def _reason(self, policy: Policy, seconds: float | None) -> FinishReason:
        """
        Let *policy* extend the chain until the chain is complete. Return why it ended.

        Stop early if *seconds* have passed since the run began. None: there is no limit.
        """
        loop = Loop(
            policy=policy,
            chain=self.chain,
            control=self.control,
            observe=self,
            spent=self.budget.spent,
            over=self._over,
        )
        try:
            end = await loop.run(self._deadline(seconds))
        except ContextTooLong as exc:
            if exc.role == self.optional:
                raise
            self.context_error = exc
            return "context"
        return _FINISH_REASONS[end]

    def _over(self, chain: Chain) -> bool:
        """
        Return whether *chain* needs no further step.

        If the method has begun its answer, this answer must be complete. Otherwise, the last step
        must have ended the thinking or the reply. An answer without thinking also ends at a stop
        string.
        """
        if self.by_method and chain.closed:
            return has_answer(chain, self.stop)
        if chain.finished:
            return True
        return not chain.thought and first_stop(chain.text, self.stop) is not None

    def _deadline(self, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        return self.began + seconds

    async def answer(self) -> FinishReason:
        """
        Write the answer through `stream`. Return why it ended.

        If the small model fails before a part of the answer is emitted, the fallback's model
        writes the answer.
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
            return self._cut_answer("time")
        except ContextTooLong as exc:
            if exc.role == self.optional or not (self.chain.steps or self.stream.text):
                raise
            return self._cut_answer("context")
        self.stream.finish(step.text)
        self.written = step
        # A checked answer is reported after its last rewrite. An answer with calls is not checked.
        if self.parts.check is None or self.stream.calls:
            self(Answered(step))
        return _ANSWER_CUTS.get(step.stop, "stop")

    def _cut_answer(self, reason: FinishReason) -> FinishReason:
        """Take the text that is written as the answer. Return the *reason* of the cut."""
        self.partial = True
        self.stream.finish(self.stream.text)
        if self.stream.partial is not None:
            self(Answered(self.stream.partial))
        return reason

    async def _write(self) -> Step:
        """
        Write the answer.

        No server can allow tool calls and enforce a format in the same answer. So if the first
        answer calls no tool and a format is requested, write the answer again in this format.
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
        """Judge the answer of *outcome*. While it is rejected, rewrite it. Then emit the answer."""
        if outcome.text and not outcome.calls and not self.partial:
            if self.written is not None:
                chain = close(self.chain, check.author).extend(self.written)
                answer = CheckedAnswer(chain, self.written, outcome.text)
            else:
                step = _joined(self._answering_chain())
                answer = CheckedAnswer(self.chain, step, outcome.text, committed=True)
            outcome = await self._check(check, answer, outcome)
        if outcome.text:
            self(Answering(outcome.text))
        for index, call in enumerate(outcome.calls):
            self(Calling(index, call.id, call.name, call.arguments))
        return outcome

    async def _check(
        self,
        check: AnswerCheck,
        answer: CheckedAnswer,
        outcome: Outcome,
    ) -> Outcome:
        def keep(latest: CheckedAnswer) -> None:
            nonlocal answer
            answer = latest

        reason = outcome.reason
        timeout = asyncio.timeout_at(self._deadline(self.budget.seconds))
        try:
            async with timeout:
                await check.run(
                    answer,
                    len(self.chain.steps),
                    self._left,
                    self.stop,
                    self,
                    keep,
                )
        except TimeoutError:
            if not timeout.expired():
                raise
            reason = "time"
        except ContextTooLong:
            pass  # The answer stays as it is, because there is no room to rewrite it.
        if not answer.committed:
            self(Answered(answer.step))
            if reason == "stop":
                reason = _ANSWER_CUTS.get(answer.step.stop, "stop")
        return replace(
            outcome,
            text=answer.text,
            reason=reason,
            verified=answer.verified,
            rejection=answer.rejection,
            stopped=self._stop_in(answer.step.text),
        )

    def _left(self, chain: Chain) -> int:
        """
        Return how many tokens a rewritten answer may have.

        *chain* ends with the rejected answer and the note about the rejection.
        """
        if chain.closed:
            return self.budget.left(chain)
        # Without thinking, no tokens are reserved for an answer after the chain.
        return self.budget.tokens - chain.tokens


def _joined(answer: Chain) -> Step:
    """Return the steps of *answer* as one step."""
    tokens = tuple(token for step in answer.steps for token in step.tokens)
    return replace(answer.steps[-1], text=answer.text, tokens=tokens)
