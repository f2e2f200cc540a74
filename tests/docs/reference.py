"""
The parts of the documents that are written from the code: settings, commands, routes.

``python -m tests.docs.reference`` writes them, and `test_reference.py` compares. The lower part of
a page of `PAGES` begins at `MARK`. The table of the options of a run stands between two marks.
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
from pydantic import TypeAdapter

from stepspec import Solver
from stepspec.cli import app
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Deadlines, Endpoint, Sampling
from stepspec.orchestrator.prior import Prior
from stepspec.orchestrator.run_options import (
    NOT_CALIBRATED,
    NOT_IN_ARMS,
    NOT_IN_REQUESTS,
    RunOptions,
)
from stepspec.orchestrator.verifiers import FunctionVerifier
from stepspec.service.http.app import Service
from stepspec.service.settings import Scaling, ServiceSettings
from stepspec.service_factory import offer
from stepspec.setting_sources import PREFIX
from stepspec.settings import Calibration, Settings

from ..stand_in import StandIn

DOCS = Path(__file__).parents[2] / "docs"
MARK = "<!-- Below this line: written by `python -m tests.docs.reference`. -->"
OPTIONS_MARK = "<!-- The table below: written by `python -m tests.docs.reference`. -->"
OPTIONS_END = "<!-- End of the table. -->"
Schema = Mapping[str, Any]
SOLVING = ("solve", "serve", "eval", "calibrate", "tune")
"""The commands that run methods, in the order of the documents."""

# --- options of a run
# -------------------------------------------------------------------------------------------------


def option_table() -> Iterator[str]:
    """The table of the options of a run, line by line."""
    yield "| option | default | flag of | service | arms | calibration | |"
    yield "|---|---|---|---|---|---|---|"
    for name, field in RunOptions.model_fields.items():
        default = field.default
        shown = "none" if default is None else repr(default)
        if hasattr(default, "__pydantic_fields__"):
            shown = "see its fields"
        flag_of = ", ".join(
            f"`{name_of_command}`"
            for name_of_command in SOLVING
            if any(
                flag.place == (name,) for flag in command(name_of_command).callback.flags.values()
            )
        )
        marks = [
            "" if name in left_out else "yes"
            for left_out in (NOT_IN_REQUESTS, NOT_IN_ARMS, NOT_CALIBRATED)
        ]
        text = field_docstrings(RunOptions)[name]
        yield f"| `{name}` | {shown} | {flag_of} | {' | '.join(marks)} | {text} |"


# --- settings
# -------------------------------------------------------------------------------------------------

TABLES: Mapping[str, tuple[type[Any], str]] = {
    "sampling": (Sampling, "How the models sample when they write; judging is always greedy."),
    "budget": (Budget, "The limits of every run."),
    "small": (
        Endpoint,
        (
            "`small` and `large` are each a URL, or a table with these fields. Fields of `large`"
            " are set in the same way: `STEPSPEC_LARGE__URL`, `--large`."
        ),
    ),
    "small.deadlines": (Deadlines, "The same for `large.deadlines` and `critic.deadlines`."),
    "critic": (
        CriticEndpoint,
        "The critic is a reward model, which the policy `reward` needs, or a verifier.",
    ),
    "critic as a function": (
        FunctionVerifier,
        "A verifier that is a Python function ([verifiers](extend.md#a-verifier)).",
    ),
    "service": (ServiceSettings, "For `stepspec serve` alone ([the service](service.md))."),
    "service.ray": (Scaling, "For the service [on Ray](deploy.md#on-ray) alone."),
    "prior": (
        Prior,
        "What `stepspec tune` measured of the method, by which `auto` begins.",
    ),
    "calibration": (
        Calibration,
        (
            "`stepspec calibrate` writes it into the policy file, beside the options"
            " ([calibration](calibration.md))."
        ),
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
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "table",
}


def settings_page() -> Iterator[str]:
    """The tables of all settings, line by line."""
    set_by = flags()
    yield from (
        "### Top level",
        "",
        "The options of a run first ([more about them](#options-of-a-run)).",
        "",
    )
    yield from table(Settings, "", set_by)
    for path, (model, sentence) in TABLES.items():
        name, _, kind = path.partition(" ")
        yield from ("", f"### `[{name}]` {kind}".rstrip(), "", *textwrap.wrap(sentence, 100), "")
        yield from table(model, name, set_by)


def table(model: type[Any], path: str, set_by: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The settings that *model* has below *path*; *set_by* are the flags."""
    yield from ("| setting | type | default | variable | flag | |", "|---|---|---|---|---|---|")
    schema = TypeAdapter(model).json_schema(by_alias=True)
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    properties = definitions.get(model.__name__, schema)["properties"]
    docstrings = field_docstrings(model)
    for name, field in model.__pydantic_fields__.items():
        if name == "role":
            continue  # follows from the table
        text = docstrings.get(name)
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


def field_docstrings(model: type[Any]) -> Mapping[str, str]:
    """The string below each field of *model* and of its bases, in one line."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is object or base.__module__.startswith("pydantic"):
            continue
        body = cast(
            "ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        ).body
        for field, following in pairwise(body):
            match field, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
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
        words = dict.fromkeys(
            _type(kind, definitions) for kind in kinds if kind.get("type") != "null"
        )
        return " or ".join(words)
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        item = _type(schema.get("items", {}), definitions)
        kind, _, limit = item.partition(", ")
        return f"list of {kind}s{f', each {limit}' if limit else ''}"
    name = "secret text" if schema.get("writeOnly") else TYPES.get(str(schema.get("type")), "value")
    limits = (words.format(schema[key]) for key, words in LIMITS.items() if key in schema)
    return ", ".join((name, *limits))


def _default(value: object) -> str:
    if hasattr(value, "__pydantic_fields__"):
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
    parts = text.replace("``", "`").replace("|", "\\|").split("`")  # every second one is code
    return "`".join(
        part if at % 2 else re.sub(r"<\w+>", r"`\g<0>`", part) for at, part in enumerate(parts)
    )


def flags() -> Mapping[str, Sequence[str]]:
    """The flags of `solve` and `serve` that set each setting, by its path."""
    found: dict[str, dict[str, None]] = {}
    for name in ("solve", "serve"):
        for parameter in command(name).params:
            if flag := command(name).callback.flags.get(parameter.name):
                words = "`, `".join((*parameter.opts, *parameter.secondary_opts))
                found.setdefault(".".join(flag.place).removesuffix(".url"), {})[f"`{words}`"] = None
    return {path: list(words) for path, words in found.items()}


# --- command line
# -------------------------------------------------------------------------------------------------


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
        yield from (
            "",
            f"## stepspec {name}",
            "",
            _prose(each.help),
            "",
            "```text",
            usage,
            "```",
            "",
        )
        yield from ("| option | |", "|---|---|")
        for parameter in each.params:
            if record := parameter.get_help_record(context):
                text = " ".join(record[1].split())
                yield f"| `{record[0]}` | {_cell(text)} |"
        if each.epilog:
            yield from ("", "```console", *_examples(each.epilog), "```")


def _examples(epilog: str) -> Iterator[str]:
    """
    The commands of an *epilog* after prompts; without the marks that keep click from wrapping it.
    """
    lines = [line.strip() for line in epilog.splitlines()]
    shown = [line for line in lines if line not in ("", "Examples:", "\b")]
    for before, line in pairwise(["", *shown]):
        if before.endswith("\\"):
            yield f"    {line}"
        elif line.startswith("#"):
            yield line
        else:
            yield f"$ {line}"


# --- HTTP
# -------------------------------------------------------------------------------------------------


# FastAPI lists it for every parameter of a path; here each is a text, which is never wrong
UNUSED = "422"


async def description() -> Schema:
    """The OpenAPI description of a service over two stand-ins."""
    async with AsyncExitStack() as stack:
        small, large = [
            await stack.enter_async_context(StandIn(names=(name,)).listening())
            for name in ("Small", "Large")
        ]
        solver = await stack.enter_async_context(Solver(small, large))
        return Service(
            offer(solver), ServiceSettings.model_validate({"keys": ["key"]})
        ).app.openapi()


def http_page(openapi: Schema) -> Iterator[str]:
    """Every route with its statuses, and what these mean, line by line."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    yield from ("### Routes", "", "| route | key | statuses | |", "|---|---|---|---|")
    for method, path, operation in operations:
        cells = (
            f"`{method} {path}`",
            "yes" if operation.get("security") else "no",
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


def _prose(text: str) -> str:
    parts = (" ".join(_cell(part).split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(
        textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False) for part in parts
    )


# --- pages
# -------------------------------------------------------------------------------------------------

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
    before, begins, rest = above.partition(OPTIONS_MARK)
    if begins:
        after = rest.partition(OPTIONS_END)[2]
        above = "\n".join([f"{before}{begins}", "", *option_table(), "", f"{OPTIONS_END}{after}"])
    return f"{above}{MARK}\n\n" + "\n".join(PAGES[page]()) + "\n"


def main() -> None:
    for page in PAGES:
        (DOCS / page).write_text(current(page), encoding="utf-8")


if __name__ == "__main__":
    main()
