"""The commands that look at something: ``trace``, ``policies``, ``doctor``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from .. import policies
from ..api import Solver
from ..orchestrator.endpoints.doctor import diagnose, render
from ..orchestrator.errors import ConfigurationError
from ..orchestrator.nesting import neighbours
from ..orchestrator.service.page import html
from ..prompts import load
from .terminal import Json, LargeUrl, SmallUrl, print_json, stderr, stdout, wait


def show_trace(
    file: Annotated[Path, typer.Argument(help="A trace, as `stepspec solve --trace FILE` writes it.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the page; - is standard output.", metavar="OUT"),
    ] = None,
) -> None:
    """Make a page of a trace, to be looked at in any browser: one file, FILE with the ending .html if not told else."""
    try:
        page = html(file.read_bytes()).encode()
        if output == Path("-"):
            sys.stdout.buffer.write(page)
            return
        target = output or file.with_suffix(".html")
        target.write_bytes(page)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{file}: {exc}") from exc
    except OSError as exc:
        raise ConfigurationError(f"{exc.filename}: {exc.strerror}") from exc
    stderr.print(f"wrote {target}", highlight=False, soft_wrap=True)


def list_policies(json: Json = False) -> None:
    """List the methods: their options, what they need from the endpoints, and what they cost."""
    described = {
        name: {
            "about": method.about,
            "paper": method.paper,
            "options": {key: parameter.default for key, parameter in policies.options(name).items()},
            "needs": method.needs,
            "cost": method.cost,
        }
        for name, method in policies.METHODS.items()
    }
    if json:
        print_json(described)
        return
    for name, method in policies.METHODS.items():
        stdout.print(Text.assemble((name, "bold"), f"  {method.about}"), highlight=False)
        chosen = " ".join(f"{key}={parameter.default!r}" for key, parameter in policies.options(name).items())
        rows = Table.grid(padding=(0, 2))
        for what, said in (
            ("paper", method.paper), ("options", chosen), ("needs", method.needs), ("cost", method.cost),
        ):  # fmt: skip
            if said:
                rows.add_row(Text(f"  {what}", "dim"), Text(said))
        stdout.print(rows)


def doctor(small: SmallUrl = None, large: LargeUrl = None, json: Json = False) -> None:
    """
    Try what both endpoints can do, and say what is missing and what that costs.

    Of a nested pair every model is tried beside the next dearer one, which judges it.
    """
    solver = Solver(small, large)
    grade = load("specreason.grade")
    pairs = neighbours(solver.settings.small or solver.small.settings, solver.large.settings)
    found = {
        name: wait(diagnose(*endpoints, question=grade.text, opening=grade.opening))
        for name, endpoints in pairs.items()
    }
    if json:
        told = {name: dataclasses.asdict(diagnosis) for name, diagnosis in found.items()}
        print_json(told if len(told) > 1 else next(iter(told.values())))
        return
    for name, diagnosis in found.items():
        if len(found) > 1:
            stdout.print(Text(name, "bold"))
        stdout.print(render(diagnosis))
