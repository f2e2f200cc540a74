"""
SpecReason as its paper and code are described, a peer to measure SpecReason of this package against.

Pan et al. 2025, arXiv:2504.07891, sections 4.1 and 5.1. Written from the description alone: one request after the
other, chat completions with the whole conversation each time, the model's name fetched before each of them, no seed.

There are three deviations, without which the miniature models could not take part. The assistant's message begins with
a line break after the opening tag, as these models have learnt. Where a step closes the thinking, the run ends and the
large model writes the answer, in one more request. The judge's question and that answer are sent as plain completions,
because the chat template deletes a closed thinking block from a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from stepspec.api import Solver
from stepspec.evals.sample import Arm
from stepspec.orchestrator import trace
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import (
    DELIMITER,
    THINK_END,
    Accept,
    Chain,
    Message,
    Role,
    Rollback,
    Step,
    Token,
    Toolset,
)
from stepspec.orchestrator.endpoints import Sampling, Template
from stepspec.orchestrator.endpoints.client import CACHE
from stepspec.orchestrator.endpoints.token_stream import RequestMeter
from stepspec.orchestrator.endpoints.vllm_protocol import Format
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import (
    Answered,
    Committed,
    Drafted,
    Event,
    Finished,
    Judged,
    Observer,
    Repaired,
    Started,
    Verb,
)
from stepspec.orchestrator.nesting import servers
from stepspec.orchestrator.run import FinishReason, Outcome
from stepspec.orchestrator.run_options import RunOptions, RunOverrides
from stepspec.orchestrator.solution import Solution
from stepspec.policies.specreason import DIGITS, GRADE

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import CompletionUsage

PUBLISHED = Arm.of("SpecReason as published", "specreason", {"read": "greedy"}, ahead=0)
THRESHOLD = 7  # of 9
STEP_TOKENS, BUDGET, ANSWER_TOKENS = 512, 8192, 512
TOP_LOGPROBS = 10
ANSWER_MARKS = ("boxed", "Answer:", "ANSWER:")
OPENED = "<think>\n"


@dataclass(frozen=True, slots=True)
class Written:
    """The text of one reply, and how many tokens it has."""

    text: str
    tokens: int

    def step(self, role: Role, *, last: bool) -> Step:
        """Return it as a step; its text is divided among as many tokens as it has, whose texts are unknown."""
        text = self.text if last else self.text + DELIMITER
        unknown = [Token("")] * max(0, self.tokens - 1)
        return Step(text, role, "end" if last else "delimiter", (Token(text), *unknown))


class PublishedSpecReason(Solver):
    """Solves problems on the servers of its settings, one request after the other."""

    async def __aenter__(self) -> Self:
        from openai import AsyncOpenAI, DefaultAioHttpClient

        async with AsyncExitStack() as stack:
            await super().__aenter__()
            stack.push_async_callback(super().__aexit__, None, None, None)
            self._clients: dict[Role, AsyncOpenAI] = {}
            for endpoint in (self.small, self.large):
                client = AsyncOpenAI(
                    base_url=endpoint.settings.v1, api_key="none", max_retries=0, http_client=DefaultAioHttpClient()
                )
                self._clients[endpoint.role] = await stack.enter_async_context(client)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def solve(
        self,
        problem: str | Sequence[Message],
        run: RunOptions | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        stop: Sequence[str] = (),
        format: Format | None = None,
        tools: Toolset | None = None,
        observe: Observer = lambda event: None,
        clock: trace.Stopwatch | None = None,
        trace_to: Path | None = None,
        session: str | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> Solution:
        """Solve *problem* with the sampling of *run*; the other arguments change nothing but where events go."""
        run = self.resolve(run, sampling=sampling, seed=seed, budget=budget, **overrides)
        recorder = trace.Recorder(clock := clock or trace.Stopwatch())

        def watch(event: Event) -> None:
            recorder(event)
            observe(event)

        chain = Chain.of(problem)
        (_, large), *others = servers(self.large)
        if others:
            raise ConfigurationError("SpecReason as published has one large server: leave the replicas out")
        prefix = await large.encoder.decode(await large.encoder.prefix(chain.messages))
        watch(Started(chain.messages, "specreason"))
        peer = _Run(self._clients, run.sampling, watch, clock, chain, prefix, self.large.template)
        reason = await peer.think()
        answer = await peer.answer()
        watch(Answered(answer))
        outcome = Outcome(peer.chain, answer.text, reason)
        watch(Finished(reason, outcome.answer, clock()))
        if trace_to is not None:
            trace.write(trace_to, recorder.moments)
        return Solution.of(outcome, recorder.moments)


@dataclass
class _Run:
    """One run: the clients by role, the chain as far as it is written, and the text before it for the large model."""

    clients: Mapping[Role, AsyncOpenAI]
    sampling: Sampling
    observe: Observer
    clock: trace.Stopwatch
    chain: Chain
    prefix: str
    template: Template

    async def think(self) -> FinishReason:
        """Draft, score and rewrite until an answer, the end of the thinking, a repetition or the end of the budget."""
        spent = 0
        while spent < BUDGET:
            index = len(self.chain.steps)
            written = await self._write("small")
            draft = self._step(written, "small")
            self.observe(Drafted(index, draft))
            score = await self._score(draft)
            verdict = Accept(float(score)) if score >= THRESHOLD else Rollback(reason="grade", score=float(score))
            self.observe(Judged(index, draft, verdict))
            step = draft
            if isinstance(verdict, Rollback):
                written = await self._write("large")
                step = self._step(written, "large")
                self.observe(Repaired(index, step, verdict))
            self.observe(Committed(index, step, verdict.score))
            before = self.chain.steps[-1].text if self.chain.steps else None
            self.chain = self.chain.extend(step)
            spent += written.tokens
            if step.stop == "end":
                return "stop"
            if index > 1 and step.text == before:
                return "repetition"
        return "length"

    def _step(self, written: Written, role: Role) -> Step:
        last = THINK_END in written.text or any(mark in written.text for mark in ANSWER_MARKS)
        if THINK_END in written.text:
            written = Written(written.text.partition(THINK_END)[0] + THINK_END, written.tokens)
        return written.step(role, last=last)

    async def _write(self, role: Role) -> Written:
        """Write the next step, up to a blank line."""
        client, messages = self.clients[role], self._problem()
        more: dict[str, Any] = {}
        if self.chain.steps:
            messages.append({"role": "assistant", "content": OPENED + self.chain.text})
            more = {"add_generation_prompt": False, "continue_final_message": True}
        with self._meter(role, "write") as meter:
            reply = await client.chat.completions.create(
                model=await self._model(client),
                messages=messages,
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                max_tokens=STEP_TOKENS,
                stop=[DELIMITER],
                extra_body={**more, **CACHE.get(), "skip_special_tokens": False},
            )
            return _read(meter, reply.choices[0].message.content, reply.usage)

    async def _score(self, draft: Step) -> int:
        """Return the digit that the large model grades *draft* with; 0 if it writes no digit."""
        client = self.clients["large"]
        with self._meter("large", "ask") as meter:
            reply = await client.completions.create(
                model=await self._model(client),
                prompt=self.prefix + self.chain.text + draft.text + self.template.ask(GRADE.text, GRADE.opening),
                temperature=0.0,
                max_tokens=1,
                logprobs=TOP_LOGPROBS,
                extra_body=dict(CACHE.get()),
            )
            text = _read(meter, reply.choices[0].text, reply.usage).text.strip()
        return int(text) if text in DIGITS and text else 0

    async def answer(self) -> Step:
        """Let the large model answer after its thinking; a chain that marks its answer has one already."""
        last = self.chain.steps[-1].text if self.chain.steps else ""
        if any(mark in last for mark in ANSWER_MARKS):
            return Step(last, self.chain.steps[-1].author, "end")
        client = self.clients["large"]
        closed = "" if THINK_END in last else f"\n{THINK_END}"
        with self._meter("large", "write") as meter:
            reply = await client.completions.create(
                model=await self._model(client),
                prompt=self.prefix + self.chain.text + closed,
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                max_tokens=ANSWER_TOKENS,
                extra_body={**CACHE.get(), "skip_special_tokens": False},
            )
            written = _read(meter, reply.choices[0].text, reply.usage)
        return written.step("large", last=True)

    async def _model(self, client: AsyncOpenAI) -> str:
        """Fetch the name of the served model, before every request."""
        return (await client.models.list()).data[0].id

    def _problem(self) -> list[Any]:
        return [{"role": message.role, "content": message.content} for message in self.chain.messages]

    def _meter(self, role: Role, verb: Verb) -> RequestMeter:
        return RequestMeter(role, verb, self.observe, self.clock)


def _read(meter: RequestMeter, text: str | None, usage: CompletionUsage | None) -> Written:
    tokens = usage.completion_tokens if usage else 0
    meter.add(tokens, usage.prompt_tokens if usage else 0)
    return Written(text or "", tokens)
