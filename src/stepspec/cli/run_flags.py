"""Derive the flags of a command for the options of a run from the declarations in `RunOptions`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast, get_type_hints

import typer
from pydantic import TypeAdapter

from stepspec.orchestrator.run_options import option_types, run_options
from stepspec.orchestrator.step_ends import REGEX

from .terminal import parse_options

NUMBERS: Mapping[str, type] = {"integer": int, "number": float}


def with_run_flags(
    command: str, *, before: str, help: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Give the function of a *command* a flag for each option of a run that names the command; see `RunOption`.

    The flags stand *before* the parameter of that name in ``--help``. *help* replaces the help of some options. The
    function receives the options that were set in ``**overrides``, as `Solver` takes them.
    """
    flags = {name: _flag(name, (help or {}).get(name)) for name, it in run_options().items() if command in it.commands}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == before:
                parameters += [_parameter(name, flag) for name, flag in flags.items()]
            if parameter.kind is not parameter.VAR_KEYWORD:
                parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in flags}
            overrides = {name: _parse(name, value) for name, value in values.items() if value not in (None, [])}
            function(**arguments, **overrides)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
        return run

    return decorate


def _parameter(name: str, flag: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flag)


def _flag(name: str, help: str | None) -> Any:
    """Return the annotation from which typer derives the flag of option *name*."""
    option, schema = run_options()[name], TypeAdapter(option_types()[name]).json_schema()
    flags, words = option.flags, help or option.help
    kinds = {kind.get("type"): kind for kind in schema.get("anyOf", [schema])}
    if "object" in kinds:
        return Annotated[list[str] | None, typer.Option(*flags, help=words, metavar="NAME=VALUE")]
    if "array" in kinds:
        return Annotated[list[str] | None, typer.Option(*flags, help=words)]
    if "boolean" in kinds:
        return Annotated[bool | None, typer.Option(*flags, help=words)]
    for kind, number in NUMBERS.items():
        if (limits := kinds.get(kind)) is not None:
            most = limits.get("maximum", limits.get("exclusiveMaximum"))
            return Annotated[
                number | None,
                typer.Option(*flags, help=words, min=limits.get("minimum"), max=most),
            ]
    return Annotated[str | None, typer.Option(*flags, help=words)]


def _parse(name: str, value: Any) -> Any:
    """Return the value of option *name* as `RunOptions` takes it."""
    if name == "options":
        return parse_options(value)
    return [_unescape(text) for text in cast("list[str]", value)] if isinstance(value, list) else value


def _unescape(text: str) -> str:
    r"""Replace ``\n`` and ``\t`` as typed on a command line, but in regular expressions, which have them as well."""
    return text if text.startswith(REGEX) else text.replace("\\n", "\n").replace("\\t", "\t")
