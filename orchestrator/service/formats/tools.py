"""Tools in all APIs: how clients offer them, how calls are read from a history, and how calls are answered with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import BeforeValidator, Field

from ...chain import Tool, ToolCall
from ...events import Calling
from .schemas import CacheablePart, kind_of, too_deep

MAX_TOOLS = 128  # OpenAI's limit
FUNCTIONS = "send tools of the type function; the client runs them and sends their results back"

Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


def arguments_object(value: Any) -> str:
    """
    Return the arguments of a call in a history as the text of a JSON object: chat templates read nothing else.

    No arguments are an empty object, as for vLLM. Anything else that is no object, such as a number or JSON that was
    cut off, is kept as the only argument: an answer may have it, and clients send it back.
    """
    text: str = value if isinstance(value, str) else orjson.dumps(value).decode()
    if not has_arguments(text):
        return "{}"
    try:
        parsed: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = text
    if too_deep(parsed):
        parsed = text
    return text if isinstance(parsed, dict) else orjson.dumps({"arguments": parsed}).decode()


def has_arguments(text: str) -> bool:
    """Whether *text*, which a model wrote as the arguments of a call, is more than nothing."""
    return text.strip() not in ("", "null")


Arguments: TypeAlias = Annotated[str, BeforeValidator(arguments_object, json_schema_input_type=Any)]


class CalledFunction(CacheablePart):
    """The tool that an earlier answer called, with its arguments as JSON text."""

    name: Name
    arguments: Arguments = "{}"


class ToolCallPart(CacheablePart):
    """A call of a tool in an earlier answer; *index* is that of a streamed one, and is dropped."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


class FunctionPart(CacheablePart):
    """What the models read about a function; *strict* asks the server to keep its arguments to the schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        parameters = orjson.dumps(self.parameters).decode() if self.parameters else ""
        return Tool(self.name, self.description or "", parameters, self.strict)


def only_functions(tool: object, kinds: Sequence[str] = ("function",)) -> object:
    """Refuse the tools that a service would have to run itself: those of no type in *kinds*."""
    if (kind := kind_of(tool)) not in (*kinds, None):
        raise ValueError(f"a tool of the type {kind!r}: {FUNCTIONS}")
    return tool


class ToolPart(CacheablePart):
    """A tool that the answer may call; the client runs it."""

    type: Literal["function"]
    function: FunctionPart


class FunctionTool(FunctionPart):
    """A tool that the answer may call, in the form of the Responses API; the client runs it."""

    type: Literal["function"]

    @property
    def tools(self) -> Sequence[Tool]:
        return (self.tool,)


FunctionTools: TypeAlias = Annotated[
    list[Annotated[FunctionTool, BeforeValidator(only_functions)]], Field(max_length=MAX_TOOLS, fail_fast=True)
]


def flat_name(namespace: str | None, name: str) -> str:
    """The name of a tool in a *namespace*, if any, as the models read it; that of vLLM."""
    return f"{namespace}__{name}" if namespace else name


class NamespaceTool(CacheablePart):
    """Tools under a common name, in the form of the Responses API."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    functions: FunctionTools = Field(alias="tools")

    @property
    def tools(self) -> Sequence[Tool]:
        return tuple([replace(each.tool, name=flat_name(self.name, each.name)) for each in self.functions])


class NamedFunction(CacheablePart):
    """The name of a function."""

    name: Name


class NamedTool(CacheablePart):
    """The tool that the answer has to call."""

    type: Literal["function"]
    function: NamedFunction


class ChosenFunction(NamedFunction):
    """The tool that the answer has to call, in the form of the Responses API."""

    type: Literal["function"]


Tools: TypeAlias = Annotated[
    list[Annotated[ToolPart, BeforeValidator(only_functions)]], Field(max_length=MAX_TOOLS, fail_fast=True)
]
_OfferedTool: TypeAlias = Annotated[
    Annotated[FunctionTool | NamespaceTool, Field(discriminator="type")],
    BeforeValidator(partial(only_functions, kinds=("function", "namespace"))),
]
OfferedTools: TypeAlias = Annotated[list[_OfferedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class CallPieces:
    """
    The pieces of an answer's calls as clients may join them to JSON: a call without arguments has ``{}``.

    What may still become ``null`` is held back. Calls are told apart by their index: servers may repeat an id.
    """

    def __init__(self) -> None:
        self._index, self._held, self._begun = -1, "", True

    def add(self, piece: Calling) -> Iterator[Calling]:
        """Take in *piece*, and yield what can be sent now."""
        if piece.index != self._index:
            yield from self.close()
            self._index, self._held, self._begun = piece.index, "", False
        if not self._begun:
            self._held += piece.arguments
            waits = "null".startswith(self._held.strip())
            piece = replace(piece, arguments="" if waits else self._held)
            self._begun = not waits
        if piece.id or piece.name or piece.arguments:
            yield piece

    def close(self) -> Iterator[Calling]:
        """Yield the end of the last call, which is complete."""
        if not self._begun:
            self._begun = True
            yield Calling(self._index, arguments="{}")


def written_arguments(call: ToolCall) -> str:
    """Return the arguments of a complete *call* as an answer has them."""
    return call.arguments if has_arguments(call.arguments) else "{}"
