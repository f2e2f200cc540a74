"""
What the bodies of all requests share: bounds, parts, texts, tools, and the object ``stepspec``.

The size of a body is checked before pydantic validates it. Without bounds, a body of 4 MiB with
100,000 wrong values or small lists keeps the process busy for seconds. A request is refused if it
has a value that no method can obey. The error says what to send instead (see `validation`). The
module does no I/O.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, cast

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
from stepspec.orchestrator.json_values import HALF, REPLACEMENT, json_text, read_json
from stepspec.orchestrator.run_options import Count, Delimiter, option_types, service_options

from ..errors import bad_request
from ..json_types import JsonFields, JsonObject
from ..settings import Thinking

MAX_DEPTH = 128
"""
The largest number of nested lists and objects in a request. orjson writes at most 254 levels, and
stepspec adds a few levels before it forwards a request.
"""
MAX_ITEMS = 4096
"""The largest number of items in one list or object."""
MAX_VALUES = 65_536
"""The largest number of values in a request. Their validation takes a tenth of a second."""
MAX_TOOLS = 128
"""The largest number of tools in a request, as in OpenAI's API."""
MAX_DELIMITERS = 8
"""The largest number of step delimiters in a request."""
MAX_DELIMITER_LENGTH = 1024
"""The largest number of characters in one delimiter."""
NON_STRUCTURAL_BYTES = bytes([byte for byte in range(256) if byte not in b'"[{'])
"""All bytes except the quote, and the brackets that begin a list or an object."""
FUNCTION_TOOLS_HINT = (
    "send tools of the type function; the client runs them and sends their results back"
)
SERVED_MODEL_HINT = (
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
"""The speaker of a message, by its role in a request."""

T = TypeVar("T")
Items: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""A list whose validation stops at the first wrong item: 100,000 errors would take seconds."""


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]
"""An integer. ``1.0`` and ``1e0`` are integers, too."""
Positive: TypeAlias = Annotated[Whole, Field(ge=1)]


def _none_for_empty(value: object) -> object:
    return None if value in ([], {}, "") else value


Nothing: TypeAlias = Annotated[None, BeforeValidator(_none_for_empty)]
"""A field that the client has to leave out, or to leave empty."""

Label: TypeAlias = Annotated[str, Field(max_length=512)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
ModelName: TypeAlias = Annotated[str, Field(min_length=1, max_length=512)]
Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)]
Stops: TypeAlias = Annotated[list[Stop], Field(max_length=4, fail_fast=True)]
"""Stop strings. OpenAI and vLLM allow four."""
Effort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity: TypeAlias = Literal["low", "medium", "high"] | None


def parse_json(body: bytes) -> JsonObject:
    """Return the JSON object in *body*. Raise `ApiError` if *body* is no object or is too large."""
    containers = _count_containers(body)
    if containers > MAX_VALUES:
        raise bad_request(
            f"the body has more than {MAX_VALUES} lists and objects", code="invalid_json"
        )
    try:
        content: object = read_json(body.removeprefix(BOM_UTF8))  # as vLLM reads it
    except ValueError as exc:
        raise bad_request(f"the body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(content, dict):
        raise bad_request("the body has to be a JSON object", code="invalid_json")
    if containers > MAX_DEPTH and too_deep(cast("object", content)):
        raise bad_request(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    return cast("JsonObject", content)


def _count_containers(text: bytes) -> int:
    """
    Return the number of lists and objects in a JSON *text* without parsing it.

    A parser would need seconds to build millions of lists and objects.
    """
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # keep only quotes and opening brackets
    structure = unescaped.translate(None, NON_STRUCTURAL_BYTES)
    # drop `""`, which now is a string without brackets: `split` takes time for each string
    structure = structure.replace(b'""', b"")
    # every second piece is within a string
    outside_of_strings = structure.split(b'"')[::2]
    return sum(map(len, outside_of_strings))


def too_deep(value: object) -> bool:
    """Return whether lists and objects in *value* are nested more than `MAX_DEPTH` deep."""
    levels = islice(_levels(value), MAX_DEPTH + 1)
    return sum(1 for _ in levels) > MAX_DEPTH


def check_bounds(content: JsonFields) -> None:
    """Raise `ApiError` if *content* has too many values, or a list that is too long."""
    if len(content) > MAX_ITEMS:
        raise bad_request(f"{len(content)} parameters: at most {MAX_ITEMS} are allowed")
    values = 0
    for name, value in content.items():
        for level in _levels(value):
            sizes = [len(container) for container in level]
            longest = max(sizes)
            if longest > MAX_ITEMS:
                raise bad_request(
                    f"{name} has a list or an object of {longest} items: at most {MAX_ITEMS} are"
                    " allowed",
                    name,
                )
            values += sum(sizes)
            if values > MAX_VALUES:
                raise bad_request(
                    f"{name}: the request has more than {MAX_VALUES} JSON values (texts, numbers,"
                    " lists, objects); join texts that belong together",
                    name,
                )


def _levels(value: object) -> Iterator[list[Any]]:
    """
    Yield the lists and objects in *value*, level by level.

    The first level is *value* itself, the second level is what *value* contains, and so on.
    """
    values: Iterable[Any] = [value]
    while containers := [item for item in values if type(item) in (list, dict)]:
        yield containers
        values = _items(containers)


def _items(containers: Iterable[Any]) -> Iterable[Any]:
    for container in containers:
        if isinstance(container, dict):
            yield from container.values()
        else:
            yield from container


class Options(BaseModel):
    """An object that refuses unknown fields, and values of a wrong type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


P = TypeVar("P", bound=Options)


def _extended(model: type[P], fields: JsonFields) -> type[P]:
    """Return a subclass of *model* with further *fields*. Each field has a type and a default."""
    return create_model(
        model.__name__,
        __base__=model,
        __doc__=model.__doc__,
        __module__=model.__module__,
        **fields,
    )


def accepting(*names: str) -> Callable[[type[P]], type[P]]:
    """
    Return a decorator that adds fields called *names* to a model.

    Every value of these fields is accepted, and has no effect.
    """

    def decorate(model: type[P]) -> type[P]:
        return _extended(model, dict.fromkeys(names, (Any, None)))

    return decorate


@accepting("cache_control")  # a hint for Anthropic's prefix caches
class Part(Options):
    """
    A part of a request.

    A field that is null counts as left out, because clients send back every field that they know.
    A required field keeps its null.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, part: object) -> object:
        if not isinstance(part, dict):
            return part
        fields = cast("JsonObject", part)
        if None not in fields.values():
            return fields
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        return {
            name: value for name, value in fields.items() if value is not None or name in required
        }


JsonSchema: TypeAlias = Annotated[JsonObject, Field(alias="schema")]
"""
A JSON schema in the field ``schema`` of a request. pydantic's models have a method ``schema``, so
the attribute has another name: ``wanted_format``.
"""


class Schema(Part):
    """A part with a JSON schema in its field ``schema``."""

    model_config = ConfigDict(protected_namespaces=(), populate_by_name=True)


@accepting(
    "description",
    "strict",  # without effect: the answer always has to match the schema
)
class NamedSchema(Schema):
    """A JSON schema with a name."""

    name: str
    """The client's name for the schema, without effect."""
    wanted_format: JsonSchema
    """The JSON schema, which is the value for `Wanted.format`."""


def kind_of(value: object) -> object:
    """Return the field ``type`` of *value*, which is not validated yet. None: there is no type."""
    if isinstance(value, dict):
        return cast("JsonObject", value).get("type")
    return None


def refusing_others(
    noun: str,
    *kinds: str,
    hint: str | Callable[[str], str],
) -> BeforeValidator:
    """
    Return a validator that refuses a value whose field ``type`` is none of *kinds*.

    *noun* is the word for the value in the error. The error ends with *hint*. If *hint* is a
    function, the function is called with the type, and returns the hint. A value without a type is
    accepted.
    """

    def check(value: object) -> object:
        kind = kind_of(value)
        if kind is not None and kind not in kinds:
            advice = hint if isinstance(hint, str) else hint(str(kind))
            raise ValueError(f"a {noun} of type {kind!r}: {advice}")
        return value

    return BeforeValidator(check)


@accepting(
    "annotations",  # of an earlier answer
    "logprobs",  # of an earlier answer
    "prompt_cache_breakpoint",  # a hint for prefix caches
    "parsed",  # OpenAI's SDK adds the value that it parsed from the text
)
class TextPart(Part):
    """A text part of a message."""

    type: Literal["text", "input_text", "output_text"]
    """The kind of the part."""
    text: str | None
    """The text. None: the part is dropped."""


class RefusalPart(Part):
    """A part of an earlier reply. Its text says why the model refused to answer."""

    type: Literal["refusal"]
    """The kind of the part."""
    refusal: str | None
    """The reason. None: the part is dropped."""

    @property
    def text(self) -> str | None:
        return self.refusal


@accepting("closed")  # whether the thinking was complete
class ThinkingPart(Part):
    """Thinking within the text of an earlier answer, as in Mistral's API."""

    type: Literal["thinking"]
    """The kind of the part."""
    thinking: str
    """The text of the thinking."""

    @property
    def text(self) -> str:
        return self.thinking


class ToolReferencePart(Part):
    """
    A tool that the client found with a tool search.

    The models read only the name of the tool here. The list of tools describes the tool.
    """

    type: Literal["tool_reference"]
    """The kind of the part."""
    tool_name: Name | None = None
    """The name of the tool."""
    name: Name | None = None
    """The name of the tool, in the field that vLLM's clients use."""

    @property
    def text(self) -> str | None:
        return self.tool_name or self.name


TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking", "tool_reference")
"""The types of parts that vLLM reads as text."""


def _text_parts(content: object) -> object:
    """
    Return *content*. If *content* is a list, turn each plain text in the list into a part.

    Raise `ValueError`, with a hint, for a part that vLLM does not read as text.
    """
    if not isinstance(content, list):
        return content
    parts: list[object] = []
    for part in cast("list[object]", content):
        kind = kind_of(part)
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif kind in TEXT_PARTS:
            parts.append(part)
        else:
            raise ValueError(
                f"a part of type {kind!r}: the methods read text only; send text parts, or"
                f" {SERVED_MODEL_HINT}"
            )
    return parts


Content: TypeAlias = Annotated[
    str
    | Items[
        Annotated[
            TextPart | RefusalPart | ThinkingPart | ToolReferencePart,
            Field(discriminator="type"),
        ]
    ],
    BeforeValidator(_text_parts),
]


class Textual(Protocol):
    """A part with a text."""

    @property
    def text(self) -> str | None: ...


def joined_text(content: str | Sequence[Textual], separator: str = "\n") -> str:
    """Join the texts of *content* with *separator*, as vLLM does."""
    if isinstance(content, str):
        return content
    return separator.join([part.text for part in content if part.text is not None])


BILLING_HEADER = "x-anthropic-billing-header"
"""
The beginning of the line that Claude Code puts before its system text. The line changes with every
request. With this line, a prefix cache would never have the prompt.
"""


def without_billing(text: str) -> str:
    """Return the *text* of a system message without Claude Code's billing header."""
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def system_text(texts: Iterable[str]) -> str:
    """Return *texts*, without billing headers, as the text of one system message."""
    return "\n".join(filter(None, map(without_billing, texts)))


def spoken(role: str, content: str | Sequence[Textual]) -> tuple[Speaker, str]:
    """
    Return the speaker of a message with this *role*, and the text of the message.

    As in vLLM, the billing header is removed from each part of a system message.
    """
    speaker = SPEAKERS[role]
    if speaker != "system":
        return speaker, joined_text(content)
    texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
    return speaker, system_text(texts)


def arguments_object(value: Any) -> str:
    """
    Return the arguments of an earlier call as the text of a JSON object.

    Chat templates accept only objects. As in vLLM, missing arguments are written as ``{}``. A model
    can also write other arguments: a number, JSON that was cut off, or more than `MAX_VALUES`
    lists. Clients send these arguments back. The arguments then become the value of the key
    ``arguments`` of a new object.
    """
    text: str = value if isinstance(value, str) else json_text(value)
    if not has_arguments(text):
        return "{}"
    parsed = _small_json(text)
    return text if isinstance(parsed, dict) else json_text({"arguments": parsed})


def _small_json(text: str) -> object:
    """Return the JSON value in *text*. If *text* is no JSON or is too large, return *text*."""
    if _count_containers(text.encode(errors="replace")) > MAX_VALUES:
        return text
    try:
        value: object = read_json(text)
    except ValueError:
        return text
    return text if too_deep(value) else value


def has_arguments(text: str) -> bool:
    """Return whether *text* has arguments of a call. An empty text and ``null`` have none."""
    return text.strip() not in ("", "null")


Arguments: TypeAlias = Annotated[str, BeforeValidator(arguments_object, json_schema_input_type=Any)]
"""The arguments of an earlier call, as the text of a JSON object."""


@accepting("parsed_arguments")  # OpenAI's SDK adds the value that it parsed from the arguments
class CalledFunction(Part):
    """The tool that an earlier answer called."""

    name: str
    """The name of the tool. Models sometimes call tools that do not exist."""
    arguments: Arguments = "{}"
    """The arguments, as the text of a JSON object."""


@accepting("index")  # the position of the call in the earlier answer
class ToolCallPart(Part):
    """A call of a tool in an earlier answer."""

    id: CallId
    """The id of the call. The result of the call has the same id."""
    type: Literal["function"] = "function"
    """The kind of the tool."""
    function: CalledFunction
    """The tool, with the arguments."""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


class Function(Part):
    """The fields of a function that all APIs share. Subclasses add the schema of the arguments."""

    name: Name
    """The name of the function."""
    description: str | None = None
    """What the function does."""
    strict: bool | None = None
    """Whether the arguments of a call have to match their schema."""

    def with_schema(self, schema: JsonObject | None) -> Tool:
        """Return the tool. *schema* is for its arguments. None: the tool takes no arguments."""
        parameters = None if schema is None else json_text(schema)
        return Tool(self.name, self.description, parameters, self.strict)


@accepting(
    "defer_loading",  # whether the model has to search for the tool: here the model reads all tools
    "return",  # the JSON schema of the result, which the transformers library sends
)
class FunctionPart(Function):
    """A function, as OpenAI's APIs describe it."""

    parameters: JsonObject | None = None
    """The JSON schema of the arguments. None: the function takes no arguments."""

    @property
    def tool(self) -> Tool:
        return self.with_schema(self.parameters)


@accepting("defer_loading")
class ToolPart(Part):
    """A tool that the answer may call. The client runs it."""

    type: Literal["function"] = "function"
    """The kind of the tool."""
    function: FunctionPart
    """The function."""


OPENAI_SERVER_FIELDS = (
    "allowed_callers",  # the programs that may call the tool
    "async",  # whether the answer goes on before the result
    "output_schema",
)
"""The fields of a tool that concern OpenAI's own server. They have no effect here."""


@accepting(*OPENAI_SERVER_FIELDS)
class FunctionTool(FunctionPart):
    """A tool that the answer may call, as the Responses API describes it. The client runs it."""

    type: Literal["function"]
    """The kind of the tool."""


Offered: TypeAlias = Annotated[list[T], Field(max_length=MAX_TOOLS, fail_fast=True)]
"""The tools of a request."""


class NamedFunction(Part):
    """The name of a function."""

    name: Name
    """The name."""


class NamedTool(Part):
    """The tool that the answer has to call."""

    type: Literal["function"] = "function"
    """The kind of the tool."""
    function: NamedFunction
    """The name of the tool."""


class PlainText(Part):
    """An answer in free text."""

    type: Literal["text"]
    """The kind of the format."""
    wanted_format: ClassVar[None] = None
    """The value for `Wanted.format`: free text."""


class AnyJson(Part):
    """An answer that is any JSON object."""

    type: Literal["json_object"]
    """The kind of the format."""
    wanted_format: ClassVar[Literal["json"]] = "json"
    """The value for `Wanted.format`: any JSON object."""


def _bounded_delimiter(delimiter: str | list[str]) -> str | list[str]:
    texts = [delimiter] if isinstance(delimiter, str) else delimiter
    longest = max(map(len, texts), default=0)
    if len(texts) > MAX_DELIMITERS or longest > MAX_DELIMITER_LENGTH:
        raise ValueError(
            f"at most {MAX_DELIMITERS} texts of at most {MAX_DELIMITER_LENGTH} characters"
        )
    return delimiter


class BudgetOptions(Options):
    """Limits of one run. None: the limit in the settings."""

    tokens: Positive | None = None
    """The most tokens of the thinking and the answer together."""
    steps: Positive | None = None
    """The most steps of the thinking."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most seconds of the whole run."""
    answer: Positive | None = None
    """The tokens that are reserved for the answer."""


def _with_run_options(model: type[P]) -> type[P]:
    """Return *model* with the run options that a request can set. Each can be left out."""
    # the limits of these two options are lower in a request than in the settings
    types: JsonObject = option_types() | {
        "ahead": Annotated[Count, Field(le=64)],
        "delimiter": Annotated[Delimiter, AfterValidator(_bounded_delimiter)],
    }
    fields: JsonObject = {
        name: (types[name] | None, None)
        for name in service_options()
        if name not in model.model_fields
    }
    return _extended(model, fields)


@_with_run_options
class StepspecOptions(Options):
    """
    The object ``stepspec`` of a request, with the options that no other API has.

    Users of OpenAI's SDK put this object into ``extra_body``. `_with_run_options` adds the fields
    of `RunOptions` that a request can set.
    """

    options: JsonObject | None = None
    """Options of the method, by name. None: the options in the settings."""
    budget: BudgetOptions | None = None
    """Limits of the run. None: the limits in the settings."""
    thinking: Thinking | None = None
    """The place of the thinking in the reply. None: the place in the settings."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes of a request, in one form for all APIs."""

    conversation: tuple[Message, ...]
    """The messages, in order."""
    conversation_name: str = "messages"
    """The name of the parameter with the conversation, for errors."""
    tokens: int | None = None
    """The most tokens of the thinking and the answer together. None: the limit in the settings."""
    tokens_name: str = "max_tokens"
    """The name of the parameter with the limit of *tokens*, for errors."""
    thinking: int | None = None
    """The most tokens of the thinking. None: only the other limits hold."""
    min_tokens: int | None = None
    """
    The fewest tokens. If *tokens* is lower, the request is refused. Otherwise this has no effect.
    """
    effort: Effort | None = None
    """The effort of the thinking. None: the whole budget."""
    stops: Sequence[str] = ()
    """The texts that end the answer."""
    format: Format | None = None
    """The form of the answer. None: free text."""
    tools: tuple[Tool, ...] = ()
    """The tools that the answer may call."""
    tool_choice: str = "auto"
    """"auto", "required", "none", or the name of the tool that the answer has to call."""
    tool_named: bool = False
    """Whether *tool_choice* is the name of a tool."""
    allowed: tuple[str, ...] = ()
    """The names of the only tools that the answer may call. Empty: all tools are allowed."""
    parallel: bool = True
    """Whether the answer may call several tools."""
    choices: int = 1
    """The number of answers to the conversation."""
    rest_for_answer: bool = False
    """Whether the answer gets the tokens by which *effort* shortens the thinking."""

    def readable(self) -> Wanted:
        """
        Return a copy in which a replacement character stands for each lone surrogate.

        A lone surrogate is half of a character. No tokenizer can encode half of a character.
        """
        return replace(
            self,
            conversation=tuple(map(_readable, self.conversation)),
            tools=tuple(map(_readable, self.tools)),
        )


R = TypeVar("R", Message, ToolCall, Tool)


def _readable(part: R) -> R:
    """Return a copy of *part* without lone surrogates, like `Wanted.readable`."""
    changed: JsonObject = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "calls":
            calls: tuple[ToolCall, ...] = value
            changed[field.name] = tuple([_readable(call) for call in calls])
        elif isinstance(value, str) and not value.isascii():
            changed[field.name] = HALF.sub(REPLACEMENT, value)
    return replace(part, **changed)


class Request(Part):
    """The body of a request to a method."""

    stepspec: StepspecOptions = StepspecOptions()
    """The options that no other API has."""

    @property
    def end_user(self) -> str | None:
        """The client's name for its user, for the log. None: the client sent no name."""
        return getattr(self, "safety_identifier", None) or getattr(self, "user", None)

    def place_of_thinking(self, configured: Thinking) -> Thinking:
        """Return the place of the thinking that the request names, or else *configured*."""
        return self.stepspec.thinking or configured

    @property
    def wanted(self) -> Wanted:
        """What the request asks for. Raise `ApiError` if fields contradict each other."""
        raise NotImplementedError


class ApiRequest(Request):
    """The fields that OpenAI's and Anthropic's APIs share. None: the value in the settings."""

    stream: bool = False
    """Whether the reply is a stream of events."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """The temperature of sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """The probability mass of the likeliest tokens to sample from."""
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    """The number of likeliest tokens to sample from. As in vLLM, 0 and -1 mean all tokens."""


@accepting(
    "prompt_cache_key",  # hints for OpenAI's prefix caches
    "prompt_cache_retention",
    "prompt_cache_options",
    # load generators send it; no effect: a run always ends with its answer or its budget
    "ignore_eos",
)
class OpenaiRequest(ApiRequest):
    """The fields that OpenAI's two APIs share. None: the field was left out."""

    model: ModelName
    """The name of a method or of a served model."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """The least probability of a sampled token, as a share of the highest probability."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """The factor by which tokens that occurred before become less likely. 1 has no effect."""
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    """The seed of sampling."""
    user: Label | None = None
    """The client's name for its user, for the log."""
    safety_identifier: Label | None = None
    """OpenAI's newer name of ``user``."""
    parallel_tool_calls: bool = True
    """Whether the answer may call several tools."""

    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    """OpenAI's class of service, without effect."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] = Field({})
    """Labels that the client chooses. The reply of the Responses API repeats them."""
    min_tokens: Annotated[Whole, Field(ge=0)] | None = None
    """
    The fewest tokens. If the limit of tokens is lower, the request is refused. Otherwise this has
    no effect. Load generators send this field.
    """
