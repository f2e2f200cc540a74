"""The command ``policies``: all methods briefly, or one of them whole."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from .. import policies
from .terminal import Json, print_json, stdout

EXAMPLES = """
Examples:

  stepspec policies

  stepspec policies choose     # what it does, and what each of its options means

  stepspec policies --json | jq '.bild.options'
"""

INDENT = 11  # columns before what is said of a method or an option
GLUE = "\N{NO-BREAK SPACE}"


def policies_command(
    name: Annotated[str | None, typer.Argument(help="One method, to be told of whole.")] = None, json: Json = False
) -> None:
    """List the methods with their options, what they need from the endpoints, and what they cost; or explain one."""
    if json:
        print_json(_whole(name) if name else {name: _brief(name) for name in policies.METHODS})
    elif name:
        _explain(name)
    else:
        for each in policies.METHODS:
            _list(each)


def _brief(name: str) -> dict[str, Any]:
    method = policies.METHODS[name]
    return {
        "about": method.about,
        "paper": method.paper,
        "options": {key: option.default for key, option in policies.options(name).items()},
        "needs": method.needs,
        "cost": method.cost,
    }


def _whole(name: str) -> dict[str, Any]:
    told = {key: dataclasses.asdict(option) for key, option in policies.explained(name).items()}
    return {**_brief(name), "options": told, "documentation": policies.METHODS[name].documentation}


def _list(name: str) -> None:
    told = _brief(name)
    stdout.print(Text.assemble((name, "bold"), f"  {told['about']}"), highlight=False)
    options = (piece for key, default in told["options"].items() for piece in pieces(key, default))
    _rows(paper=told["paper"], options=_fitted(options), needs=told["needs"], cost=told["cost"])


def _explain(name: str) -> None:
    options, method = policies.explained(name), policies.METHODS[name]
    stdout.print(Text(name, "bold"), end="\n\n")
    for paragraph in method.documentation.split("\n\n"):
        stdout.print(Text(" ".join(paragraph.split())), end="\n\n")
    for key, option in options.items():
        stdout.print(Text.assemble((key, "bold"), f"  {option.values}"), highlight=False)
        _rows(default=_fitted(pieces("", option.default)), means=option.means)
    if options:
        stdout.print()
    _rows(paper=method.paper, needs=method.needs, cost=method.cost)


def _rows(**told: str) -> None:
    rows = Table.grid(padding=(0, 2))
    for what, said in told.items():
        if said:
            rows.add_row(Text(f"  {what}", "dim"), Text(said))
    if rows.row_count:
        stdout.print(rows)


def _fitted(pieces: Iterable[str]) -> str:
    return broken(pieces, stdout.width - INDENT)


def pieces(name: str, default: object) -> Iterator[str]:
    """What is shown of an option, in pieces between which a line may end."""
    head = f"{name}=" if name else ""
    if not isinstance(default, tuple):
        yield f"{head}{default!r}"
        return
    *first, last = map(repr, cast("tuple[object, ...]", default))
    parts = [*(f"{each}," for each in first), last]
    parts[0], parts[-1] = f"{head}({parts[0]}", f"{parts[-1]})"
    yield from parts


def broken(pieces: Iterable[str], width: int) -> str:
    """Put *pieces* into lines of *width* columns, none of them broken."""
    whole = " ".join(piece.replace(" ", GLUE) for piece in pieces)
    return textwrap.fill(whole, width, break_long_words=False, break_on_hyphens=False).replace(GLUE, " ")
