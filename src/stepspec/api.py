"""The public interface: solve problems with two served models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import orjson

from . import policies
from . import settings as configuration
from .learning import Learning, Learnings
from .models import Models, connected
from .orchestrator import trace
from .orchestrator.budget import Budget
from .orchestrator.chain import Accept, Chain, Message, Party, Role, Step, Verdict
from .orchestrator.endpoints import CriticEndpoint, Endpoint, ReplicatedModel, Sampling, VllmCritic
from .orchestrator.endpoints.queue import polled
from .orchestrator.endpoints.room import fitted
from .orchestrator.endpoints.wire import Format
from .orchestrator.errors import ConfigurationError, MalformedReply
from .orchestrator.events import Committed, Event, Observer, Started
from .orchestrator.floor import Floor
from .orchestrator.hooks import AnyOf, GiveUp, TrialAnswer, Watch
from .orchestrator.interfaces import Policy
from .orchestrator.load import Load
from .orchestrator.lookahead import Ahead, confidence
from .orchestrator.nesting import NestedPair, described
from .orchestrator.run import run
from .orchestrator.shadow import Check, Shadows
from .orchestrator.solution import Solution
from .orchestrator.tasks import all_entered
from .promise import Promise
from .settings import Adapting, Limits, Settings
from .stream import Stream


class Solver:
    """
    Keeps connections to both models and solves many problems, at the same time if asked to.

    Settings that are not given come from ``STEPSPEC_*`` variables and the TOML file (see `stepspec.settings`)::

        async with Solver(small="http://localhost:8001/v1", large="http://localhost:8002/v1") as solver:
            solutions = await asyncio.gather(*map(solver.solve, problems))

    Raise `ConfigurationError` for wrong settings, and on entering an `EndpointError` for a server that cannot be used.
    """

    def __init__(
        self,
        small: str | Endpoint | NestedPair | Mapping[str, Any] | None = None,
        large: str | Endpoint | None = None,
        *,
        critic: str | CriticEndpoint | None = None,
        policy: str | None = None,
        options: Mapping[str, Any] | None = None,
        ahead: int | None = None,
        hedge: float | None = None,
        load: Adapting | None = None,
        lead: int | None = None,
        plan: bool | None = None,
        early_exit: bool | None = None,
        give_up: bool | None = None,
        shadow: float | None = None,
        sure_bets: bool | None = None,
        adapt: float | None = None,
        sampling: Sampling | Mapping[str, Any] | None = None,
        budget: Limits | Mapping[str, Any] | None = None,
    ) -> None:
        settings = configuration.load(
            small=small,
            large=large,
            critic=critic,
            policy=policy,
            options=options,
            ahead=ahead,
            hedge=hedge,
            load=load,
            lead=lead,
            plan=plan,
            early_exit=early_exit,
            give_up=give_up,
            shadow=shadow,
            sure_bets=sure_bets,
            adapt=adapt,
            sampling=sampling,
            budget=budget,
        )
        self._take(settings)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Make a solver with *settings* that are complete: neither variables nor a file are read."""
        solver = cls.__new__(cls)
        solver._take(settings)
        return solver

    def _take(self, settings: Settings) -> None:
        self.settings = settings
        self._exit = AsyncExitStack()
        self.small, self.large = connected(self._endpoint("small")), connected(self._endpoint("large"))
        self.critic = VllmCritic(self.settings.critic) if self.settings.critic else None
        self.load = Load()
        self.promise = Promise(self.settings.calibration) if self.settings.calibration else None
        self.shadows = Shadows(self.settings.shadow)
        self.floor = Floor(confidence)
        self._learnings = Learnings(self.settings)

    def _endpoint(self, role: Role) -> Endpoint | NestedPair:
        endpoint = self.settings.small if role == "small" else self.settings.large
        if endpoint is None:
            raise ConfigurationError(
                f"no {role} model: pass {role}='http://HOST:PORT/v1', set STEPSPEC_{role.upper()}, "
                f"or write a [{role}] table with its url into {configuration.DEFAULT_FILE}"
            )
        return endpoint

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await all_entered(stack, (self.small, self.large, *((self.critic,) if self.critic else ())))
            stack.push_async_callback(self.shadows.close)
            self.policy()  # Wrong names and options fail here, before any problem.
            if self.settings.load == "adapt":
                await stack.enter_async_context(polled(self.large, self.load.queue))
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    def policy(
        self,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        budget: Budget | None = None,
        sampling: Sampling | None = None,
        observe: Observer = lambda event: None,
        lead: int | None = None,
        plan: bool | None = None,
    ) -> Policy:
        """Build a policy over both models, for one run that begins now; what is not given comes from the settings."""
        return self._policy(self._models(budget, sampling, observe, trace.Stopwatch()), name, options, lead, plan)

    def _models(
        self,
        budget: Budget | None,
        sampling: Sampling | None,
        observe: Observer,
        clock: Callable[[], float],
        format: Format | None = None,
    ) -> Models:
        sampling = sampling or self.settings.sampling
        small, large = (endpoint.model(sampling, observe=observe, clock=clock) for endpoint in (self.small, self.large))
        formatting = self.large.model(sampling, observe=observe, clock=clock, format=format) if format else None
        critic = self.critic.critic(observe=observe, clock=clock) if self.critic else None
        return Models(small, large, critic, budget or self.settings.budget.budget(), formatting)

    def _policy(
        self,
        models: Models,
        name: str | None,
        options: Mapping[str, Any] | None,
        lead: int | None = None,
        plan: bool | None = None,
    ) -> Policy:
        name = name or self.settings.policy
        if options is None:
            options = self.settings.options if name == self.settings.policy else {}
        return models.policy(
            name,
            options,
            lead=self.settings.lead if lead is None else lead,
            plan=self.settings.plan if plan is None else plan,
        )

    async def solve(
        self,
        problem: str | Sequence[Message],
        *,
        policy: str | None = None,
        options: Mapping[str, Any] | None = None,
        ahead: int | None = None,
        hedge: float | None = None,
        load: Adapting | None = None,
        lead: int | None = None,
        plan: bool | None = None,
        early_exit: bool | None = None,
        give_up: bool | None = None,
        sure_bets: bool | None = None,
        adapt: float | None = None,
        sampling: Sampling | None = None,
        budget: Budget | None = None,
        stop: Sequence[str] = (),
        format: Format | None = None,
        observe: Observer = lambda event: None,
        trace_to: Path | None = None,
    ) -> Solution:
        """
        Solve one *problem*: a text, or a conversation whose last turn poses it.

        The answer ends before the first of the *stop* strings. With a *format*, "json" or a JSON schema, the large
        model writes it so; raise `MalformedReply` if its server does not see to that. What is not given comes from the
        settings. *observe* sees every event as it happens; *trace_to* receives the
        trace, also of a run that fails. If the small model fails for good, the large one goes on alone, and the
        solution says so; raise an `EndpointError` if the large one does.
        """
        name, chain = policy or self.settings.policy, Chain.of(problem)
        if format is not None and not self.thinks:
            raise ConfigurationError("a format needs models that think in a block of its own before they answer")
        budget = await fitted(budget or self.settings.budget.budget(), chain, (self.small, self.large))
        promise = self.promise if self.promise and self.promise.covers(self.settings, name, options) else None
        clock = trace.Stopwatch()
        recorder = trace.Recorder(clock)
        committed = chain
        sure = self.settings.sure_bets if sure_bets is None else sure_bets
        learning = self._learnings.of(name, options, ahead=ahead, limit=adapt)

        def watch(event: Event) -> None:
            nonlocal committed
            recorder(event)
            if isinstance(event, Committed):
                if event.step.author == "small":
                    check = self._checking(learning, event.score)
                    self.shadows.consider(committed, event.step, check, calm=self.load.calm)
                committed = committed.extend(event.step)
            self.load.observe(event)
            if sure:
                self.floor.observe(event)
            if promise is not None:
                promise(event)
            observe(event)

        models = self._models(budget, sampling, watch, clock, format)
        watch(Started(chain.messages, name, self._names()))
        if learning is not None:
            given = learning.begin()
            options, ahead = learning.options(given), given.ahead
            watch(given)
        try:
            outcome = await run(
                self._policy(models, name, options, lead, plan),
                chain,
                budget=budget,
                ahead=self._ahead(ahead, hedge, load, sure=sure),
                observe=watch,
                fallback=models.policy("large", {}) if name != "small" else None,
                thinks=self.thinks,
                watch=self._watch(models, budget, early_exit, give_up),
                answerer=models.answerer,
                stop=stop,
            )
            if format is not None and outcome.reason == "stop":
                self._check_json(outcome.text)
        finally:
            models.leave()
            if trace_to is not None:
                trace.write(trace_to, recorder.moments)
            if learning is not None:
                learning.learn(recorder.moments)
            if promise is not None:
                promise.warn_of_drift()
        return Solution.of(outcome, recorder.moments)

    async def _shadow(self, chain: Chain, step: Step) -> Verdict:
        """Whether the large model would go on from *chain* as *step* does."""
        large = self.large.model(self.settings.sampling, observe=self.shadows.observe)
        try:
            return await policies.LookaheadReasoning(large, large).verify(chain, step)
        finally:
            if isinstance(large, ReplicatedModel):
                large.leave()

    def _checking(self, learning: Learning | None, grade: float | None) -> Check:
        """What shadows check a step of that *grade* with, so that *learning* hears of what they find."""
        if learning is None or grade is None:
            return self._shadow

        async def check(chain: Chain, step: Step) -> Verdict:
            verdict = await self._shadow(chain, step)
            learning.adaptation.checked(grade, agreed=isinstance(verdict, Accept))
            return verdict

        return check

    @property
    def adaptation(self) -> Learning | None:
        """What is learnt about the settings' own policy; None if nothing is to be adapted."""
        return self._learnings.of(self.settings.policy, None)

    def _check_json(self, text: str) -> None:
        """Raise `MalformedReply` if *text* is no JSON: some servers accept a format and ignore it."""
        try:
            orjson.loads(text)
        except ValueError as exc:
            raise MalformedReply(
                f"it was asked for JSON and wrote {text[:80]!r}: serve it with structured outputs enabled",
                role="large",
                url=self.large.settings.url,
                verb="write",
            ) from exc

    @property
    def thinks(self) -> bool:
        """Whether the models reason in a block of its own before they answer; known once entered."""
        return self.large.template.thinks

    def _watch(self, models: Models, budget: Budget, early_exit: bool | None, give_up: bool | None) -> Watch | None:
        watches: list[Watch] = []
        if self.settings.early_exit if early_exit is None else early_exit:
            watches.append(TrialAnswer(models.large))
        if self.settings.give_up if give_up is None else give_up:
            watches.append(GiveUp(budget.tokens - budget.for_answer))
        return AnyOf(tuple(watches)) if watches and self.thinks else None

    def _names(self) -> tuple[tuple[Party, str], ...]:
        models: tuple[tuple[Party, str], ...] = (("small", described(self.small)), ("large", self.large.name))
        return (*models, ("critic", self.critic.name)) if self.critic else models

    def _ahead(self, ahead: int | None, hedge: float | None, load: Adapting | None, *, sure: bool = False) -> Ahead:
        depth = self.settings.ahead if ahead is None else ahead
        hedge = self.settings.hedge if hedge is None else hedge
        carries = self.floor.carries if sure else _always
        if (load or self.settings.load) == "ignore":
            return Ahead(lambda: depth, hedge, carries=carries)
        return Ahead(lambda: self.load.depth(depth), hedge, lambda: self.load.calm, carries)

    @asynccontextmanager
    async def stream(self, problem: str | Sequence[Message], **choices: Any) -> AsyncGenerator[Stream]:
        """
        Solve one problem while its events are iterated over; *choices* are those of `solve`.

        ::

            async with solver.stream(problem) as events:
                async for event in events: ...
            print(events.solution.answer)

        Leaving the block early cancels the run and every request of it.
        """
        stream = Stream()
        solving = asyncio.create_task(self.solve(problem, observe=stream.put, **choices))
        solving.add_done_callback(stream.end)
        try:
            yield stream
        finally:
            solving.cancel()
            await asyncio.wait([solving])


async def asolve(problem: str | Sequence[Message], **settings: Any) -> Solution:
    """Solve one *problem*; *settings* are those of `Solver`. For more than one, keep a `Solver`."""
    async with Solver(**settings) as solver:
        return await solver.solve(problem)


def solve(problem: str | Sequence[Message], **settings: Any) -> Solution:
    """
    Solve one *problem* and wait for it; *settings* are those of `Solver`.

    ::

        solve("What is 6 x 7?", small="http://localhost:8001/v1", large="http://localhost:8002/v1").answer
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asolve(problem, **settings))
    raise ConfigurationError("solve() cannot wait inside a running event loop: use `await asolve(...)` there")


def _always(draft: Step) -> bool:
    return True
