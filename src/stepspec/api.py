"""The public interface: solve problems with two served models."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from stepspec.orchestrator import trace
from stepspec.orchestrator.answer import require_json
from stepspec.orchestrator.auto import Auto, AutoRun
from stepspec.orchestrator.budget import Budget, Budgeted
from stepspec.orchestrator.calibration import RunConditions
from stepspec.orchestrator.chain import Chain, Message, Party, Role, Toolset
from stepspec.orchestrator.concurrency import all_entered, at_once, background
from stepspec.orchestrator.endpoints import (
    CriticEndpoint,
    Endpoint,
    ModelEndpoint,
    ReplicatedEndpoint,
    ReplicatedModel,
    RewardModelEndpoint,
    Sampling,
    connect,
)
from stepspec.orchestrator.endpoints.client import carrying
from stepspec.orchestrator.endpoints.interfaces import ServerParser
from stepspec.orchestrator.endpoints.polling import AcceptanceMonitor, poll_queue
from stepspec.orchestrator.endpoints.vllm_protocol import Format
from stepspec.orchestrator.errors import ConfigurationError, ContextTooLong, EndpointError, EndpointUnavailable
from stepspec.orchestrator.events import Event, Observer, Stage, Started
from stepspec.orchestrator.interfaces import (
    AnsweredBy,
    AnswerParser,
    Critic,
    EndedBy,
    Model,
    Policy,
    PolicyFactory,
    answered_by,
    ended_by,
)
from stepspec.orchestrator.lookahead import LookaheadControl, SureBets
from stepspec.orchestrator.nesting import (
    Nested,
    NestedEndpoint,
    NestedPair,
    described,
    leaves,
    named,
    require_agreement,
    servers,
)
from stepspec.orchestrator.nesting.settings import Nesting
from stepspec.orchestrator.run import run as run_policy
from stepspec.orchestrator.run_options import Limits, RunOptions, RunOverrides
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.step_ends import StepEnds
from stepspec.orchestrator.verifiers import VERIFIERS, AnswerCheck, ConnectedVerifier, FunctionVerifier, LargeJudge

from . import policies, prompts
from . import settings as configuration
from .settings import Settings, SettingsOverrides, Small

log = logging.getLogger(__name__)

JUDGING_ROOM = 192  # tokens of context that a judge's question may take after the chain
OUTAGE_SECONDS = 1800.0  # that work of hours waits for a model that went down, before it ends
LEAST_ROOM = 32  # tokens to think and answer in, without which a run is not worth starting
STEP_QUESTION, ANSWER_QUESTION = prompts.load("check"), prompts.load("verifier.answer")
REJECTED = prompts.load("verifier.rejected"), prompts.load("verifier.rejected-because")


class StreamArguments(RunOverrides, total=False):
    """The arguments of `Solver.stream`: those of `Solver.solve` but for the observer; a test compares both."""

    run: RunOptions | None
    sampling: Sampling | None
    seed: int | None
    budget: Budget | None
    stop: Sequence[str]
    format: Format | None
    tools: Toolset | None
    clock: trace.Stopwatch | None
    trace_to: Path | None
    session: str | None


class EventStream:
    """The events of one run, to iterate over as they happen; afterwards its solution."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._solving: asyncio.Task[Solution] | None = None
        self.put = self._events.put_nowait

    def end(self, solving: asyncio.Task[Solution]) -> None:
        self._solving = solving
        if not solving.cancelled():
            solving.exception()  # Raised where it is asked for: by the iteration, or by `solution`.
        self._events.put_nowait(None)

    @property
    def solution(self) -> Solution:
        """The solution. Raise what the run raised, and `RuntimeError` if the run goes on, or was cancelled."""
        if self._solving is None:
            raise RuntimeError("the run is not over: iterate over its events first")
        if self._solving.cancelled():
            raise RuntimeError("the run was cancelled, because its block was left before it was over")
        return self._solving.result()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event
        self.solution  # noqa: B018  # a failed run raises here


@dataclass(frozen=True, slots=True)
class Models:
    """
    Both models of one run within its *budget*, and what rates its steps, the *critic*, if there is one.

    *formatting* is the large model when it answers in a format; *sampled* says whether the models sample. With *tools*,
    the large model answers. *check* is what judges the answer, if anything does. Models that have replicas hold a place
    until `leave`.
    """

    small: Model
    large: Model
    critic: Critic | None
    budget: Budget
    formatting: Model | None = None
    sampled: bool = False
    tools: bool = False
    check: AnswerCheck | None = None

    def policy(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        lead: int = 0,
        ending: EndedBy | None = None,
        stop_loops: bool | None = None,
    ) -> Policy:
        """
        Build policy *name*; whatever it is, but for the baselines, the large model may *lead*.

        *ending* says who ends the thinking; None: as in the policy's paper. *stop_loops* is that of `RunOptions`.
        """
        if stop_loops is not None:
            return policies.Guarded(self.policy(name, options, lead=lead, ending=ending), stop_loops)
        small, large = (_budgeted(model, self.budget) for model in (self.small, self.large))
        policy = policies.make(name, small, large, critic=self.critic, sampled=self.sampled, **options)
        if name in policies.BASELINES:
            return policy
        by = ending or ended_by(policy)
        if by != "small":
            policy = policies.Ending(policy, large, by)
        return policies.Led(policy, large, lead) if lead else policy

    def answerer(self, name: str, answer: AnsweredBy | None) -> Model | None:
        """
        The one model that answers, so that policy *name* does not go on through the answer; None if it does.

        *answer* says who; None: as in the policy's paper. A format and tools are the large model's; a baseline's model
        is alone.
        """
        if self.formatting is not None:
            return Budgeted(self.formatting, self.budget.left)
        paper = answered_by(policies.METHODS.find(name).source)
        by = name if name in policies.BASELINES else "large" if self.tools else answer or paper
        return None if by == "method" else _budgeted(self.small if by == "small" else self.large, self.budget)

    def leave(self) -> None:
        for model in (self.small, self.large, self.formatting):
            if isinstance(model, ReplicatedModel | Nested):
                model.leave()


@dataclass(frozen=True, slots=True)
class _Answering:
    """How an answer is written: in a *format*, by which model, and by what *parser* its calls of tools are found."""

    format: Format | None = None
    parser: Callable[[], AnswerParser] | None = None
    by: Role = "large"


class Solver:
    """
    Keeps connections to both models and solves many problems, at the same time if asked to.

    Made of complete `Settings`, or as `load` does of both models and other settings as keyword arguments::

        async with Solver(small="http://localhost:8001/v1", large="http://localhost:8002/v1") as solver:
            solutions = await asyncio.gather(*map(solver.solve, problems))

    Raise `ConfigurationError` for wrong settings, and on entering an `EndpointError` for a server that cannot be used.
    """

    def __init__(
        self,
        small: Settings | Small | None = None,
        large: str | Endpoint | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        if not isinstance(small, Settings):
            arguments: dict[str, Any] = {"small": small, "large": large, **overrides}
            small = configuration.load(**arguments)
            try:
                check_policies(small)
            except ConfigurationError as exc:
                raise configuration.named(exc, small, arguments) from exc
        elif large is not None or overrides:
            raise TypeError("settings are complete: use settings.with_overrides(...), or leave them out")
        self.settings = settings = small
        self.prompts = settings.prompts
        self._exit = AsyncExitStack()
        check_policies(settings)
        self.small = connected(self._endpoint("small"), optional=settings.policy != "small")
        self.large = connected(self._endpoint("large"))
        self.critic = _connected_critic(settings)
        self.auto = Auto()
        self.sure_bets = SureBets()
        self.acceptance = AcceptanceMonitor(lambda: (*servers(self.small), *servers(self.large)))

    @classmethod
    def load(
        cls, small: Small | None = None, large: str | Endpoint | None = None, **overrides: Unpack[SettingsOverrides]
    ) -> Self:
        """
        Make a solver of settings that are loaded: *overrides* first, then variables, the TOML file, and the defaults.

        See `stepspec.settings`. ``Solver(small, large, ...)`` does the same.
        """
        return cls(small, large, **overrides)

    def _endpoint(self, role: Role) -> Endpoint | NestedPair:
        endpoint = self.settings.small if role == "small" else self.settings.large
        if endpoint is None:
            raise configuration.without_models(self.settings)
        return endpoint

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await all_entered(stack, (self.small, self.large, *((self.critic,) if self.critic else ())))
            require_agreement(self.small, self.large, lambda small, large: f"{small} and {large} cannot be a pair")
            for url, cause in self.down.items():
                log.warning("%s is down, going on without it until it works: %s", url, cause)
            if self.settings.calibration:
                self.settings.calibration.warn_of_differences(self.conditions(self.settings.run))
            await stack.enter_async_context(poll_queue(self.large, self.auto.queue))
            await stack.enter_async_context(self.acceptance.polling())
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    @property
    def down(self) -> Mapping[str, str]:
        """The URL and the cause of every server that failed and has passed no probe since."""
        each = [endpoint for model in (self.small, self.large) for endpoint in leaves(model)]
        return {url: why for one in each if isinstance(one, ReplicatedEndpoint) for url, why in one.down.items()}

    def require_both(self) -> None:
        """
        Raise `EndpointUnavailable` if the small model is down, for work that means nothing with the large alone.

        From now on a run waits up to `OUTAGE_SECONDS` for a model that goes down, instead of going on without it.
        """
        if not self.small.usable:
            causes = "; ".join(f"{url}: {cause}" for url, cause in self.down.items())
            raise EndpointUnavailable(causes, role="small", url=self.small.settings.url)
        for leaf in (leaf for model in (self.small, self.large) for leaf in leaves(model)):
            if isinstance(leaf, ReplicatedEndpoint):
                leaf.patience = OUTAGE_SECONDS

    async def warm_up(self) -> None:
        """Let every server do what it does only once, such as compiling, so that no run waits for it."""
        endpoints = [server for model in (self.small, self.large) for _, server in servers(model)]
        await at_once(endpoint.warm_up() for endpoint in endpoints)

    def policy(
        self,
        name: str | PolicyFactory | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        budget: Budget | None = None,
        observe: Observer = lambda event: None,
    ) -> Policy:
        """Build a policy over both models, for one run that begins now; what is None comes from the settings."""
        named = policies.named(name) if name else None
        run = self.settings.run.with_overrides({"policy": named, "options": options})
        budget, sampling = budget or run.budget.budget(), run.sampling.seeded()
        return self._policy(self._models(budget, sampling, observe, trace.Stopwatch()), run)

    def resolve(
        self,
        run: RunOptions | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> RunOptions:
        """
        Return *run*, by default that of the settings, with the other arguments, which are validated here.

        Those that are None change nothing. Raise `ConfigurationError` for a wrong value, and if the policy does not
        take the options.
        """
        before = run or self.settings.run
        named: Any = configuration.by_name(overrides)
        resolved = before.with_overrides(named) if named else before
        if (resolved.policy, resolved.options) != (before.policy, before.options):
            policies.check(resolved.policy, resolved.options, has_critic=self.settings.rates_steps)
        values = {
            "sampling": (sampling or before.sampling).with_seed(seed),
            "budget": before.budget if budget is None else Limits.of(budget),
        }
        return resolved.model_copy(update=values)

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
        """
        Solve one *problem*: a text, or a conversation whose last turn poses it.

        A *run* is used as it is: `resolve` makes one; by default it is that of the settings. *sampling*, *seed*,
        *budget* and *overrides* change it; those that are None change nothing.

        The answer ends before the first of the *stop* strings. With a *format*, "json" or a JSON schema, the large
        model writes it so; raise `MalformedReply` if its server does not see to that. With *tools*, both models read
        about them, and the answer, which is the large model's, may call them: the solution's `calls`. Raise
        `MissingCapability` if its server has no parser for calls.

        *seed* is that of the *sampling*. Without one, each run draws its own, which the solution tells. With the same
        seed a run writes the same chain, however far it works ahead and whatever else the servers do, as far as these
        give equal requests equal tokens.

        *observe* sees every event as it happens. The times in events and trace are from *clock*, which no other run has
        used; by default it is a new one. *trace_to* receives the trace, also of a run that fails; if that file cannot
        be written, a warning is logged. *session* is the value of the session header, whose runs use the same replica
        of each model while it is up; if it is None, the run makes its own, and uses the replicas with the fewest runs.
        If the small model fails for good, the large one goes on alone, and the solution says so; raise an
        `EndpointError` if the large one does, and `ConfigurationError` for what is wrong.
        """
        run = self.resolve(run, sampling=sampling, seed=seed, budget=budget, **overrides)
        if format is not None and not self.thinks:
            raise ConfigurationError("a format needs models that think in a block of its own before they answer")
        chain = Chain.of(problem, StepEnds.of(run.delimiter), system=run.system, tools=tools.tools if tools else ())
        answering = await self._tool_answer(tools, run, format)
        room, lost = await context_room(chain, self.small, self.large, needs_small=run.policy == "small")
        chain = replace(chain, thinks=await self.large.thinks(chain.messages, chain.tools))
        limits = run.budget.budget().fit(room)
        seeded = run.sampling.seeded()
        recorder = trace.Recorder(clock := clock or trace.Stopwatch())
        observers: list[Observer] = [
            recorder,
            *([self.sure_bets.observe] if run.sure_bets else []),
            lambda event: auto.read(recorder.moments[-1]),
            observe,
        ]

        def watch(event: Event) -> None:
            for observer in observers:
                observer(event)

        models = self._models(limits, seeded, watch, clock, answering)
        auto = self._auto(models, run)
        names, known = (*named(self.small), *self._names()[1:]), seeded.seed if seeded.repeats else None
        threshold = policies.threshold(run.policy, run.options)
        watch(Started(chain.messages, run.policy, names, known, threshold, chain.tools, chain.thinks))
        try:
            with carrying(self._session(session), run.priority, session or ""), prompts.replacing(self.prompts):
                outcome = await run_policy(
                    self._policy(models, run),
                    chain,
                    budget=limits,
                    ahead=replace(self._ahead(run), auto=auto if auto.aside else None),
                    observe=watch,
                    fallback=models.policy("large", {}) if run.policy != "small" else None,
                    answerer=(answerer := models.answerer(run.policy, run.answer)),
                    stop=stop,
                    by_method=answerer is None,
                    lost=lost if run.policy not in policies.BASELINES else None,
                    parser=answering.parser,
                    check=models.check,
                )
            if format is not None and outcome.reason == "stop":
                require_json(outcome.text, self.large.settings.url)
        finally:
            models.leave()
            if trace_to is not None:
                _write_trace(trace_to, recorder.moments)
        return Solution.of(outcome, recorder.moments)

    def _session(self, value: str | None) -> Mapping[str, str]:
        """The header that keeps the requests of one run together."""
        name = self.settings.session_header
        return {name: value or uuid.uuid4().hex} if name else {}

    def _models(
        self,
        budget: Budget,
        sampling: Sampling,
        observe: Observer,
        clock: Callable[[], float],
        answering: _Answering | None = None,
    ) -> Models:
        small, large = (endpoint.model(sampling, observe=observe, clock=clock) for endpoint in (self.small, self.large))
        formatting, answering = None, answering or _Answering()
        if answering.format is not None:
            author = self.small if answering.by == "small" else self.large
            formatting = author.model(sampling, observe=observe, clock=clock, format=answering.format)
        tools = answering.parser is not None
        critic: Critic | None = None
        check = None
        match self.critic:
            case RewardModelEndpoint():
                critic = self.critic.critic(observe=observe, clock=clock)
            case ConnectedVerifier(settings=settings):
                verifier = self.critic.verifier(instead=_instead(large), observe=observe, clock=clock)
                critic = verifier if settings.rates("step") else None
                if settings.rates("answer"):
                    rewriting = large if tools or formatting is None else formatting
                    check = AnswerCheck(verifier, rewriting, rejected, settings.repairs)
            case None:
                pass
        return Models(small, large, critic, budget, formatting, sampling.temperature > 0, tools, check)

    async def _tool_answer(self, tools: Toolset | None, run: RunOptions, format: Format | None) -> _Answering:
        """How the answer of *run* is written. Raise `ConfigurationError` for what cannot be, `MissingCapability`."""
        if tools is None or not tools.callable:
            return _Answering(format)
        if format is not None:
            raise ConfigurationError("an answer has either a format or tools to call: leave out one of them")
        by: Role = "small" if run.policy == "small" else "large"
        author = self.small if by == "small" else self.large
        return _Answering(await author.tool_format(tools), lambda: ServerParser(author, tools), by)

    def _policy(self, models: Models, options: RunOptions) -> Policy:
        lead, ending, stop_loops = options.lead, options.ending, options.stop_loops
        return models.policy(options.policy, options.options, lead=lead, ending=ending, stop_loops=stop_loops)

    def _auto(self, models: Models, options: RunOptions) -> AutoRun:
        """What reads the events of one run; it decides about the run if that is wanted, and there is a choice."""
        choosing = options.auto and options.policy not in policies.BASELINES
        aside = models.policy("large", {}) if choosing else None
        return self.auto.run(options.policy, options.options, options.ahead, aside)

    def _ahead(self, options: RunOptions) -> LookaheadControl:
        return LookaheadControl(options.ahead, options.hedge, self.sure_bets if options.sure_bets else None)

    @property
    def thinks(self) -> bool:
        """
        Whether the reasoning stands in a block of its own before the answer; known once entered.

        It does if the large model thinks. A small one that does not may draft for it.
        """
        return self.large.template.thinks

    def conditions(self, run: RunOptions) -> RunConditions:
        """What a calibration compares of *run*; known once entered."""
        with prompts.replacing(self.prompts):
            return RunConditions(run.policy, self.models, configuration.conditions(run))

    @property
    def models(self) -> Mapping[str, str]:
        """What the models call themselves, by role; known once entered."""
        return dict(self._names())

    def _names(self) -> tuple[tuple[Party, str], ...]:
        models: tuple[tuple[Party, str], ...] = (("small", described(self.small)), ("large", self.large.name))
        return (*models, ("critic", self.critic.name)) if self.critic else models

    @asynccontextmanager
    async def stream(
        self, problem: str | Sequence[Message], **arguments: Unpack[StreamArguments]
    ) -> AsyncGenerator[EventStream]:
        """
        Solve one problem while its events are iterated over; the *arguments* are those of `solve`.

        ::

            async with solver.stream(problem) as events:
                async for event in events: ...
            print(events.solution.answer)

        Leaving the block early cancels the run and every request of it.
        """
        stream = EventStream()
        async with background(self.solve(problem, observe=stream.put, **arguments)) as (solving,):
            solving.add_done_callback(stream.end)
            yield stream


async def asolve(
    problem: str | Sequence[Message],
    small: Small | None = None,
    large: str | Endpoint | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> Solution:
    """Solve one *problem*; *overrides* are the settings that `Solver` takes. For more than one, keep a `Solver`."""
    async with Solver(small, large, **overrides) as solver:
        return await solver.solve(problem)


def solve(
    problem: str | Sequence[Message],
    small: Small | None = None,
    large: str | Endpoint | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> Solution:
    """
    Solve one *problem* and wait for it; *overrides* are the settings that `Solver` takes.

    ::

        solve("What is 6 x 7?", small="http://localhost:8001/v1", large="http://localhost:8002/v1").answer
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asolve(problem, small, large, **overrides))
    raise ConfigurationError("solve() cannot wait inside a running event loop: use `await asolve(...)` there")


async def context_room(
    chain: Chain, small: ModelEndpoint, large: ModelEndpoint, *, needs_small: bool = False
) -> tuple[int, EndpointError | None]:
    """
    Count the tokens that both contexts hold beyond the problem and a judge's question.

    If the small model cannot be used, or takes too little, the room is that of the large one, and the failure is
    returned, or raised if the run *needs_small*. Raise `ContextTooLong` if the room is too little to start a run, and
    an `EndpointError` if the large model's server cannot count.
    """

    async def of_small() -> int | EndpointError:
        try:
            return await _context_room(small, chain)
        except EndpointError as exc:
            if needs_small:
                raise
            return exc

    ours, theirs = await at_once((of_small(), _context_room(large, chain)))
    assert isinstance(theirs, int)
    return (theirs, ours) if isinstance(ours, EndpointError) else (min(ours, theirs), None)


async def _context_room(endpoint: ModelEndpoint, chain: Chain) -> int:
    prompt = await endpoint.count(chain.messages, chain.tools)
    room = endpoint.room - prompt - JUDGING_ROOM
    if room < LEAST_ROOM:
        raise ContextTooLong(
            f"the problem has {prompt} tokens, which leaves no room to think in a context of "
            f"{endpoint.room}; shorten it, or serve the model with a longer --max-model-len",
            role=endpoint.role,
            url=endpoint.settings.url,
        )
    return room


def _write_trace(path: Path, moments: Sequence[trace.Moment]) -> None:
    """Write a trace; a failure is logged, since it must not cost the solution that the run has found."""
    try:
        trace.write(path, moments)
    except OSError as exc:
        log.warning("the trace is not written to %s: %s", path, exc.strerror)


def check_policies(settings: Settings) -> None:
    """Raise `ConfigurationError` if the policy of *settings* cannot be, or that of a pair within, or a verifier."""
    policies.check(settings.policy, settings.options, has_critic=settings.rates_steps)
    if isinstance(settings.critic, FunctionVerifier):
        VERIFIERS.find(settings.critic.function)
    if isinstance(settings.small, NestedPair):
        check_nested_policies(settings.small.nested)


def check_nested_policies(pairs: Mapping[str, Nesting]) -> None:
    """Raise `ConfigurationError` if the policy of one of the nested *pairs*, which are given by paths, cannot be."""
    for path, pair in pairs.items():
        try:
            policies.check(pair.policy, pair.options, has_critic=None)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{path}: {exc}") from exc


def _connected_critic(settings: Settings) -> RewardModelEndpoint | ConnectedVerifier | None:
    if settings.critic is None:
        return None
    if isinstance(settings.critic, CriticEndpoint):
        return RewardModelEndpoint(settings.critic)
    return ConnectedVerifier(settings.critic)


def _instead(large: Model) -> LargeJudge:
    """What judges in place of a verifier that fails."""

    def ask(stage: Stage) -> tuple[str, str]:
        prompt = STEP_QUESTION if stage == "step" else ANSWER_QUESTION
        return prompt.text, prompt.opening

    return LargeJudge(large, ask)


def rejected(reason: str) -> str:
    """Write what follows a rejected answer, so that the large model goes on with a better one."""
    unknown, known = REJECTED
    text = known.fill(reason=reason) if reason else unknown.text
    return f"\n\n{text}\n\n"


def connected(settings: Endpoint | NestedPair, table: str = "", *, optional: bool = False) -> ModelEndpoint:
    """
    Make the endpoint of one model or of a nested pair, to be entered; *table* is its table of the settings.

    An *optional* one may be entered while it is down, and so may the small model of a pair.
    """
    table = table or settings.role
    if isinstance(settings, Endpoint):
        return connect(settings, table, optional=optional)
    return NestedEndpoint(
        settings.role,
        connected(settings.small, f"{table}.small", optional=True),
        connect(settings.large, f"{table}.large", optional=optional),
        partial(policies.make, settings.policy, **settings.options),
        about=settings.policy,
        ahead=settings.ahead,
    )


def _budgeted(model: Model, budget: Budget) -> Budgeted:
    return Budgeted(model.budgeted(budget.left) if isinstance(model, Nested) else model, budget.left)
