"""The commands that look at something: ``trace`` and ``doctor``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from stepspec.orchestrator.endpoints.doctor import diagnose, render
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.nesting import neighbours
from stepspec.orchestrator.service.page import html
from stepspec.prompts import load

from ..api import Solver
from .terminal import Json, LargeUrl, SmallUrl, print_json, stderr, stdout, wait

TRACE_EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --trace run.jsonl && stepspec trace run.jsonl     # writes run.html

  stepspec trace run.jsonl -o - > page.html
"""

DOCTOR_EXAMPLES = """
Examples:

  stepspec doctor --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec doctor --json | jq .large     # both servers are in stepspec.toml
"""


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


def doctor(small: SmallUrl = None, large: LargeUrl = None, json: Json = False) -> None:
    """
    Try what both endpoints can do, and say what is missing and what that costs.

    The prefix cache is tried with prompts longer than the server's block: hybrid models (linear attention, Mamba) cache
    in blocks of 528 to 1600 tokens. "A verdict reads" is what one more verdict reads again of a growing chain.

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
