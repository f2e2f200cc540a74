"""
The bodies of requests, field by field: chat completions, responses, and the page's own runs.

Unknown fields are refused, and so are values that no method can honour; `validation` says what to send instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from ...chain import Message, Speaker, Tool, ToolCall
from ...run_options import Count, Delimiter, option_types, service_options
from ...step_ends import REGEX
from ..settings import Thinking

MAX_DELIMITERS, MAX_DELIMITER = 8, 1024  # texts, and characters of each
MAX_TOOLS = 128  # OpenAI's limit

SERVED = "ask one of the served models by its own name (GET /v1/models): such requests are forwarded unchanged"
FUNCTIONS = "send tools of the type function; the client runs them and sends their results back"
SPEAKERS: Mapping[str, Speaker] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

T = TypeVar("T")
Items: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""A list that is validated up to its first wrong item: a hundred thousand errors would take seconds."""

Positive: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[int, Field(ge=0)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Empty: TypeAlias = Annotated[list[Any], Field(max_length=0)] | None
Label: TypeAlias = Annotated[str, Field(max_length=256)]
Metadata: TypeAlias = Annotated[dict[str, str], Field(max_length=16)]
Effort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh"]


def _no_regex(delimiter: str | list[str]) -> str | list[str]:
    """Refuse regular expressions of clients: a malicious one could block the service for ever."""
    texts = [delimiter] if isinstance(delimiter, str) else delimiter
    if any(text.startswith(REGEX) for text in texts):
        raise ValueError("a regular expression is allowed in the service's own settings only; send plain texts")
    if len(texts) > MAX_DELIMITERS or any(len(text) > MAX_DELIMITER for text in texts):
        raise ValueError(f"at most {MAX_DELIMITERS} texts of at most {MAX_DELIMITER} characters")
    return delimiter


TextDelimiter: TypeAlias = Annotated[Delimiter, AfterValidator(_no_regex)]


class Part(BaseModel):
    """A part of a request: unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(Part):
    """A text part of a message."""

    type: Literal["text"]
    text: str


def _parts(content: object) -> list[object]:
    return cast("list[object]", content) if isinstance(content, list) else []


def only_text(content: object, kinds: Collection[str] = ("text",)) -> object:
    """Return *content* if all its parts are of these *kinds* of text. Raise `ValueError` with a cure."""
    for part in _parts(content):
        kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            raise ValueError(f"a part of type {kind!r}: the methods read text only; send text parts, or {SERVED}")
    return content


def _no_function(role: object) -> object:
    if role == "function":
        raise ValueError("a message of the role 'function': send the role tool, with tool_call_id")
    return role


TurnRole: TypeAlias = Annotated[
    Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_no_function)
]
Content: TypeAlias = Annotated[str | Items[TextPart], BeforeValidator(only_text)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]


def _json_object(text: str) -> str:
    """Refuse the arguments of a call that no chat template could show."""
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise ValueError(f"the arguments of a call are no JSON ({exc}): correct them, or leave the call out") from exc
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call have to be a JSON object")
    return text


Arguments: TypeAlias = Annotated[str, AfterValidator(_json_object)]


class CalledFunction(Part):
    """The tool that an earlier answer called, with its arguments as JSON text."""

    name: Name
    arguments: Arguments


class ToolCallPart(Part):
    """A call of a tool in an earlier answer; *index* is that of a streamed one, and is dropped."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Turn(Part):
    """
    A message of the conversation: of the client, of an earlier answer with its calls, or with the result of a call.

    The reasoning of an earlier answer may be sent back in either field; the models' own chat templates keep or drop it.
    ``provider_specific_fields``, in which LiteLLM keeps it a second time, is dropped.
    """

    role: TurnRole
    content: Content
    name: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Empty = None
    audio: None = None
    function_call: None = None
    tool_calls: Items[ToolCallPart] | None = None
    tool_call_id: Annotated[
        Annotated[str, Field(min_length=1, max_length=256)] | None, Field(validate_default=True)
    ] = None
    provider_specific_fields: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _calls_alone(cls, turn: object) -> object:
        """A message of calls may have no content."""
        if not isinstance(turn, dict):
            return turn
        fields = cast("dict[str, Any]", turn)
        return {**fields, "content": ""} if fields.get("tool_calls") and fields.get("content") is None else fields

    @field_validator("tool_calls")
    @classmethod
    def _by_the_assistant(cls, calls: list[ToolCallPart] | None, known: ValidationInfo) -> list[ToolCallPart] | None:
        if calls and known.data.get("role", "assistant") != "assistant":
            raise ValueError("only a message of the assistant makes calls: leave them out")
        return calls

    @field_validator("tool_call_id")
    @classmethod
    def _of_a_result(cls, call_id: str | None, known: ValidationInfo) -> str | None:
        if (known.data.get("role", "user") == "tool") != (call_id is not None):
            raise ValueError("a message of the role tool, and no other, has a tool_call_id: the id of the call")
        return call_id

    @property
    def message(self) -> Message:
        calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ()]
        return Message(
            SPEAKERS[self.role],
            _text(self.content),
            tuple(calls),
            self.tool_call_id or "",
            (self.reasoning or self.reasoning_content or "") if self.role == "assistant" else "",
        )


def _text(content: str | Sequence[TextPart | ItemPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class FunctionPart(Part):
    """What the models read about a function; *strict* asks the server to keep its arguments to the schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        parameters = orjson.dumps(self.parameters).decode() if self.parameters else ""
        return Tool(self.name, self.description or "", parameters, self.strict)


class ToolPart(Part):
    """A tool that the answer may call; the client runs it."""

    type: Literal["function"]
    function: FunctionPart


def _function(tool: Any) -> Any:
    """Refuse the tools that a service would have to run itself."""
    kind = cast("dict[str, Any]", tool).get("type", "function") if isinstance(tool, dict) else "function"
    if kind != "function":
        raise ValueError(f"a tool of the type {kind!r}: {FUNCTIONS}")
    return cast("Any", tool)


class NamedFunction(Part):
    """The name of a function."""

    name: Name


class NamedTool(Part):
    """The tool that the answer has to call."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(Part):
    """Options of a stream: *continuous_usage_stats* adds the usage so far to each chunk, if there is any usage."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None


class NamedSchema(Part):
    """A JSON schema with a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), populate_by_name=True)

    name: str
    description: str | None = None
    rules: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class PlainText(Part):
    """An answer in free text."""

    type: Literal["text"]


class AnyJson(Part):
    """An answer that is any JSON object."""

    type: Literal["json_object"]


class SchemaJson(Part):
    """An answer that is JSON and matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaJson, Field(discriminator="type")]


class BudgetOptions(Part):
    """Limits of this run; those left out are as configured."""

    tokens: Annotated[int, Field(ge=2)] | None = None
    steps: Positive | None = None
    seconds: Seconds | None = None
    answer: Positive | None = None


P = TypeVar("P", bound=Part)
NARROWER: Mapping[str, Any] = {"ahead": Annotated[Count, Field(le=64)], "delimiter": TextDelimiter}
"""The types of options of which a client may not choose every value that the service's own settings may have."""


def _with_run_options(model: type[P]) -> type[P]:
    """Add to *model* the options of a run that a request may set. A request may leave each of them out."""
    types = option_types() | dict(NARROWER)
    fields: dict[str, Any] = {
        name: (types[name] | None, None) for name in service_options() if name not in model.model_fields
    }
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields)


@_with_run_options
class StepspecOptions(Part):
    """
    The options that only this service has: the object ``stepspec``, which clients send in ``extra_body``.

    The fields of `RunOptions` that a request may set are added to those below.
    """

    options: dict[str, Any] | None = None
    budget: BudgetOptions | None = None
    thinking: Thinking | None = None


class Request(Part):
    """A request to a method; *parts* are what its messages consist of."""

    parts: ClassVar[tuple[type[Part], ...]] = (Turn,)

    stepspec: StepspecOptions | None = None

    @property
    def overrides(self) -> StepspecOptions:
        return self.stepspec or StepspecOptions()


class ChatRequest(Request):
    """The body of a chat completion."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: Annotated[Items[Turn], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Positive | None = None
    stop: str | Items[str] | None = None
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

    # Hints that do not change the answer.
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    metadata: Metadata | None = None

    # Load generators send them. A run ends with its answer, or with its budget: what two models would write beyond the
    # answer says nothing about a method.
    ignore_eos: bool | None = None
    min_tokens: NotNegative | None = None

    tools: Annotated[Items[Annotated[ToolPart, BeforeValidator(_function)]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    # Features that no method has; clients may send the values that turn them off.
    functions: Empty = None
    function_call: Literal["none"] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    verbosity: Literal["medium"] | None = None
    modalities: Items[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None

    @property
    def problem_messages(self) -> tuple[Message, ...]:
        return tuple([turn.message for turn in self.messages])

    @property
    def toolset(self) -> tuple[Tool, ...]:
        return tuple([tool.function.tool for tool in self.tools or ()])

    @property
    def chosen_tool(self) -> str:
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedTool) else choice or "auto"


class LiveRequest(Request):
    """The body of a run of the page. It has either *messages* or a *problem*."""

    messages: Annotated[Items[Turn], Field(min_length=1)] | None = None
    problem: Annotated[str, Field(min_length=1)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=512)] = "auto"

    @property
    def problem_messages(self) -> tuple[Message, ...]:
        return tuple([turn.message for turn in self.messages or []]) or (Message("user", self.problem or ""),)


TEXT_KINDS = ("input_text", "output_text", "text")


class ItemPart(Part):
    """A text part of an item; annotations and log-probabilities of earlier answers are dropped."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Items[Any] | None = None
    logprobs: Items[Any] | None = None


class MessageItem(Part):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | Items[ItemPart], BeforeValidator(partial(only_text, kinds=TEXT_KINDS))]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    @property
    def message(self) -> Message:
        return Message(SPEAKERS[self.role], _text(self.content))


class ReasoningPart(Part):
    """A part of the reasoning of an earlier answer."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Part):
    """The reasoning of an earlier answer, which the models' own chat templates keep or drop."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Items[Any] | None = None
    content: Items[ReasoningPart] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class FunctionCallItem(Part):
    """A call of a tool in an earlier answer."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Name
    arguments: Arguments
    id: str | None = None
    status: str | None = None


class FunctionCallOutputItem(Part):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1, max_length=256)]
    output: Annotated[str | Items[ItemPart], BeforeValidator(partial(only_text, kinds=TEXT_KINDS))]
    id: str | None = None
    status: str | None = None


TypedItem: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem

OWN_CALLS = ("function_call", "function_call_output")


def _with_type(item: object) -> object:
    """Add the type of a message to an item with a role. Raise `ValueError` for calls that the service would run."""
    if not isinstance(item, dict):
        return item
    fields = cast("dict[str, Any]", item)
    kind = str(fields.get("type"))
    if kind.endswith(("_call", "_call_output")) and kind not in OWN_CALLS:
        raise ValueError(f"an item of the type {kind!r}: {FUNCTIONS}")
    return {"type": "message", **fields} if "role" in fields else fields


def conversation(items: Sequence[TypedItem]) -> Iterator[Message]:
    """Yield the messages of *items*: the reasoning, the text and the calls of one answer are one message."""
    answer: Message | None = None
    for item in items:
        if isinstance(item, MessageItem) and item.role != "assistant":
            other = item.message
        elif isinstance(item, FunctionCallOutputItem):
            other = Message("tool", _text(item.output), call_id=item.call_id)
        else:
            answer = _grown(answer, item)
            continue
        if answer is not None and (answer.content or answer.calls):
            yield answer
        answer = None
        yield other
    if answer is not None and (answer.content or answer.calls):
        yield answer


def _grown(answer: Message | None, item: MessageItem | ReasoningItem | FunctionCallItem) -> Message:
    answer = answer or Message("assistant", "")
    match item:
        case ReasoningItem():
            return replace(answer, reasoning=answer.reasoning + "".join(part.text for part in item.content or ()))
        case FunctionCallItem():
            return replace(answer, calls=(*answer.calls, ToolCall(item.call_id, item.name, item.arguments)))
        case _:
            text = item.message.content
            return replace(answer, content=f"{answer.content}\n{text}" if answer.content else text)


class Reasoning(Part):
    """The effort of the reasoning."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class SchemaFormat(NamedSchema):
    """JSON that matches a schema, in the form of the Responses API."""

    type: Literal["json_schema"]


TextFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaFormat, Field(discriminator="type")]


class TextOptions(Part):
    """The form of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class FunctionTool(FunctionPart):
    """A tool that the answer may call, in the form of the Responses API; the client runs it."""

    type: Literal["function"]


class ChosenFunction(NamedFunction):
    """The tool that the answer has to call, in the form of the Responses API."""

    type: Literal["function"]


Item: TypeAlias = Annotated[Annotated[TypedItem, Field(discriminator="type")], BeforeValidator(_with_type)]


def _no_stop(stop: object) -> object:
    if stop is not None:
        raise ValueError("this API has no stop strings; leave it out, or POST /v1/chat/completions, which has them")
    return stop


NoStop: TypeAlias = Annotated[None, BeforeValidator(_no_stop)]


class ResponsesStreamOptions(Part):
    """Options of a stream of the Responses API."""

    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(Request):
    """The body of a response."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    input: str | Annotated[Items[Item], Field(min_length=1)]
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

    # Hints that do not change the answer.
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    stream_options: ResponsesStreamOptions | None = None

    # Load generators send them, as in chat completions.
    ignore_eos: bool | None = None
    min_tokens: NotNegative | None = None
    stop: NoStop = None

    tools: Annotated[Items[Annotated[FunctionTool, BeforeValidator(_function)]], Field(max_length=MAX_TOOLS)] | None = (
        None
    )
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None

    # Features that no method has; clients may send the values that turn them off.
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    include: Empty = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    max_tool_calls: None = None

    @property
    def problem_messages(self) -> tuple[Message, ...]:
        first = (Message("system", self.instructions),) if self.instructions else ()
        if isinstance(self.input, str):
            return (*first, Message("user", self.input))
        return (*first, *conversation(self.input))

    @property
    def toolset(self) -> tuple[Tool, ...]:
        return tuple([tool.tool for tool in self.tools or ()])

    @property
    def chosen_tool(self) -> str:
        choice = self.tool_choice
        return choice.name if isinstance(choice, ChosenFunction) else choice or "auto"
