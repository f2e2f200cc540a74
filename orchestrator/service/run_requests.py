"""Model names: every method, ``auto``, and the two served models, which are passed through to. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import orjson
from pydantic import ValidationError

from ..budget import Budget
from ..chain import Message, Role, Speaker
from ..endpoints import ModelEndpoint, Sampling
from ..endpoints.settings import NO_PENALTY
from ..endpoints.vllm_protocol import Format
from ..errors import ConfigurationError, near
from ..run_options import RunOverrides
from .errors import ApiError, bad
from .interfaces import Offer
from .schemas import (
    ChatRequest,
    Effort,
    LiveRequest,
    Part,
    SchemaJson,
    StepspecOptions,
    Turn,
)
from .settings import ServiceSettings
from .validation import explain

AUTO = "auto"
ROLES: tuple[Role, ...] = ("small", "large")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model by its own name: requests go to its server as they are."""

    role: Role
    name: str


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """The names that a request may choose between."""

    offer: Offer

    @property
    def orchestrated(self) -> tuple[str, ...]:
        return (AUTO, *self.offer.methods)

    @property
    def raw(self) -> Mapping[str, ServedModel]:
        """Both models, each under its own name if no other means it, and with its role before it otherwise."""
        served: dict[Role, str] = {role: self._endpoint(role).name for role in ROLES}
        taken = {*self.orchestrated, *([served["small"]] if served["small"] == served["large"] else [])}
        return {(f"{role}:{name}" if name in taken else name): ServedModel(role, name) for role, name in served.items()}

    def find(self, name: str) -> str | ServedModel:
        """Return the method or the model that *name* means. Raise `Refusal`."""
        if name == AUTO:
            return self.offer.policy
        if name in self.offer.methods:
            return name
        found = self.raw.get(name) or {f"{raw.role}:{raw.name}": raw for raw in self.raw.values()}.get(name)
        if found is None:
            known = [*self.orchestrated, *self.raw]
            raise ApiError(
                404,
                f"there is no model {name!r}{near(name, known)}; GET /v1/models lists them",
                "model",
                "model_not_found",
            )
        return found

    def label(self, name: object) -> str:
        """*name* as a label of few values: a method, ``small`` or ``large`` passed through, or ``unknown``."""
        try:
            found = self.find(name) if isinstance(name, str) else None
        except ApiError:
            found = None
        return "unknown" if found is None else f"raw:{found.role}" if isinstance(found, ServedModel) else found

    def listed(self, created: int) -> list[dict[str, Any]]:
        """The list of models in OpenAI's shape, with the context that each can take."""
        return [self.described(name, created) for name in (*self.orchestrated, *self.raw)]

    def described(self, name: str, created: int) -> dict[str, Any]:
        """One entry of the list. Raise `Refusal` for a name that means nothing."""
        found = self.find(name)
        roles: tuple[Role, ...] = (found.role,) if isinstance(found, ServedModel) else ROLES
        owner = "vllm" if isinstance(found, ServedModel) else "stepspec"
        room = min(self._endpoint(role).room for role in roles)
        return {"id": name, "object": "model", "created": created, "owned_by": owner, "max_model_len": room}

    def _endpoint(self, role: Role) -> ModelEndpoint:
        return self.offer.engine.small if role == "small" else self.offer.engine.large


B = TypeVar("B", bound=Part)

MOST_STOPS = 4  # OpenAI's limit, and vLLM's
EFFORT: Mapping[Effort, float] = {"minimal": 1 / 16, "low": 1 / 4, "medium": 1 / 2, "high": 1.0, "xhigh": 1.0}
"""The share of the tokens for thinking that a request gets; the answer keeps its room."""

SPEAKERS: Mapping[str, Speaker] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
PENALTIES = ("presence_penalty", "frequency_penalty")  # which vLLM forgets with every request


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run that was asked for: the *problem*, and what is chosen for it as the engine's own arguments."""

    problem: tuple[Message, ...]
    method: str
    sampling: Sampling
    budget: Budget
    overrides: RunOverrides
    stop: tuple[str, ...] = ()
    format: Format | None = None

    def within(self, seconds: float) -> RunRequest:
        """The same, over in so many seconds at the latest."""
        own = self.budget.seconds
        return replace(self, budget=replace(self.budget, seconds=seconds if own is None else min(own, seconds)))

    def seeded(self, number: int) -> RunRequest:
        """The same with another seed for each *number* from 1 on."""
        seed = (self.sampling.seed or 0) + number
        return replace(self, sampling=self.sampling.model_copy(update={"seed": seed})) if number else self


def read(kind: type[B], body: Mapping[str, Any] | bytes) -> B:
    """Make a request of what was sent. Raise `Refusal`, which names the parameter and says what would do."""
    given = body if isinstance(body, Mapping) else parse(body)
    try:
        return kind.model_validate(given)
    except ValidationError as exc:
        raise explain(kind, given, exc) from exc


def parse(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raise `Refusal`."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise bad(f"the body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(given, dict):
        raise bad("the body has to be a JSON object", code="invalid_json")
    return given  # pyright: ignore[reportUnknownVariableType]


def of_chat(request: ChatRequest, method: str, offer: Offer, settings: ServiceSettings) -> tuple[RunRequest, ...]:
    """One order for each of the ``n`` choices. Raise `Refusal`."""
    sampling, many = _sampling(request, offer.sampling), request.n or 1
    if many > settings.max_choices:
        raise bad(f"n={many}: at most {settings.max_choices} choices are made at once", "n", "invalid_value")
    if many > 1 and sampling.temperature == 0:
        raise bad("n above 1 with temperature 0 would be the same answer several times", "n", "invalid_value")
    if request.stream_options is not None and not request.stream:
        raise bad("stream_options is for streams: set stream to true", "stream_options", "invalid_value")
    order = _order(
        request.messages,
        method,
        request.wishes,
        offer,
        settings,
        sampling=sampling,
        budget=_budget(request, offer.budget, settings),
        stop=_stops(request.stop),
        format=_format(request),
    )
    return tuple([order.seeded(number) for number in range(many)])


def of_live(request: LiveRequest, method: str, offer: Offer, settings: ServiceSettings) -> RunRequest:
    """The run that the page asks for. Raise `Refusal`."""
    if (request.messages is None) == (request.problem is None):
        raise bad("give either messages or problem", "messages", "invalid_value")
    turns = request.messages or [Turn(role="user", content=request.problem or "")]
    budget = _allowed(_wished(offer.budget, request.wishes), request.wishes, settings)
    sampling = offer.sampling.model_copy(update={"seed": random.getrandbits(31)})
    return _order(turns, method, request.wishes, offer, settings, sampling=sampling, budget=budget)


def _order(
    turns: Sequence[Turn],
    method: str,
    wishes: StepspecOptions,
    offer: Offer,
    settings: ServiceSettings,
    *,
    sampling: Sampling,
    budget: Budget,
    stop: tuple[str, ...] = (),
    format: Format | None = None,
) -> RunRequest:
    if len(turns) > settings.max_messages:
        raise bad(f"{len(turns)} messages: at most {settings.max_messages} are taken", "messages", "invalid_value")
    if turns[-1].role == "assistant":
        raise bad("the last message is the assistant's: end with what it is to answer", "messages", "invalid_value")
    wished = wishes.options or {}
    for name, value in wished.items():
        _check(name, value, method, offer)
    configured: Mapping[str, Any] = offer.options if method == offer.policy else {}
    choices = wishes.model_dump(exclude={"options", "budget", "thinking"}, exclude_none=True)
    return RunRequest(
        tuple([Message(SPEAKERS[turn.role], turn.text) for turn in turns]),
        method,
        sampling,
        budget,
        cast("RunOverrides", {**choices, "policy": method, "options": {**configured, **wished}}),
        stop,
        format,
    )


def _check(option: str, value: object, method: str, offer: Offer) -> None:
    known, param = offer.methods[method].options, f"stepspec.options.{option}"
    if option not in known:
        message = f"{method!r} has no option {option!r}{near(option, known)}; its options: {', '.join(known) or 'none'}"
        raise bad(message, param, "unknown_parameter")
    try:
        offer.check(method, {option: value})
    except ConfigurationError as exc:
        raise bad(str(exc), param, "invalid_value") from exc


def _sampling(request: ChatRequest, configured: Sampling) -> Sampling:
    """Without a seed every request draws its own, as everywhere; the configured one would always repeat itself."""
    for name in PENALTIES:
        if getattr(request, name):
            raise bad(f"{name}: {NO_PENALTY}", name, "invalid_value")
    asked = {name: value for name in SAMPLED if (value := getattr(request, name)) is not None}
    seed = random.getrandbits(31) if request.seed is None else request.seed
    return configured.model_copy(update=asked | {"seed": seed})


def _budget(request: ChatRequest, configured: Budget, settings: ServiceSettings) -> Budget:
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        raise bad("max_tokens and max_completion_tokens differ: send one of them", "max_tokens", "invalid_value")
    name = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
    asked, wishes = request.max_completion_tokens or request.max_tokens, request.wishes
    wished = wishes.budget.tokens if wishes.budget else None
    if asked == 1:
        raise bad(f"{name}=1 has no room to think and to answer: at least 2", name, "invalid_value")
    if None not in (asked, wished) and asked != wished:
        message = f"{name} is {asked} and stepspec.budget.tokens {wished}, which mean the same: send one of them"
        raise bad(message, "stepspec.budget.tokens", "invalid_value")
    budget = replace(configured, tokens=asked, answer=None) if asked else configured
    budget = _allowed(_wished(budget, wishes), wishes, settings)
    if request.reasoning_effort is None:
        return budget
    answer = budget.for_answer
    thinking = max(1, int((budget.tokens - answer) * EFFORT[request.reasoning_effort]))
    return replace(budget, tokens=answer + thinking, answer=answer)


def _wished(budget: Budget, wishes: StepspecOptions) -> Budget:
    asked = wishes.budget.model_dump(exclude_none=True) if wishes.budget else {}
    if "tokens" in asked and "answer" not in asked:
        asked["answer"] = None
    wished = {one.name: getattr(budget, one.name) for one in fields(Budget)} | asked
    _leave_room(wished["answer"], wished["tokens"])
    return Budget(**wished)


def _allowed(budget: Budget, wishes: StepspecOptions, settings: ServiceSettings) -> Budget:
    """At most what a request may have here; what was wished for the answer stays."""
    if settings.max_tokens is None or budget.tokens <= settings.max_tokens:
        return budget
    answer = wishes.budget.answer if wishes.budget else None
    _leave_room(answer, settings.max_tokens)
    return replace(budget, tokens=settings.max_tokens, answer=answer)


def _leave_room(answer: int | None, tokens: int) -> None:
    if answer is not None and answer >= tokens:
        message = f"{answer} tokens for the answer leave none of {tokens} to think"
        raise bad(message, "stepspec.budget.answer", "invalid_value")


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS:
        raise bad(f"{len(stops)} stop strings: at most {MOST_STOPS}", "stop", "invalid_value")
    if "" in stops:
        raise bad("a stop string is empty", "stop", "invalid_value")
    return stops


def _format(request: ChatRequest) -> Format | None:
    match request.response_format:
        case SchemaJson(json_schema=named):
            return named.rules
        case asked:
            return "json" if asked is not None and asked.type == "json_object" else None
