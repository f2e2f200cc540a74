"""
What the bodies of all requests share: bounds, parts that refuse unknown fields, texts, tools, and
``stepspec``.

A body is read and checked before it is validated: without bounds one of 4 MiB with 100,000 wrong
values, or as many small lists, keeps the process busy for seconds. Values that no method can honour
are refused too; `validation` says what to send instead. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from stepspec.orchestrator.chain import Message, Speaker, Tool, ToolCall
from stepspec.orchestrator.endpoints.interfaces import Format
from stepspec.orchestrator.json_values import json_text, read_json
from stepspec.orchestrator.run_options import Count, Delimiter, option_types, service_options

from ..errors import bad_request
from ..settings import Thinking

# orjson writes at most 254 levels, and a request gets some more on its way to a server
MAX_DEPTH = 128
MAX_ITEMS = 4096  # of one list or object
MAX_VALUES = 65_536  # of a request: what takes a tenth of a second to validate
MAX_TOOLS = 128  # OpenAI's limit
FUNCTIONS = "send tools of the type function; the client runs them and sends their results back"
# texts, and characters of each
MAX_DELIMITERS = 8
MAX_DELIMITER = 1024
# what neither begins a list or an object nor delimits a string
_OTHERS = bytes({*range(256)} - {*b'"[{'})
SERVED = (
    "ask one of the served models by its own name (GET /v1/models): such requests are forwarded"
    " unchanged"
)
SPEAKERS: Mapping[str, Speaker] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

T = TypeVar("T")
Items: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""
A list that is validated up to its first wrong item: a hundred thousand errors would take seconds.
"""

Positive: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[int, Field(ge=0)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Empty: TypeAlias = Annotated[list[Any], Field(max_length=0)] | None


def _none_for_empty(value: object) -> object:
    return None if value in ([], {}, "") else value


Nothing: TypeAlias = Annotated[None, BeforeValidator(_none_for_empty)]
"""What has to be left out, or be empty."""

Label: TypeAlias = Annotated[str, Field(max_length=256)]
Metadata: TypeAlias = Annotated[dict[str, str], Field(max_length=16)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
ModelName: TypeAlias = Annotated[str, Field(min_length=1, max_length=512)]
Temperature: TypeAlias = Annotated[float, Field(ge=0, le=2)] | None
TopP: TypeAlias = Annotated[float, Field(gt=0, le=1)] | None
TopK: TypeAlias = Annotated[int, Field(ge=-1)] | None
"""As vLLM has it: 0 and -1 sample among all tokens."""
Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)]
Stops: TypeAlias = Annotated[list[Stop], Field(max_length=4, fail_fast=True)]
"""As many stop strings as OpenAI allows, and vLLM."""
Effort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh", "max"]


def parse_json(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raise `ApiError`."""
    if (containers := _containers(body)) > MAX_VALUES:
        raise bad_request(
            f"the body has more than {MAX_VALUES} lists and objects", code="invalid_json"
        )
    try:
        content: object = read_json(body)
    except ValueError as exc:
        raise bad_request(f"the body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(content, dict):
        raise bad_request("the body has to be a JSON object", code="invalid_json")
    if containers > MAX_DEPTH and too_deep(cast("object", content)):
        raise bad_request(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    return cast("dict[str, Any]", content)


def _containers(text: bytes) -> int:
    """Count the lists and objects of a JSON *text*: millions of them take seconds to build."""
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # most strings are gone: a split takes time for each
    signs = unescaped.translate(None, _OTHERS).replace(b'""', b"")
    return sum(map(len, signs.split(b'"')[::2]))


def too_deep(value: object) -> bool:
    """Whether lists and objects in *value* are nested more than `MAX_DEPTH` deep."""
    level = _containers_in([value])
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = _containers_in(_items(level))
    return bool(level)


def check_bounds(content: Mapping[str, Any]) -> None:
    """Raise `ApiError` if *content* has too many values, or one list or object too many items."""
    if len(content) > MAX_ITEMS:
        raise bad_request(f"{len(content)} parameters: at most {MAX_ITEMS} are allowed")
    values = 0
    for name, value in content.items():
        level = _containers_in([value])
        while level:
            if (longest := max(map(len, level))) > MAX_ITEMS:
                message = (
                    f"{name} has a list or an object of {longest} items: at most {MAX_ITEMS} are"
                    " allowed"
                )
                raise bad_request(message, name)
            values += sum(map(len, level))
            if values > MAX_VALUES:
                message = (
                    f"{name}: the request has more than {MAX_VALUES} values; write long texts as"
                    " one value"
                )
                raise bad_request(message, name)
            level = _containers_in(_items(level))


def _containers_in(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) in (list, dict)]


def _items(containers: Iterable[Any]) -> Iterable[Any]:
    for container in containers:
        yield from container.values() if isinstance(container, dict) else container


class Options(BaseModel):
    """An object whose unknown fields are refused, and of which no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Part(Options):
    """
    A part of a request. What is null counts as left out, as clients send back all fields they know.
    """

    cache_control: Any = None
    """A hint for Anthropic's prefix caches; it has no effect."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, part: object) -> object:
        if not isinstance(part, dict):
            return part
        fields = cast("dict[str, Any]", part)
        if None not in fields.values():
            return fields
        known = cls.model_fields
        return {name: item for name, item in fields.items() if item is not None or name in known}


class Schema(Part):
    """A part with a JSON schema, its *rules*."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), populate_by_name=True
    )


Rules: TypeAlias = Annotated[dict[str, Any], Field(alias="schema")]
"""A JSON schema; the name of its field, ``schema``, is a method of every part."""


class NamedSchema(Schema):
    """A JSON schema with a name."""

    name: str
    description: str | None = None
    rules: Rules
    strict: bool | None = None


def kind_of(value: object) -> object:
    """
    Return the type that *value*, a part that is not validated yet, says it has; None if it says
    none.
    """
    return cast("dict[str, Any]", value).get("type") if isinstance(value, dict) else None


def parts_of(content: object) -> list[object]:
    """Return the parts of *content*; none if it is a text."""
    return cast("list[object]", content) if isinstance(content, list) else []


def only_text(content: object, kinds: Collection[str] = ("text",)) -> object:
    """
    Return *content* if all its parts are of these *kinds* of text. Raise `ValueError` with a cure.
    """
    for part in parts_of(content):
        if (kind := kind_of(part)) not in kinds:
            raise ValueError(
                f"a part of type {kind!r}: the methods read text only; send text parts, or {SERVED}"
            )
    return content


class TextPart(Part):
    """A text part of a message. A part without a text is dropped."""

    type: Literal["text", "input_text", "output_text"]
    text: str | None
    annotations: Items[Any] | None = None
    """Of an earlier answer; they are dropped, like its log-probabilities."""
    logprobs: Items[Any] | None = None
    """Of an earlier answer; they are dropped."""
    prompt_cache_breakpoint: Any = None
    """A hint for prefix caches; it has no effect."""
    parsed: Any = None
    """What OpenAI's SDK parsed of the text; it is dropped."""


class RefusalPart(Part):
    """The part of an earlier answer that says why there is none."""

    type: Literal["refusal"]
    refusal: str | None

    @property
    def text(self) -> str | None:
        return self.refusal


class ThinkingPart(Part):
    """Thinking within the text of an earlier answer, as Mistral's models have it."""

    type: Literal["thinking"]
    thinking: str
    closed: bool | None = None
    """Whether the thinking was complete; it has no effect."""

    @property
    def text(self) -> str:
        return self.thinking


TEXT_KINDS = ("text", "input_text", "output_text", "refusal", "thinking")
"""The kinds of parts that vLLM reads as text in its chat API."""


def _text_parts(content: object) -> object:
    """
    Return *content* with a part for each text in its list. Raise `ValueError` for other parts than
    text.
    """
    if not isinstance(content, list):
        return content
    parts = [
        {"type": "text", "text": part} if isinstance(part, str) else part
        for part in cast("list[object]", content)
    ]
    return only_text(parts, TEXT_KINDS)


AnyTextPart: TypeAlias = Annotated[
    TextPart | RefusalPart | ThinkingPart, Field(discriminator="type")
]
Content: TypeAlias = Annotated[str | Items[AnyTextPart], BeforeValidator(_text_parts)]


class Textual(Protocol):
    """A part with a text."""

    @property
    def text(self) -> str | None: ...


def joined_text(content: str | Sequence[Textual], separator: str = "\n") -> str:
    """Return the text of *content*, whose parts are joined as vLLM joins them."""
    if isinstance(content, str):
        return content
    return separator.join([part.text for part in content if part.text is not None])


BILLING = "x-anthropic-billing-header"
"""
The beginning of a system text that Claude Code changes with every request, so that no prefix cache
could hit.
"""


def without_billing(text: str) -> str:
    """Return the *text* of a system message without the line of Claude Code's billing header."""
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def arguments_object(value: Any) -> str:
    """
    Return the arguments of a call in a history as the text of a JSON object: chat templates read
    nothing else.

    No arguments are an empty object, as for vLLM. A text of more than `MAX_VALUES` lists, and what
    is no object, as a number or JSON that was cut off, is kept as the only argument: an answer may
    have it, and clients send it back.
    """
    text: str = value if isinstance(value, str) else json_text(value)
    if not has_arguments(text):
        return "{}"
    parsed: Any = text
    with suppress(ValueError):
        if _containers(text.encode()) <= MAX_VALUES and not too_deep(read := read_json(text)):
            parsed = read
    return text if isinstance(parsed, dict) else json_text({"arguments": parsed})


def has_arguments(text: str) -> bool:
    """Whether *text*, which a model wrote as the arguments of a call, is more than nothing."""
    return text.strip() not in ("", "null")


Arguments: TypeAlias = Annotated[str, BeforeValidator(arguments_object, json_schema_input_type=Any)]


class CalledFunction(Part):
    """
    The tool that an earlier answer called, perhaps by a name that no tool has, with its arguments
    as JSON text.
    """

    name: str
    arguments: Arguments = "{}"
    parsed_arguments: Any = None  # by OpenAI's SDK


class ToolCallPart(Part):
    """A call of a tool in an earlier answer; *index* is that of a streamed one, and is dropped."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


class FunctionPart(Part):
    """
    What the models read about a function; *strict* asks the server to keep its arguments to the
    schema.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, populate_by_name=True, serialize_by_alias=True
    )

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    """Whether a search has to find the tool first; the models read about every tool."""
    returns: Annotated[dict[str, Any] | None, Field(alias="return")] = None
    """The schema of the result, which transformers writes; no template of vLLM gets it."""

    @property
    def tool(self) -> Tool:
        parameters = None
        if self.parameters is not None:
            parameters = json_text(self.parameters)
        return Tool(self.name, self.description, parameters, self.strict)


def only_functions(tool: object) -> object:
    """Refuse the tools that a service would have to run itself."""
    if (kind := kind_of(tool)) not in ("function", None):
        raise ValueError(f"a tool of the type {kind!r}: {FUNCTIONS}")
    return tool


class ToolPart(Part):
    """A tool that the answer may call; the client runs it."""

    type: Literal["function"]
    function: FunctionPart
    defer_loading: bool | None = None
    """As in the function."""


class FunctionTool(FunctionPart):
    """A tool that the answer may call, in the form of the Responses API; the client runs it."""

    type: Literal["function"]


Offered: TypeAlias = Annotated[
    list[Annotated[T, BeforeValidator(only_functions)]], Field(max_length=MAX_TOOLS, fail_fast=True)
]


class NamedFunction(Part):
    """The name of a function."""

    name: Name


class NamedTool(Part):
    """The tool that the answer has to call."""

    type: Literal["function"]
    function: NamedFunction


class PlainText(Part):
    """An answer in free text."""

    type: Literal["text"]


class AnyJson(Part):
    """An answer that is any JSON object."""

    type: Literal["json_object"]


def any_json(format: PlainText | AnyJson | None) -> Literal["json"] | None:
    """Return the format of an answer that is any JSON object, if *format* asks for it."""
    return "json" if isinstance(format, AnyJson) else None


def _few(delimiter: str | list[str]) -> str | list[str]:
    texts = [delimiter] if isinstance(delimiter, str) else delimiter
    if len(texts) > MAX_DELIMITERS or any(len(text) > MAX_DELIMITER for text in texts):
        raise ValueError(f"at most {MAX_DELIMITERS} texts of at most {MAX_DELIMITER} characters")
    return delimiter


class BudgetOptions(Options):
    """Limits of this run; those left out are as configured."""

    tokens: Positive | None = None
    steps: Positive | None = None
    seconds: Seconds | None = None
    answer: Positive | None = None


P = TypeVar("P", bound=Options)
NARROWER: Mapping[str, Any] = {
    "ahead": Annotated[Count, Field(le=64)],
    "delimiter": Annotated[Delimiter, AfterValidator(_few)],
}
"""
The types of options of which a client may not choose every value that the service's own settings
may have.
"""


def _with_run_options(model: type[P]) -> type[P]:
    """
    Add to *model* the options of a run that a request may set. A request may leave each of them
    out.
    """
    types = option_types() | dict(NARROWER)
    fields: dict[str, Any] = {
        name: (types[name] | None, None)
        for name in service_options()
        if name not in model.model_fields
    }
    return create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
    )


@_with_run_options
class StepspecOptions(Options):
    """
    The options that only this service has: the object ``stepspec``, which clients send in
    ``extra_body``.

    The fields of `RunOptions` that a request may set are added to those below.
    """

    options: dict[str, Any] | None = None
    budget: BudgetOptions | None = None
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    What a request wants, whatever its API is. Fields that end in *_name* are the names of
    parameters, for errors.

    *tokens* is the limit of the whole answer, *thinking* that of its thinking, and *least* its
    fewest tokens. With *rest_for_answer*, tokens that the *effort* takes from the thinking are
    added to the answer.
    """

    conversation: tuple[Message, ...]
    conversation_name: str = "messages"
    tokens: int | None = None
    tokens_name: str = "max_tokens"
    thinking: int | None = None
    least: int | None = None
    effort: Effort | None = None
    stops: Sequence[str] = ()
    format: Format | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    tool_named: bool = False
    """Whether *tool_choice* is the name of a tool."""

    parallel: bool = True
    choices: int = 1
    rest_for_answer: bool = False


class Request(Part):
    """A request to a method."""

    stepspec: StepspecOptions | None = None

    @property
    def overrides(self) -> StepspecOptions:
        return self.stepspec or StepspecOptions()

    @property
    def end_user(self) -> str | None:
        """Who the client says the request is for, for the log."""
        return getattr(self, "safety_identifier", None) or getattr(self, "user", None)

    def place_of_thinking(self, usual: Thinking) -> Thinking:
        """
        Where the reply has the thinking; *usual* is the place that the service has configured.
        """
        return self.overrides.thinking or usual

    @property
    def wanted(self) -> Wanted:
        """What the request wants. Raise `ApiError` if its fields contradict each other."""
        raise NotImplementedError


class OpenaiRequest(Request):
    """The fields that both of OpenAI's APIs have."""

    model: ModelName
    stream: bool | None = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    parallel_tool_calls: bool | None = None

    # Hints that do not change the answer.
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    prompt_cache_options: dict[str, Any] | None = None

    # Load generators send them. A run ends with its answer, or with its budget: what two models
    # would write beyond the answer says nothing about a method.
    ignore_eos: bool | None = None
    min_tokens: NotNegative | None = None

    # Features that no method has; clients may send the values that turn them off.
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
