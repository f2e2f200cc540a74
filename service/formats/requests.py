"""
What a service offers, and from the body of a request to the runs that it asks for, resolved and
validated once.

The service imports no policy and no solver: the builder of a service passes in the `Offer`. The
model of a request is a method, ``auto`` (the default method), or one of the two served models, to
which the request is forwarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import CHOICES, Message, Role, Toolset
from stepspec.orchestrator.endpoints import ModelEndpoint, Sampling
from stepspec.orchestrator.endpoints.interfaces import Format
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.run_options import Limits, RunOptions
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Stopwatch

from ..errors import ApiError, bad_request
from ..settings import ServiceSettings
from .schemas import Effort, Request, StepspecOptions, Wanted

AUTO = "auto"
ROLES: tuple[Role, ...] = ("small", "large")

EFFORT: Mapping[Effort, float] = {
    "minimal": 1 / 16, "low": 1 / 4, "medium": 1 / 2, "high": 1.0, "xhigh": 1.0, "max": 1.0,
}  # fmt: skip
"""
The share of the configured tokens for thinking that a request gets; the tokens for the answer stay.
"""

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
MOST_PRIORITY = 1000  # either way, as for runs
PENALTIES = ("presence_penalty", "frequency_penalty")
NO_PENALTY = (
    "vLLM counts for it only what one request wrote, and a run makes many requests: leave it at 0"
    " and set repetition_penalty, which counts the whole chain, or send the request to the served"
    " model itself"
)


class Engine(Protocol):
    """Solves problems with two served models, many at the same time."""

    @property
    def small(self) -> ModelEndpoint: ...

    @property
    def large(self) -> ModelEndpoint: ...

    async def solve(
        self,
        problem: str | Sequence[Message],
        run: RunOptions | None = None,
        *,
        stop: Sequence[str] = (),
        format: Format | None = None,
        tools: Toolset | None = None,
        session: str | None = None,
        observe: Observer = ...,
        clock: Stopwatch | None = None,
    ) -> Solution:
        """
        Solve one *problem* with the options *run*; cancelling the call closes all its requests to
        the models.

        The runs of one *session* use the same replica of each model while it is up.

        The times in events are from *clock*.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method as clients choose it, with its default *options*."""

    description: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """
    What a service offers: the *engine*, its *methods* by name, and *defaults*, the options of a run
    that sets none.

    The policy of the *defaults* is the default method. *session_header* is the header that keeps
    the requests of one session on one server; "" if there is none. *check* raises
    `ConfigurationError`, which names the option, if the options are wrong for the method.
    """

    engine: Engine
    methods: Mapping[str, ServedMethod]
    defaults: RunOptions = field(default_factory=RunOptions)
    version: str = "0"
    session_header: str = ""
    check: Callable[[str, Mapping[str, Any]], object] = lambda method, options: options

    def configured_options(self, method: str) -> Mapping[str, Any]:
        """
        The options of *method* that the settings set: those of the default method, none of any
        other.
        """
        return self.defaults.options if method == self.defaults.policy else {}

    def default_options(self, method: str) -> Mapping[str, Any]:
        """All options of *method*, with the values for a request that sets none."""
        return {**self.methods[method].options, **self.configured_options(method)}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model by its own name: requests to it are forwarded."""

    role: Role
    name: str


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """The model names that a request can choose from."""

    offer: Offer

    @property
    def methods(self) -> tuple[str, ...]:
        return (AUTO, *self.offer.methods)

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """
        The served models by name. A name that is not unique has the role as a prefix:
        ``small:NAME``.

        A model that was never up is not among them, as its name is not known.
        """
        names: dict[Role, str] = {
            role: self.endpoint(role).name for role in ROLES if self.endpoint(role).known
        }
        taken = {*self.methods, *([names["large"]] if names.get("small") == names["large"] else [])}
        return {
            (f"{role}:{name}" if name in taken else name): ServedModel(role, name)
            for role, name in names.items()
        }

    def find(self, name: str) -> str | ServedModel:
        """
        Return the method or the served model called *name*. Raise `ApiError` if there is none.
        """
        if name == AUTO:
            return self.offer.defaults.policy
        if name in self.offer.methods:
            return name
        prefixed = {f"{model.role}:{model.name}": model for model in self.served.values()}
        model = self.served.get(name) or prefixed.get(name)
        if model is None:
            known = [*self.methods, *self.served]
            raise ApiError(
                404,
                f"there is no model {name!r}{near(name, known)}; GET /v1/models lists them",
                "model",
                "model_not_found",
            )
        return model

    def listing(self, created: int) -> list[dict[str, Any]]:
        """Return the list of models in OpenAI's shape, with the context length of each."""
        return [self.describe(name, created) for name in (*self.methods, *self.served)]

    def describe(self, name: str, created: int) -> dict[str, Any]:
        """Return one entry of the list. Raise `ApiError` if there is no model *name*."""
        model = self.find(name)
        roles: tuple[Role, ...] = (model.role,) if isinstance(model, ServedModel) else ROLES
        owner = "vllm" if isinstance(model, ServedModel) else "stepspec"
        room = min(self.endpoint(role).room for role in roles if self.endpoint(role).known)
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": owner,
            "max_model_len": room,
        }

    def endpoint(self, role: Role) -> ModelEndpoint:
        return self.offer.engine.small if role == "small" else self.offer.engine.large


@dataclass(frozen=True, slots=True)
class RunRequest:
    """
    One run that a request asks for; the fields are arguments of `Engine.solve`, and *run* has all
    options.
    """

    problem: tuple[Message, ...]
    run: RunOptions
    stop: tuple[str, ...] = ()
    format: Format | None = None
    tools: Toolset | None = None

    def within(self, seconds: float) -> RunRequest:
        """Return a copy that ends after *seconds* at the latest."""
        own = self.run.budget.seconds
        least = seconds if own is None else min(own, seconds)
        return self._with(budget=self.run.budget.model_copy(update={"seconds": least}))

    def with_seed_offset(self, offset: int) -> RunRequest:
        """Return a copy whose seed, if it has one, is larger by *offset*."""
        sampling = self.run.sampling
        return (
            self
            if sampling.seed is None
            else self._with(sampling=sampling.with_seed(sampling.seed + offset))
        )

    def _with(self, **values: Sampling | Limits) -> RunRequest:
        return replace(self, run=self.run.model_copy(update=values))


@dataclass(frozen=True, slots=True)
class Resolver:
    """
    Resolves the requests to one *method*: defaults of the *offer*, limits of the *settings*. Raises
    `ApiError`.

    With *auto*, as for the model of this name, the run may leave the method where it does not pay,
    unless the request or the settings decide otherwise, or the request has a seed: who writes then
    must not depend on the time. The priority of the run is *best_priority* or a worse one; None:
    any.
    """

    method: str
    offer: Offer
    settings: ServiceSettings
    auto: bool = False
    best_priority: int | None = None

    def runs(self, request: Request) -> tuple[RunRequest, ...]:
        """Return one run for each choice that *request* wants, each with its own seed."""
        wanted, sampling, most = request.wanted, self._sampling(request), self.settings.max_choices
        if wanted.choices > most:
            raise bad_request(f"n={wanted.choices}: at most {most} choices are allowed", "n")
        if wanted.choices > 1 and sampling.temperature == 0:
            raise bad_request(
                "n is above 1 and the temperature 0: all choices would be the same answer", "n"
            )
        self._check_conversation(wanted)
        run = RunRequest(
            wanted.conversation,
            self._run_options(request, sampling, self._budget(request.overrides, wanted)),
            tuple(wanted.stops),
            wanted.format,
            _toolset(wanted, live=bool(getattr(request, "stream", True))),
        )
        return tuple(
            [run.with_seed_offset(choice) if choice else run for choice in range(wanted.choices)]
        )

    def _run_options(self, request: Request, sampling: Sampling, budget: Budget) -> RunOptions:
        """
        Return all options of the run; the schema has validated them, but for those of the method.
        """
        overrides = request.overrides
        choices = overrides.model_dump(exclude={"options", "budget", "thinking"}, exclude_none=True)
        values: dict[str, Any] = {
            "policy": self.method,
            "options": self._options(overrides.options or {}),
            "sampling": sampling,
            "budget": Limits.of(budget),
        }
        if self.best_priority is not None:
            asked: int | None = getattr(overrides, "priority", None)
            values["priority"] = _allowed_priority(asked, self.best_priority, "stepspec.priority")
        run = self.offer.defaults.model_copy(update=choices | values)
        if run.auto is None:  # a seed repeats a run, and a method that is named is wanted as it is
            run = run.model_copy(
                update={"auto": self.auto and getattr(request, "seed", None) is None}
            )
        return run

    def _check_conversation(self, wanted: Wanted) -> None:
        conversation, most = wanted.conversation, self.settings.max_messages
        wrong = ""
        if len(conversation) > most:
            wrong = f"the conversation has {len(conversation)} messages: at most {most} are allowed"
        elif not conversation:
            wrong = "the conversation is empty: send a message to answer"
        elif conversation[-1].role == "assistant":
            wrong = (
                "the last message is the assistant's: the conversation has to end with a message to"
                " answer"
            )
        called: set[str] = set()
        for turn in conversation:
            if turn.role == "tool" and turn.call_id not in called:
                wrong = wrong or (
                    f"a tool's result is for the call {turn.call_id!r}, which no message before it"
                    " makes: send the assistant's message with its calls too"
                )
            called |= {call.id for call in turn.calls}
        if wrong:
            raise bad_request(wrong, wanted.conversation_name)

    def _options(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the method, those *requested* over the configured ones."""
        known = self.offer.methods[self.method].options
        for name in requested:
            if name not in known:
                hint = f"{near(name, known)}; its options: {', '.join(known) or 'none'}"
                message = f"{self.method!r} has no option {name!r}{hint}"
                raise bad_request(message, f"stepspec.options.{name}", "unknown_parameter")
        options = {**self.offer.configured_options(self.method), **requested}
        if requested or self.method != self.offer.defaults.policy:
            try:
                self.offer.check(self.method, options)
            except ConfigurationError as exc:
                place = f"stepspec.options.{exc.option}" if exc.option else "stepspec.options"
                raise bad_request(str(exc), place if requested else "model") from exc
        return options

    def _sampling(self, request: Request) -> Sampling:
        """
        Return the sampling of *request*; without a seed it has none, as the configured one would
        repeat answers.
        """
        for name in PENALTIES:
            if getattr(request, name, None):
                raise bad_request(f"{name}: {NO_PENALTY}", name)
        values = {name: getattr(request, name, None) for name in SAMPLING_FIELDS}
        update = {name: value for name, value in values.items() if value is not None}
        if update.get("top_k") == -1:  # vLLM's name for all tokens
            update["top_k"] = 0
        update["seed"] = getattr(request, "seed", None)
        return self.offer.defaults.sampling.model_copy(update=update)

    def _budget(self, overrides: StepspecOptions, wanted: Wanted) -> Budget:
        """
        Return the budget of the run: the configured one with the limits that the request wants.
        """
        requested = overrides.budget.tokens if overrides.budget else None
        tokens, name, least = wanted.tokens, wanted.tokens_name, wanted.least
        # as vLLM does; it has no other effect
        if least is not None and tokens is not None and least > tokens:
            raise bad_request(
                f"min_tokens is {least} and {name} {tokens}: send at most {tokens}", "min_tokens"
            )
        if tokens is not None and requested is not None and tokens != requested:
            message = (
                f"{name} is {tokens} and stepspec.budget.tokens {requested}: both are one limit,"
                " send one of them"
            )
            raise bad_request(message, "stepspec.budget.tokens")
        budget = self.offer.defaults.budget.budget()
        budget = replace(budget, tokens=tokens, answer=None) if tokens else budget
        budget = self._limited(_with_overrides(budget, overrides), overrides)
        answer = budget.for_answer
        thinking = budget.tokens - answer
        if not thinking:  # no share of the effort is left to divide
            return budget
        if wanted.effort is not None:
            thinking = max(1, int(thinking * EFFORT[wanted.effort]))
        if wanted.thinking is not None:
            thinking = min(thinking, wanted.thinking)
        if wanted.rest_for_answer:
            return replace(budget, answer=max(answer, budget.tokens - thinking))
        return (
            budget
            if wanted.effort is None
            else replace(budget, tokens=answer + thinking, answer=answer)
        )

    def _limited(self, budget: Budget, overrides: StepspecOptions) -> Budget:
        """
        Limit the tokens as the settings say; the tokens that the request reserves for the answer
        stay.
        """
        most = self.settings.max_tokens
        if most is None or budget.tokens <= most:
            return budget
        answer = overrides.budget.answer if overrides.budget else None
        _check_answer(answer, most)
        return replace(budget, tokens=most, answer=answer)


def forwarded_priority(content: Mapping[str, Any], best: int | None) -> int | None:
    """
    Return the priority, among runs, of a request that is forwarded; None if the client's own stays
    as it is.

    *best* is what the client may have at best, and what a request without one gets. Raise
    `ApiError` for a better one.
    """
    if best is None:
        return None
    asked = content.get("priority")
    if asked is not None and not (type(asked) is int and abs(asked) <= MOST_PRIORITY):
        raise bad_request(
            f"priority: send an integer from -{MOST_PRIORITY} to {MOST_PRIORITY}", "priority"
        )
    return _allowed_priority(asked, best, "priority")


def _allowed_priority(asked: int | None, best: int, param: str) -> int:
    if asked is not None and asked < best:
        message = (
            f"{param} is {asked}, and the API key allows {best} at best: send {best} or more; lower"
            " is first"
        )
        raise bad_request(message, param)
    return best if asked is None else asked


def _with_overrides(budget: Budget, overrides: StepspecOptions) -> Budget:
    requested = overrides.budget.model_dump(exclude_none=True) if overrides.budget else {}
    if "tokens" in requested and "answer" not in requested:
        requested["answer"] = None
    values = {field.name: getattr(budget, field.name) for field in fields(Budget)} | requested
    _check_answer(values["answer"], values["tokens"])
    return Budget(**values)


def _check_answer(answer: int | None, tokens: int) -> None:
    if answer is not None and answer >= tokens:
        raise bad_request(
            f"{answer} tokens for the answer leave none of {tokens} to think",
            "stepspec.budget.answer",
        )


def _toolset(wanted: Wanted, *, live: bool) -> Toolset | None:
    """Return the tools of a request, which streams if it is *live*; None if it has none."""
    tools, choice = wanted.tools, wanted.tool_choice
    if not tools:
        if choice not in ("auto", "none") or wanted.tool_named:
            raise bad_request("tool_choice asks for a call, and tools is empty", "tool_choice")
        return None
    names = [tool.name for tool in tools]
    twice, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise bad_request(f"two tools are called {twice!r}: give each a name of its own", "tools")
    if choice not in (names if wanted.tool_named else CHOICES):
        hint = near(choice, names)
        raise bad_request(f"tool_choice names {choice!r}, which is no tool{hint}", "tool_choice")
    return Toolset(tools, choice, wanted.parallel, wanted.tool_named and choice in CHOICES, live)
