"""
The pages of the documents that are written from the code: settings, commands, routes.

``python -m tests.docs.reference`` writes them; `test_reference.py` compares. What stands above `MARK` is by hand.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import typer
from pydantic import BaseModel

from stepspec import Solver
from stepspec.cli import app
from stepspec.orchestrator.calibration import Calibration
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Deadlines, Endpoint, Sampling
from stepspec.orchestrator.nesting.endpoint import NestedPair
from stepspec.orchestrator.run_options import Limits, run_options
from stepspec.orchestrator.service.http.app import Service
from stepspec.orchestrator.service.settings import Scaling, ServiceSettings
from stepspec.orchestrator.verifiers import DecisionsVerifier, FunctionVerifier, HttpVerifier
from stepspec.service_factory import offer
from stepspec.setting_sources import PREFIX
from stepspec.settings import Settings

from ..stand_in import StandIn

DOCS = Path(__file__).parents[2] / "docs"
MARK = "<!-- Below this line: written by `python -m tests.docs.reference`. -->"
Schema = Mapping[str, Any]

# --- settings ---------------------------------------------------------------------------------------------------------

TABLES: Mapping[str, tuple[type[BaseModel], str]] = {
    "sampling": (Sampling, "How the models sample when they write; judging is always greedy."),
    "budget": (Limits, "The limits of every run."),
    "small": (
        Endpoint,
        "`small` and `large` are each a URL, or a table with these fields. Fields of `large` are set in the same way: "
        "`STEPSPEC_LARGE__URL`, `--large`.",
    ),
    "small.deadlines": (Deadlines, "The same for `large.deadlines` and `critic.deadlines`."),
    "small as a pair": (
        NestedPair,
        "The small model may itself be a pair of models: then it has these fields instead of a URL "
        "([nested pairs](methods.md#nested-pairs)).",
    ),
    "critic": (CriticEndpoint, "The critic is a reward model, which the policy `reward` needs, or a verifier."),
    "critic as a function": (
        FunctionVerifier,
        "A verifier that is a Python function ([verifiers](extend.md#a-verifier)).",
    ),
    "critic over HTTP": (HttpVerifier, "A verifier that is asked over HTTP."),
    "critic by decisions": (DecisionsVerifier, "A classifier or judge that is served with the Decisions API."),
    "service": (ServiceSettings, "For `stepspec serve` alone ([the service](service.md))."),
    "service.ray": (Scaling, "For the service [on Ray](deploy.md#on-ray) alone."),
    "calibration": (
        Calibration,
        "`stepspec calibrate` writes it into the policy file, beside the options ([calibration](calibration.md)).",
    ),
}
"""Each table of the settings with its model, and a sentence above it."""

LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "not empty",
}
URL_OR_TABLE = ("small", "large", "critic")  # a validator makes a table of a URL
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "table"}


def settings_page() -> Iterator[str]:
    """The tables of all settings, line by line."""
    set_by = flags()
    yield from ("### Top level", "", "The options of a run first ([more about them](#options-of-a-run)).", "")
    yield from table(Settings, "", set_by, {name: option.help for name, option in run_options().items()})
    for path, (model, sentence) in TABLES.items():
        name, _, kind = path.partition(" ")
        yield from ("", f"### `[{name}]` {kind}".rstrip(), "", *textwrap.wrap(sentence, 100), "")
        yield from table(model, name, set_by, {})


def table(
    model: type[BaseModel], path: str, set_by: Mapping[str, Sequence[str]], helps: Mapping[str, str]
) -> Iterator[str]:
    """The settings that *model* has below *path*; *set_by* are the flags, *helps* the texts of some fields."""
    yield from ("| setting | type | default | variable | flag | |", "|---|---|---|---|---|---|")
    definitions: Mapping[str, Schema] = (schema := model.model_json_schema(by_alias=True)).get("$defs", {})
    properties = definitions.get(model.__name__, schema)["properties"]
    docstrings = field_docstrings(model)
    names = [*helps, *(name for name in model.model_fields if name not in helps)]
    for name in names:
        field = model.model_fields[name]
        if name == "role":
            continue  # follows from the table
        text = helps.get(name) or docstrings.get(name)
        if not text:
            raise ValueError(f"{model.__name__}.{name} has no docstring: write one below the field")
        shown = field.alias or name
        full = f"{path}.{shown}" if path else shown
        cells = (
            f"`{shown}`",
            "URL or table" if name in URL_OR_TABLE else _type(properties[shown], definitions),
            "required" if field.is_required() else _default(field.default),
            f"`{PREFIX}{full.upper().replace('.', '__')}`",
            "<br>".join(set_by.get(full, ())),
            _cell(text),
        )
        yield f"| {' | '.join(cells)} |"


def field_docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The string below each field of *model* and of its bases, in one line."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base.__module__.startswith("pydantic"):
            continue
        body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]).body
        for field, following in pairwise(body):
            match field, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
                case _:
                    pass
    return found


def _type(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """What a value is, in words."""
    if "$ref" in schema:
        definition = definitions[schema["$ref"].rpartition("/")[2]]
        return "table" if definition.get("type") == "object" else _type(definition, definitions)
    kinds: Sequence[Schema] = schema.get("anyOf") or schema.get("oneOf") or ()
    if kinds:
        words = dict.fromkeys(_type(kind, definitions) for kind in kinds if kind.get("type") != "null")
        return " or ".join(words)
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        item = _type(schema.get("items", {}), definitions)
        return "list of " + {"text": "texts", "table": "tables"}.get(item, f"{item}s")
    name = "secret text" if schema.get("writeOnly") else TYPES.get(str(schema.get("type")), "value")
    limits = (words.format(schema[key]) for key, words in LIMITS.items() if key in schema)
    return ", ".join((name, *limits))


def _default(value: object) -> str:
    if isinstance(value, BaseModel):
        return "see its table"
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value!r}`".replace("'", '"')
    return f"`{value}`"


def _cell(text: str) -> str:
    """*text* as a cell of a table, its reStructuredText as Markdown."""
    text = text.replace("``", "`").replace("|", "\\|")
    return re.sub(r"<(\w+)>", r"`<\1>`", re.sub(r"`(<\w+>)`", r"\1", text))


def flags() -> Mapping[str, Sequence[str]]:
    """The flags of `solve` and `serve` that set each setting, by its path."""
    found: dict[str, list[str]] = {}
    for name in ("solve", "serve"):
        for parameter in command(name).params:
            path = _setting_of(name, str(parameter.name))
            if path:
                words = "`, `".join((*parameter.opts, *parameter.secondary_opts))
                found.setdefault(path, []).append(f"`{words}`")
    return {path: list(dict.fromkeys(words)) for path, words in found.items()}


def _setting_of(command_name: str, parameter: str) -> str | None:
    """The path of the setting that a *parameter* of a command sets; None for a parameter that sets none."""
    places: list[tuple[str, type[BaseModel], str]] = [("", Settings, parameter), ("sampling.", Sampling, parameter)]
    if command_name == "serve":
        places.insert(0, ("service.", ServiceSettings, parameter))
    elif parameter.startswith("max_"):
        places.append(("budget.", Limits, parameter.removeprefix("max_")))
    for path, model, name in places:
        for field in (name, f"{name}s"):
            if field in model.model_fields:
                return path + field
    return "small" if parameter == "small" else None


# --- command line -----------------------------------------------------------------------------------------------------


def commands() -> Mapping[str, Any]:
    """The commands by name, as typer made them; those of a group after its name."""
    return dict(_commands(typer.main.get_command(app), ()))


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from _commands(each, (*path, name))
        else:
            yield " ".join((*path, name)), each


def command(name: str) -> Any:
    return commands()[name]


def command_page() -> Iterator[str]:
    """Every command with its arguments, its options and its examples, line by line."""
    group: Any = typer.main.get_command(app)
    parent = group.make_context("stepspec", [], resilient_parsing=True)
    yield from ("| command | |", "|---|---|")
    for name, each in commands().items():
        summary = _cell(" ".join(each.help.partition("\n\n")[0].split()))
        yield f"| [`stepspec {name}`](#stepspec-{name.replace(' ', '-')}) | {summary} |"
    for name, each in commands().items():
        context = each.make_context(name, [], parent=parent, resilient_parsing=True)
        usage = each.get_usage(context).removeprefix("Usage: ")
        yield from ("", f"## stepspec {name}", "", _prose(each.help), "", "```text", usage, "```", "")
        yield from ("| option | |", "|---|---|")
        for parameter in each.params:
            if record := parameter.get_help_record(context):
                yield f"| `{record[0]}` | {_cell(record[1])} |"
        if each.epilog:
            yield from ("", "```console", *_examples(each.epilog), "```")


def _examples(epilog: str) -> Iterator[str]:
    """The commands of an *epilog* after prompts; without the marks that keep click from wrapping it."""
    lines = [line.strip() for line in epilog.splitlines()]
    for before, line in pairwise(["", *(line for line in lines if line not in ("", "Examples:", "\b"))]):
        yield f"    {line}" if before.endswith("\\") else line if line.startswith("#") else f"$ {line}"


# --- HTTP -------------------------------------------------------------------------------------------------------------


FIELDS: Mapping[str, str] = {
    "model": "the method, or a served model, to which the request is forwarded",
    "messages": "the conversation, whose last turn poses the problem",
    "problem": "the problem, instead of `messages`",
    "input": "the problem, or the conversation whose last item poses it",
    "instructions": "the system message",
    "stream": "send every step once it is verified",
    "stream_options": "what a stream contains",
    "include_usage": "the last chunk has the usage",
    "continuous_usage_stats": "every chunk has the usage so far",
    "n": "the number of parallel runs; above 1 it needs a temperature above 0",
    "stop": "at most 4 texts that end the answer, never the thinking",
    "max_tokens": "the budget of thinking and answer together",
    "max_completion_tokens": "the same as `max_tokens`",
    "max_output_tokens": "the budget of thinking and answer together",
    "reasoning_effort": "the share of the thinking's budget",
    "effort": "the share of the thinking's budget",
    "reasoning": "how much to think",
    "temperature": "of the text of both models; 0 is greedy",
    "top_p": "sample from the likeliest tokens of this total",
    "top_k": "sample from this number of likeliest tokens; 0: all",
    "min_p": "leave out tokens less likely than this share of the likeliest",
    "presence_penalty": "only 0",
    "frequency_penalty": "only 0",
    "repetition_penalty": "divides the likelihood of tokens that the chain has; 1: none",
    "seed": "of the sampling; random if left out, and returned in the reply",
    "user": "recorded in logs and spans",
    "safety_identifier": "recorded in logs and spans",
    "response_format": "the format of the answer",
    "text": "a text",
    "ResponsesRequest.text": "the format of the answer",
    "format": "the format of the answer",
    "prompt_cache_key": "accepted without effect",
    "prompt_cache_retention": "accepted without effect",
    "metadata": "accepted; `/v1/responses` returns it",
    "ignore_eos": "accepted without effect, for load generators",
    "stepspec": "what only this service has",
    "type": "what it is",
    "role": "who wrote it; `developer` is read as `system`",
    "content": "a text, or parts, which are joined by line breaks",
    "id": "accepted without effect",
    "status": "accepted without effect",
    "phase": "accepted without effect",
    "caller": "accepted without effect",
    "encrypted_content": "accepted without effect",
    "ReasoningItem.summary": "accepted without effect",
    "ReasoningItem.content": "the thinking of an earlier answer, for the chat templates",
    "ReasoningPart.text": "the thinking",
    "Turn.reasoning": "the thinking of an earlier answer, for the chat templates",
    "reasoning_content": "the same as `reasoning`",
    "provider_specific_fields": "what LiteLLM adds, which is dropped",
    "ItemPart.annotations": "accepted without effect",
    "ItemPart.logprobs": "accepted without effect",
    "name": "the name of the schema",
    "description": "what the schema is for",
    "schema": "the JSON schema",
    "strict": "accepted: the answer always matches",
    "json_schema": "the schema that the answer matches",
    "options": "options of the method",
    "budget": "limits of this run",
    "thinking": "the place of the thinking in the reply",
    "tokens": "for thinking and answer together",
    "steps": "of the thinking",
    "seconds": "of wall time",
    "min_tokens": "accepted without effect, for load generators; at most the limit of tokens",
    "tools": "the functions that the answer may call; the client runs them",
    "tool_choice": "whether the answer has to call a tool, and which",
    "parallel_tool_calls": "false keeps the first call of an answer",
    "system": "the system message",
    "output_config": "the format of the answer, and how much to think",
    "stop_sequences": "at most 4 texts that end the answer, never the thinking",
    "cache_control": "accepted without effect: the servers cache prefixes by themselves",
    "ttl": "accepted without effect",
    "context_management": "accepted without effect",
    "ContextManagement.edits": "accepted without effect",
    "ClearThinking.keep": "accepted without effect",
    "speed": "accepted without effect",
    "display": "`omitted` leaves the thinking out of the reply",
    "budget_tokens": "the tokens for thinking",
    "input_schema": "the JSON schema of the arguments",
    "parameters": "the JSON schema of the arguments",
    "eager_input_streaming": "accepted without effect",
    "allowed_callers": "accepted without effect",
    "input_examples": "accepted without effect",
    "arguments": "an object, also as JSON text",
    "NamespaceTool.name": "the models read `NAME__FUNCTION` for each function",
    "NamespaceTool.tools": "functions, up to 128",
    "call_id": "what a call and its result have in common",
    "output": "the result",
    "function": "the function",
    "disable_parallel_tool_use": "true keeps the first call of an answer",
    "RedactedThinkingBlock.data": "accepted without effect",
    "signature": "accepted without effect",
    "ToolCallPart.index": "accepted without effect",
    "ToolCallPart.id": "what the tool's message refers to",
    "ToolUseBlock.id": "what the result refers to",
    "tool_use_id": "the call that this is the result of",
    "tool_call_id": "in a message of the role `tool`: the call that this is the result of",
    "is_error": "marks the result as an error",
    "tool_calls": "in a message of the assistant: the calls of an earlier answer",
    "user_id": "recorded in logs and spans",
    "CalledFunction.name": "the name of the function",
    "FunctionPart.name": "the name of the function",
    "FunctionPart.description": "what the models read about it",
    "FunctionPart.strict": "true keeps the arguments to the schema",
    "FunctionTool.name": "the name of the function",
    "FunctionTool.description": "what the models read about it",
    "FunctionTool.strict": "true keeps the arguments to the schema",
    "NamedFunction.name": "the name of the function",
    "ChosenFunction.name": "the name of the function",
    "NamedToolChoice.name": "the name of the tool",
    "FunctionCallItem.name": "the name of the function",
    "CustomTool.name": "the name of the tool",
    "CustomTool.description": "what the models read about it",
    "CustomTool.strict": "true keeps the arguments to the schema",
    "ToolUseBlock.name": "the name of the tool",
    "BudgetOptions.answer": "tokens that are reserved for the answer",
}
"""What each field of a body is, by its name or by that of its schema and its own."""
EMPTY = {"null", "empty list", "empty object", "`false`"}  # types of fields that clients send and that say nothing
WITHOUT_EFFECT = {
    "function_call", "top_logprobs", "service_tier", "verbosity", "modalities",
    "truncation",
}  # fmt: skip
UNUSED = "422"  # FastAPI lists it for every parameter of a path; here each is a text, which is never wrong


async def description() -> Schema:
    """The OpenAPI description of a service over two stand-ins."""
    async with AsyncExitStack() as stack:
        small, large = [
            await stack.enter_async_context(StandIn(names=(name,)).listening()) for name in ("Small", "Large")
        ]
        solver = await stack.enter_async_context(Solver(small, large))
        return Service(offer(solver), ServiceSettings.model_validate({"keys": ["key"]})).app.openapi()


def http_page(openapi: Schema) -> Iterator[str]:
    """Every route with its body and its statuses, then the schemas, line by line."""
    schemas: Mapping[str, Schema] = openapi["components"]["schemas"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    yield from ("### Routes", "", "| route | key | body | statuses | |", "|---|---|---|---|---|")
    for method, path, operation in operations:
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        cells = (
            f"`{method} {path}`",
            "yes" if operation.get("security") else "no",
            _link(body) if body else "",
            ", ".join(status for status in operation["responses"] if status != UNUSED),
            _cell(" ".join(operation.get("description", operation.get("summary", "")).split())),
        )
        yield f"| {' | '.join(cells)} |"
    yield from ("", "### Statuses", "", "| status | meaning |", "|---|---|")
    statuses = {
        status: response["description"]
        for _, _, operation in operations
        for status, response in operation["responses"].items()
        if status not in ("200", UNUSED) and "Error" in str(response)
    }
    yield from (f"| {status} | {text} |" for status, text in sorted(statuses.items()))
    yield from (
        "",
        "The body of an error is OpenAI's: `error` with `message`, `type`, `param` and `code`. In Anthropic's",
    )
    yield "API it is Anthropic's: `type`, `error` with `type` and `message`, and `request_id`."
    for name in sorted(_used(operations, schemas)):
        yield from ("", f"### {name}", "")
        if text := schemas[name].get("description"):
            yield from (_prose(text), "")
        yield from _fields(name, schemas[name])


def _fields(name: str, described: Schema) -> Iterator[str]:
    """The fields of the schema called *name*: a table, and a sentence about those that have to be empty."""
    kinds = {field: _http_type(field, schema) for field, schema in described.get("properties", {}).items()}
    empty = {field: kind for field, kind in kinds.items() if kind in EMPTY or field in WITHOUT_EFFECT}
    if len(empty) < len(kinds):
        yield from ("| field | type | |", "|---|---|---|")
    for field, kind in kinds.items():
        if field not in empty:
            words = _words(name, field)
            yield f"| `{field}` | {kind} | {words}{'; required' * (field in described.get('required', ()))} |"
    if empty:
        listed = ", ".join(f"`{field}` ({kind})" for field, kind in empty.items())
        yield from ("", _prose(f"Without effect, and refused with any other value: {listed}."))


def _words(name: str, field: str) -> str:
    """What a *field* of the schema called *name* is. Raise `ValueError` if nothing says it."""
    helps = {option: each.help for option, each in run_options().items()} if name == "StepspecOptions" else {}
    words = FIELDS.get(f"{name}.{field}") or helps.get(field) or FIELDS.get(field)
    if not words:
        raise ValueError(f"nothing says what the field {name}.{field} is: add it to FIELDS")
    return _cell(words.removesuffix("."))


def _used(operations: Iterable[tuple[str, str, Schema]], schemas: Mapping[str, Schema]) -> set[str]:
    """The schemas that bodies of requests refer to, directly or not."""
    found: set[str] = set()
    waiting = [str(operation.get("requestBody", "")) for _, _, operation in operations]
    while waiting:
        for name in re.findall(r"#/components/schemas/(\w+)", waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(str(schemas[name]))
    return found


def _link(schema: Schema) -> str:
    name = schema["$ref"].rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


def _http_type(field: str, schema: Schema) -> str:
    if field == "model":
        return "a name that `GET /v1/models` lists"
    if "$ref" in schema:
        return _link(schema)
    kinds: Sequence[Schema] = schema.get("anyOf") or schema.get("oneOf") or ()
    if kinds:
        return " or ".join(dict.fromkeys(_http_type("", kind) for kind in kinds if kind.get("type") != "null"))
    if schema.get("type") == "null":
        return "null"
    if schema.get("type") == "array":
        return "empty list" if schema.get("maxItems") == 0 else f"list of: {_http_type('', schema.get('items', {}))}"
    if schema.get("type") == "object" and schema.get("maxProperties") == 0:
        return "empty object"
    if schema.get("const") is False:
        return "`false`"
    return _type(schema, {}).replace("table", "object")


def _prose(text: str) -> str:
    parts = (" ".join(_cell(part).split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False) for part in parts)


# --- pages ------------------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], Iterable[str]]] = {
    "python.md": settings_page,
    "command-line.md": command_page,
    "service.md": lambda: http_page(asyncio.run(description())),
}


def current(page: str) -> str:
    """The text that *page* should have."""
    above, mark, _ = (DOCS / page).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"docs/{page} lacks the line {MARK}")
    return f"{above}{MARK}\n\n" + "\n".join(PAGES[page]()) + "\n"


def main() -> None:
    for page in PAGES:
        (DOCS / page).write_text(current(page), encoding="utf-8")


if __name__ == "__main__":
    main()
