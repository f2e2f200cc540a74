"""
What a chat completion may ask for, field by field. A field that is not here is refused, and so is every value that
could not be honoured; what to do instead is in `cures`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ..choices import Adapting, Count, Delimiter, Priority, Share
from ..interfaces import AnsweredBy, EndedBy
from ..step_ends import REGEX
from .cures import RAW, TOOLS
from .settings import Thinking

MOST_DELIMITERS = 8

Positive: TypeAlias = Annotated[int, Field(ge=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Nothing: TypeAlias = Annotated[list[Any], Field(max_length=0)] | None
Label: TypeAlias = Annotated[str, Field(max_length=256)]
Metadata: TypeAlias = Annotated[dict[str, str], Field(max_length=16)]
Effort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh"]


def _no_expression(delimiter: str | list[str]) -> str | list[str]:
    """Refuse what could keep the service busy for ever, as an expression may that a client makes up."""
    texts = [delimiter] if isinstance(delimiter, str) else delimiter
    if any(text.startswith(REGEX) for text in texts):
        raise ValueError("an expression is taken from the service's own settings only; send texts")
    if len(texts) > MOST_DELIMITERS:
        raise ValueError(f"at most {MOST_DELIMITERS} texts")
    return delimiter


TextDelimiter: TypeAlias = Annotated[Delimiter, AfterValidator(_no_expression)]


class Part(BaseModel):
    """What a request consists of: nothing that is not listed, and no number given as a word."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(Part):
    """A piece of a message."""

    type: Literal["text"]
    text: str


def _parts(content: object) -> list[object]:
    return cast("list[object]", content) if isinstance(content, list) else []


def only_text(content: object, kinds: Collection[str] = ("text",)) -> object:
    """Return *content* if its parts are of these *kinds*, which are text. Raise `ValueError` with the cure."""
    for part in _parts(content):
        kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            raise ValueError(f"a part of type {kind!r}: the methods read text only; send text parts, or {RAW}")
    return content


def _no_tool(role: object) -> object:
    if role in ("tool", "function"):
        raise ValueError(f"a message of the role {role!r}: {TOOLS}")
    return role


Speaking: TypeAlias = Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_no_tool)]
Content: TypeAlias = Annotated[str | list[TextPart], BeforeValidator(only_text)]


class Turn(Part):
    """
    A message of the conversation. The thinking of an earlier answer may be sent back, and is dropped, as the models'
    own chat templates do; so are ``provider_specific_fields``, in which LiteLLM keeps it a second time.
    """

    role: Speaking
    content: Content
    name: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Nothing = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing = None
    provider_specific_fields: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(Part):
    """What a stream tells besides."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class Named(Part):
    """A JSON schema and what it is called."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), populate_by_name=True)

    name: str
    description: str | None = None
    rules: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class PlainText(Part):
    """The answer as it comes."""

    type: Literal["text"]


class AnyJson(Part):
    """The answer as any JSON object."""

    type: Literal["json_object"]


class SchemaJson(Part):
    """The answer as JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: Named


ResponseFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaJson, Field(discriminator="type")]


class BudgetWish(Part):
    """Limits of this run; see the configured budget."""

    tokens: Annotated[int, Field(ge=2)] | None = None
    steps: Positive | None = None
    seconds: Seconds | None = None
    answer: Positive | None = None


class Wishes(Part):
    """What only this service knows: the object ``stepspec``, which clients send in ``extra_body``."""

    options: dict[str, Any] | None = None
    ahead: Annotated[Count, Field(le=64)] | None = None
    hedge: Share | None = None
    load: Adapting | None = None
    lead: Count | None = None
    plan: bool | None = None
    ending: EndedBy | None = None
    answer: AnsweredBy | None = None
    early_exit: bool | None = None
    give_up: bool | None = None
    sure_bets: bool | None = None
    delimiter: TextDelimiter | None = None
    priority: Priority | None = None
    budget: BudgetWish | None = None
    thinking: Thinking | None = None


class Request(Part):
    """What can be asked of a method."""

    stepspec: Wishes | None = None

    @property
    def wishes(self) -> Wishes:
        return self.stepspec or Wishes()


class ChatRequest(Request):
    """A chat completion by one of the methods."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: Annotated[list[Turn], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    reasoning_effort: Effort | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    response_format: ResponseFormat | None = None

    # Hints that change no answer.
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    metadata: Metadata | None = None

    # What clients send to say that they do not want it.
    tools: Nothing = None
    tool_choice: Literal["none"] | None = None
    functions: Nothing = None
    function_call: Literal["none"] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    verbosity: Literal["medium"] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None


class LiveRequest(Request):
    """A run whose every event is told: for the page. Either *messages* or a *problem*."""

    messages: Annotated[list[Turn], Field(min_length=1)] | None = None
    problem: Annotated[str, Field(min_length=1)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=512)] = "auto"
