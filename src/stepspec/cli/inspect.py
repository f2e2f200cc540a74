"""The commands that start and solve nothing: ``trace``, ``policies`` and ``doctor``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from stepspec.orchestrator.endpoints import CriticEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.prompts import replacing
from stepspec.servers.doctor import diagnose, render
from stepspec.service.watch.page import html

from .. import policies
from ..api import Solver
from .command_line import print_json, writable, write_file
from .flags import Json, with_settings
from .program import STDOUT, stderr, stdout, wait

TRACE_EXAMPLES = """
Examples:

  # writes a.html
  stepspec solve "What is 6 x 7?" --trace a.jsonl && stepspec trace a.jsonl

  stepspec trace run.jsonl -o - > page.html
"""

POLICIES_EXAMPLES = """
Examples:

  stepspec policies

  # what it does, and what each of its options means
  stepspec policies choose

  stepspec policies --json | jq '.bild.options'
"""

DOCTOR_EXAMPLES = """
Examples:

  stepspec doctor --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # servers of stepspec.toml
  stepspec doctor --json | jq '.findings[]'

  # before a run that needs the reward model
  stepspec doctor --critic http://localhost:8003/v1 || exit 1
"""


def show_trace(
    file: Annotated[Path, Argument(help="A trace, as `stepspec solve --trace FILE` writes it.")],
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="Where to write the page; - is standard output.",
            metavar="OUT",
        ),
    ] = None,
) -> None:
    """
    Render a trace as one HTML file for any browser; unless --output is set, with the ending
    .html.
    """
    try:
        page = html(file.read_bytes())
    except (ConfigurationError, OSError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigurationError(f"{file}: {reason}") from exc
    target = output or file.with_suffix(".html")
    if target == file:
        raise ConfigurationError(
            f"{file} is the trace itself: name another file for the page with --output"
        )
    if target == STDOUT:
        sys.stdout.buffer.write(page.encode())
        return
    writable("--output", target)
    write_file(target, page)
    stderr.print(f"wrote {target}", soft_wrap=True)


@with_settings()
def doctor(json: Json = False) -> None:
    """
    Test what all endpoints can do; report what does not work, what costs, and the cure of each.
    Exit with 1 if anything cannot work.

    Each line begins with its outcome: "works"; "costs", which is slower or less exact; "cannot
    work"; "unknown".
    """
    solver = Solver()
    settings = solver.settings
    with stderr.status("examining the servers"), replacing(settings.prompts):
        report = wait(
            diagnose(
                solver.small.settings,
                solver.large.settings,
                settings.critic if isinstance(settings.critic, CriticEndpoint) else None,
            )
        )
    if json:
        print_json(dataclasses.asdict(report))
    else:
        for line in render(report):
            # It is one line for grep, and wrapped for a reader.
            stdout.print(line, soft_wrap=not stdout.is_terminal)
    if not report.ok:
        raise typer.Exit(1)


def list_policies(
    name: Annotated[str | None, Argument(help="Describe this method in full.")] = None,
    json: Json = False,
) -> None:
    """List the methods; or describe one, with its options, needs and cost."""
    if json:
        print_json(_full(name) if name else {method: _full(method) for method in policies.METHODS})
    elif name:
        _print_full(name)
    else:
        _print_list()


def _print_list() -> None:
    """Print a line for each method. A terminal wraps the lines."""
    if not stdout.is_terminal:
        for name, method in policies.METHODS.items():
            stdout.print(f"{name:20}  {method.about}", soft_wrap=True, markup=False)
        return
    table = Table.grid(padding=(0, 2))
    for name, method in policies.METHODS.items():
        table.add_row(Text(name, "bold"), Text(method.about))
    stdout.print(table)


def _full(name: str) -> dict[str, Any]:
    method = policies.METHODS.find(name)
    options = method.describe_options().items()
    return {
        "about": method.about,
        "documentation": method.documentation,
        "paper": method.paper,
        "needs": method.needs,
        "cost": method.cost,
        "options": {key: dataclasses.asdict(option) for key, option in options},
    }


def _print_full(name: str) -> None:
    method = policies.METHODS.find(name)
    options = method.describe_options()
    stdout.print(name, style="bold", end="\n\n")
    for paragraph in method.documentation.split("\n\n"):
        stdout.print(" ".join(paragraph.split()), end="\n\n")
    for key, option in options.items():
        stdout.print(Text.assemble((key, "bold"), f"  {option.values}"))
        _print_rows(default=repr(option.default), means=option.means)
    if options:
        stdout.print()
    _print_rows(paper=method.paper, needs=method.needs, cost=method.cost)


def _print_rows(**rows: str) -> None:
    """Print a label and a text for each of the *rows* that has a text."""
    table = Table.grid(padding=(0, 2))
    for label, text in rows.items():
        if text:
            table.add_row(Text(f"  {label}", "dim"), text)
    if table.row_count:
        stdout.print(table)
