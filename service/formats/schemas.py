"""
What the bodies of all requests share: bounds, parts, texts, tools, and the object ``stepspec``.

The size of a body is checked before pydantic validates it. Without bounds, a body of 4 MiB with
100,000 wrong values or small lists keeps the process busy for seconds. A request is refused if it
has a value that no method can obey. The error says what to send instead (see `validation`). The
module does no I/O.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from stepspec.orchestrator.chain import Message, Speaker, Tool, ToolCall, Toolset
from stepspec.orchestrator.endpoints.interfaces import Format
from stepspec.orchestrator.json_values import HALF, REPLACEMENT, json_text, read_json
from stepspec.orchestrator.run_options import NOT_IN_REQUESTS, Count, Delimiter, RunOptions

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
"""The largest number of characters in all delimiters together."""
NON_STRUCTURAL_BYTES = bytes([byte for byte in range(256) if byte not in b'"[]{}'])
"""All bytes except the quote and the brackets of lists and objects."""
NO_TOOLS = Toolset(())

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


def _whole_characters(text: str) -> str:
    return text if text.isascii() else HALF.sub(REPLACEMENT, text)


Text: TypeAlias = Annotated[str, AfterValidator(_whole_characters)]
"""
A text that the models read, with a replacement character for each lone surrogate.

A lone surrogate is half of a character. No tokenizer can encode half of a character.
"""
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
    if _is_too_large(body):
        raise bad_request(
            f"the body has more than {MAX_VALUES} lists and objects, or is nested more than"
            f" {MAX_DEPTH} deep",
            code="invalid_json",
        )
    try:
        content: object = read_json(body.removeprefix(BOM_UTF8))  # as vLLM reads it
    except ValueError as exc:
        raise bad_request(f"the body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(content, dict):
        raise bad_request("the body has to be a JSON object", code="invalid_json")
    return cast("JsonObject", content)


def _is_too_large(text: bytes) -> bool:
    """
    Return whether a JSON *text* has more than `MAX_VALUES` lists and objects, or is nested more
    than `MAX_DEPTH` deep.

    The text is not parsed: a parser would need seconds to build millions of lists and objects.
    """
    # Drop escaped backslashes first. Then a backslash before a quote always escapes the quote.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(None, NON_STRUCTURAL_BYTES)
    # A string without brackets is now `""`. Drop these, because `split` takes time for each.
    structure = structure.replace(b'""', b"")
    # every second piece is within a string
    brackets = b"".join(structure.split(b'"')[::2])
    if len(brackets) > 2 * MAX_VALUES:
        return True
    depths = accumulate([1 if bracket in b"[{" else -1 for bracket in brackets])
    return max(depths, default=0) > MAX_DEPTH


def check_bounds(content: JsonFields) -> None:
    """Raise `ApiError` if *content* has too many values, or a list that is too long."""
    if len(content) > MAX_ITEMS:
        raise bad_request(f"{len(content)} parameters: at most {MAX_ITEMS} are allowed")
    values = 0
    for name, value in content.items():
        level: list[Any] = [value]
        while containers := [item for item in level if type(item) in (list, dict)]:
            values += sum(map(len, containers))
            if values > MAX_VALUES or max(map(len, containers)) > MAX_ITEMS:
                raise bad_request(
                    f"{name}: a request may have at most {MAX_VALUES} JSON values (texts, numbers,"
                    f" lists, objects), and a list or an object at most {MAX_ITEMS} items; join"
                    " texts that belong together",
                    name,
                )
            level = []
            for container in containers:
                level += container.values() if isinstance(container, dict) else container


class Options(BaseModel):
    """An object that refuses unknown fields, and values of a wrong type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


P = TypeVar("P", bound=Options)


def _with_fields(fields: JsonFields) -> Callable[[type[P]], type[P]]:
    """Return a decorator that adds *fields* to a model. Each field has a type and a default."""

    def decorate(model: type[P]) -> type[P]:
        return create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **fields,
        )

    return decorate


def accepting(*names: str) -> Callable[[type[P]], type[P]]:
    """
    Return a decorator that adds fields called *names* to a model.

    Every value of these fields is accepted, and has no effect.
    """
    return _with_fields({name: (Any, Field(None, exclude=True)) for name in names})


@accepting("cache_control")  # a hint for Anthropic's prefix caches
class Part(Options):
    """
    A part of a request.

    A field that is null counts as left out, because clients send back every field that they know.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, part: object) -> object:
        if not isinstance(part, dict):
            return part
        fields = cast("JsonObject", part)
        return {name: value for name, value in fields.items() if value is not None}


@accepting(
    "description",
    "strict",  # without effect: the answer always has to match the schema
)
class Schema(Part):
    """
    A JSON schema in the field ``schema``.

    pydantic's models have a method ``schema``, so the attribute has another name.
    """

    model_config = ConfigDict(protected_namespaces=())

    name: str | None = None
    """The client's name for the schema. It has no effect."""
    wanted_format: Annotated[JsonObject, Field(alias="schema")]
    """The JSON schema, which is the value for `Wanted.format`."""


class SchemaFormat(Schema):
    """An answer that is JSON and matches a schema."""

    type: Literal["json_schema"]
    """The kind of the format."""


class PlainFormat(Part):
    """An answer that is a free text, or any JSON object."""

    type: Literal["text", "json_object"]
    """The kind of the format."""

    @property
    def wanted_format(self) -> Format | None:
        """The value for `Wanted.format`."""
        return "json" if self.type == "json_object" else None


@accepting(
    "annotations",  # of an earlier answer
    "logprobs",  # of an earlier answer
    "closed",  # whether the thinking was complete
    "prompt_cache_breakpoint",  # a hint for prefix caches
    "parsed",  # OpenAI's SDK adds the value that it parsed from the text
)
class TextPart(Part):
    """
    A part of a message that the models read as text, as in vLLM.

    A part ``tool_reference`` names a tool that the client found with a tool search. The models read
    the name. The description of the tool is in the list of tools.
    """

    type: Literal["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"]
    """The kind of the part."""
    text: Annotated[
        Text,
        Field(validation_alias=AliasChoices("text", "refusal", "thinking", "tool_name", "name")),
    ] = ""
    """The text, in a field that depends on the kind."""


def _text_parts(content: object) -> list[object]:
    """Return *content* as a list of parts. Each plain text becomes a part."""
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise ValueError("Input should be a valid string or a valid list")
    return [
        {"type": "text", "text": part} if isinstance(part, str) else part
        for part in cast("list[object]", content)
    ]


Content: TypeAlias = Annotated[
    Items[TextPart],
    BeforeValidator(_text_parts, json_schema_input_type=str | list[str | TextPart]),
]
"""The text of a message, or its parts."""


def joined_text(content: Sequence[TextPart]) -> str:
    """Join the texts of *content*, as vLLM does. Empty texts are dropped."""
    return "\n".join([part.text for part in content if part.text])


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


def spoken(role: Speaker | Literal["developer"], content: Sequence[TextPart]) -> Message:
    """
    Return the message of a speaker with this *role*. A developer speaks for the system.

    As in vLLM, the billing header is removed from each part of a system message.
    """
    speaker: Speaker = "system" if role == "developer" else role
    if speaker == "system":
        return Message(speaker, system_text([part.text for part in content]))
    return Message(speaker, joined_text(content))


def merged(messages: Iterable[Message], *roles: Speaker) -> Iterator[Message]:
    """Join consecutive *messages* of the same role, if it is one of *roles*."""
    for role, group in groupby(messages, lambda message: message.role):
        if role not in roles:
            yield from group
            continue
        members = [*group]
        yield Message(
            role,
            "\n".join(filter(None, [message.content for message in members])),
            tuple([call for message in members for call in message.calls]),
            reasoning="".join([message.reasoning for message in members]),
        )


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
    if _is_too_large(text.encode(errors="replace")):
        return text
    try:
        value: object = read_json(text)
    except ValueError:
        return text
    return value


def has_arguments(text: str) -> bool:
    """Return whether *text* has arguments of a call. An empty text and ``null`` have none."""
    return text.strip() not in ("", "null")


Arguments: TypeAlias = Annotated[
    Text, BeforeValidator(arguments_object, json_schema_input_type=Any)
]
"""The arguments of an earlier call, as the text of a JSON object."""


@accepting("parsed_arguments")  # OpenAI's SDK adds the value that it parsed from the arguments
class CalledFunction(Part):
    """The tool that an earlier answer called."""

    name: Text
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


@accepting(
    "defer_loading",  # whether the model has to search for the tool: here the model reads all tools
    "return",  # the JSON schema of the result, which the transformers library sends
)
class Function(Part):
    """A function that the answer may call."""

    name: Name
    """The name of the function."""
    description: Text | None = None
    """What the function does."""
    parameters: JsonObject | None = None
    """The JSON schema of the arguments. None: the function takes no arguments."""
    strict: bool | None = None
    """Whether the arguments of a call have to match their schema."""

    @property
    def tool(self) -> Tool:
        parameters = None if self.parameters is None else json_text(self.parameters)
        return Tool(self.name, self.description, parameters, self.strict)


@accepting("defer_loading")
class ToolPart(Part):
    """A tool that the answer may call, or that it has to call. The client runs it."""

    type: Literal["function"] = "function"
    """The kind of the tool."""
    function: Function
    """The function."""


Offered: TypeAlias = Annotated[list[T], Field(max_length=MAX_TOOLS, fail_fast=True)]
"""The tools of a request."""


def _bounded_delimiter(delimiter: str | list[str]) -> str | list[str]:
    texts = [delimiter] if isinstance(delimiter, str) else delimiter
    if len(texts) > MAX_DELIMITERS or len("".join(texts)) > MAX_DELIMITER_LENGTH:
        raise ValueError(
            f"at most {MAX_DELIMITERS} texts of together {MAX_DELIMITER_LENGTH} characters"
        )
    return delimiter


class BudgetOptions(Options):
    """Limits of one run. None: the limit in the settings."""

    steps: Positive | None = None
    """The most steps of the thinking."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most seconds of the whole run."""
    answer: Positive | None = None
    """The tokens that are reserved for the answer."""


def _run_options() -> JsonObject:
    """Return the run options that a request can set, as fields. Each can be left out."""
    types: JsonObject = {
        name: field.rebuild_annotation() for name, field in RunOptions.model_fields.items()
    }
    # In a request, the limits of `ahead` and `delimiter` are lower than in the settings.
    types["ahead"] = Annotated[Count, Field(le=64)]
    types["delimiter"] = Annotated[Delimiter, AfterValidator(_bounded_delimiter)]
    left_out = NOT_IN_REQUESTS | {"options"}
    return {name: (kind | None, None) for name, kind in types.items() if name not in left_out}


@_with_fields(_run_options())
class StepspecOptions(Options):
    """
    The object ``stepspec`` of a request, with the options that no other API has.

    Users of OpenAI's SDK put this object into ``extra_body``. `_run_options` adds the fields of
    `RunOptions` that a request can set.
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
    thinking: int | None = None
    """The most tokens of the thinking. None: only the other limits hold."""
    effort: Effort | None = None
    """The effort of the thinking. None: the whole budget."""
    stops: Sequence[str] = ()
    """The texts that end the answer."""
    format: Format | None = None
    """The form of the answer. None: free text."""
    tools: Toolset = NO_TOOLS
    """The tools that the answer may call."""
    choices: int = 1
    """The number of answers to the conversation."""


class Request(Part):
    """The body of a request that a method answers."""

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
    # load generators send them; no effect: a run always ends with its answer or its budget
    "ignore_eos",
    "min_tokens",
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
