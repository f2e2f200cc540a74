"""
What a chat completion may ask for, field by field. A field that is not here is refused, and so is every value that
could not be honoured; the reason is in `CURES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from .settings import Thinking

Positive: TypeAlias = Annotated[int, Field(ge=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Nothing: TypeAlias = Annotated[list[Any], Field(max_length=0)] | None
Effort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh"]

RAW = "ask one of the served models by its own name (GET /v1/models): such requests are passed through untouched"
TOOLS = f"no method can call tools while it thinks; {RAW}"
LOGPROBS = f"the steps come from two models, whose probabilities do not compare; {RAW}"
CURES: Mapping[str, str] = {
    "tools": TOOLS,
    "tool_choice": TOOLS,
    "functions": TOOLS,
    "function_call": TOOLS,
    "tool_calls": TOOLS,
    "parallel_tool_calls": TOOLS,
    "logprobs": LOGPROBS,
    "top_logprobs": LOGPROBS,
    "logit_bias": f"the token ids of two models do not agree; {RAW}",
    "previous_response_id": "nothing is stored; send the whole conversation as input",
    "conversation": "nothing is stored; send the whole conversation as input",
    "prompt": "nothing is stored; send the whole conversation as input",
    "background": "nothing is stored; leave it out, and stream",
    "include": "there is nothing more to include; leave it out",
    "truncation": "a conversation that does not fit is refused; leave it out",
    "summary": "the thinking is told as it is; leave it out",
    "audio": "only text is written; leave it out",
    "modalities": "only text is written; leave it out",
    "prediction": f"the small model's drafts are the prediction; leave it out, or {RAW}",
    "web_search_options": "there is no web search; leave it out",
    "store": "nothing is stored; leave it out",
    "metadata": "nothing is stored; leave it out",
    "service_tier": "there is one tier; leave it out",
    "verbosity": "leave it out, and say in the messages how long the answer should be",
    "name": "the models are told the role of a turn only; leave it out, or write the name into the content",
    "reasoning_effort": f"a method always thinks; choose minimal, low, medium, high or xhigh, or {RAW}",
}


class Part(BaseModel):
    """What a request consists of: nothing that is not listed, and no number given as a word."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(Part):
    """A piece of a message."""

    type: Literal["text"]
    text: str


def _parts(content: object) -> list[object]:
    return cast("list[object]", content) if isinstance(content, list) else []


def _only_text(content: object) -> object:
    for part in _parts(content):
        kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"a part of type {kind!r}: the methods read text only; send text parts, or {RAW}")
    return content


Content: TypeAlias = Annotated[str | list[TextPart], BeforeValidator(_only_text)]


class Turn(Part):
    """
    A message of the conversation. The thinking of an earlier answer may be sent back, and is dropped, as the models'
    own chat templates do; so are ``provider_specific_fields``, in which LiteLLM keeps it a second time.
    """

    role: Literal["system", "developer", "user", "assistant"]
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

    options: dict[str, Any] = {}
    ahead: Annotated[int, Field(ge=0, le=64)] | None = None
    hedge: Annotated[float, Field(ge=0, le=1)] | None = None
    load: Literal["adapt", "ignore"] | None = None
    lead: Annotated[int, Field(ge=0)] | None = None
    plan: bool | None = None
    early_exit: bool | None = None
    give_up: bool | None = None
    budget: BudgetWish = BudgetWish()
    thinking: Thinking | None = None


class ChatRequest(Part):
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
    user: Annotated[str, Field(max_length=256)] | None = None
    safety_identifier: Annotated[str, Field(max_length=256)] | None = None
    response_format: ResponseFormat | None = None
    stepspec: Wishes = Wishes()

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
    metadata: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    verbosity: Literal["medium"] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None


class LiveRequest(Part):
    """A run whose every event is told: for the page. Either *messages* or a *problem*."""

    messages: Annotated[list[Turn], Field(min_length=1)] | None = None
    problem: Annotated[str, Field(min_length=1)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=512)] = "auto"
    stepspec: Wishes = Wishes()
