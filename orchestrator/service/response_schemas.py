"""What a request of the newer API, ``/v1/responses``, may ask for, and what that is as a chat completion. Pure."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field

from .cures import TOOLS
from .schemas import (
    AnyJson,
    ChatRequest,
    Effort,
    Label,
    Metadata,
    Named,
    Nothing,
    Part,
    PlainText,
    Positive,
    Request,
    ResponseFormat,
    SchemaJson,
    Speaking,
    Turn,
    only_text,
)

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


class TextWish(Part):
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
    text: TextWish | None = None
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
