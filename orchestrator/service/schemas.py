"""
What a chat completion may ask for, field by field. A field that is not here is refused, and so is every value that
could not be honoured; what to do instead is in `cures`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ..interfaces import AnsweredBy, EndedBy
from ..run_options import Count, Delimiter, LoadMode, Priority, Share
from ..step_ends import REGEX
from .settings import Thinking

MOST_DELIMITERS = 8

RAW = "ask one of the served models by its own name (GET /v1/models): such requests are passed through untouched"
TOOLS = f"no method can call tools while it thinks; {RAW}"

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


class BudgetOptions(Part):
    """Limits of this run; see the configured budget."""

    tokens: Annotated[int, Field(ge=2)] | None = None
    steps: Positive | None = None
    seconds: Seconds | None = None
    answer: Positive | None = None


class StepspecOptions(Part):
    """What only this service knows: the object ``stepspec``, which clients send in ``extra_body``."""

    options: dict[str, Any] | None = None
    ahead: Annotated[Count, Field(le=64)] | None = None
    hedge: Share | None = None
    load: LoadMode | None = None
    lead: Count | None = None
    ending: EndedBy | None = None
    answer: AnsweredBy | None = None
    early_exit: bool | None = None
    sure_bets: bool | None = None
    delimiter: TextDelimiter | None = None
    priority: Priority | None = None
    budget: BudgetOptions | None = None
    thinking: Thinking | None = None


class Request(Part):
    """What can be asked of a method."""

    stepspec: StepspecOptions | None = None

    @property
    def wishes(self) -> StepspecOptions:
        return self.stepspec or StepspecOptions()


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


TEXTS = ("input_text", "output_text", "text")


class ItemPart(Part):
    """A piece of text in an item; annotations and log-probabilities of earlier answers are dropped."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class MessageItem(Part):
    """A turn of the conversation."""

    type: Literal["message"] = "message"
    role: Speaking
    content: Annotated[str | list[ItemPart], BeforeValidator(partial(only_text, kinds=TEXTS))]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    @property
    def turn(self) -> Turn:
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return Turn(role=self.role, content=text)


class ReasoningItem(Part):
    """Earlier thinking, which is dropped, as the models' own chat templates do."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] | None = None
    content: list[Any] | None = None
    encrypted_content: str | None = None
    status: str | None = None


def _fields(given: object) -> dict[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def _typed(item: object) -> object:
    """An item that has a role and no type is a message. Raise `ValueError` for those that tools leave behind."""
    fields = _fields(item)
    kind = str(fields.get("type"))
    if kind.endswith(("_call", "_call_output")):
        raise ValueError(f"an item of the type {kind!r}: {TOOLS}")
    return {"type": "message", **fields} if "role" in fields else item


class Reasoning(Part):
    """How long to think."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class SchemaFormat(Named):
    """JSON that a schema describes, as this API spells it."""

    type: Literal["json_schema"]


TextFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaFormat, Field(discriminator="type")]


class TextOptions(Part):
    """How the answer is to be written."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


Tagged: TypeAlias = Annotated[MessageItem | ReasoningItem, Field(discriminator="type")]
Item: TypeAlias = Annotated[Tagged, BeforeValidator(_typed)]


class PlainStream(Part):
    """What a stream tells besides: nothing."""

    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(Request):
    """A response by one of the methods."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Positive | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    metadata: Metadata | None = None

    # Hints that change no answer.
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    stream_options: PlainStream | None = None

    # What clients send to say that they do not want it.
    tools: Nothing = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    include: Nothing = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    max_tool_calls: None = None

    @property
    def turns(self) -> list[Turn]:
        first = [Turn(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*first, Turn(role="user", content=self.input)]
        return [*first, *(item.turn for item in self.input if isinstance(item, MessageItem))]

    @property
    def format(self) -> ResponseFormat | None:
        asked = self.text.format if self.text else None
        if isinstance(asked, SchemaFormat):
            named = Named.model_validate(asked.model_dump(exclude={"type"}))
            return SchemaJson(type="json_schema", json_schema=named)
        return asked

    @property
    def as_chat(self) -> ChatRequest:
        """The chat completion that does the same."""
        return ChatRequest(
            model=self.model,
            messages=self.turns,
            stream=self.stream,
            max_completion_tokens=self.max_output_tokens,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=self.format,
            stepspec=self.stepspec,
        )
