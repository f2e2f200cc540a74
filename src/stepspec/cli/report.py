"""The command ``stepspec report``."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from stepspec import __version__
from stepspec.evals.evaluation import TRACES
from stepspec.evals.report.run_folder import read_folder
from stepspec.evals.report.section import Section, build_section
from stepspec.evals.report.verdict import MAX_LOSS
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.service.watch.page import html

from .command_line import writable
from .program import stderr, stdout

if TYPE_CHECKING:
    from stepspec.evals.report.formats import Links

REPORT_EXAMPLES = """
Examples:

  stepspec report runs/math500

  stepspec report runs/math500 runs/gsm8k -o reports
"""


def command(
    runs: Annotated[
        list[Path],
        Argument(help="Run folders, as `stepspec eval` writes them.", metavar="RUN..."),
    ],
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="The folder for the report; default: RUN if there is only one, else ./report.",
            metavar="FOLDER",
        ),
    ] = None,
    baseline: Annotated[
        str,
        Option(
            help="The arm that all others are compared with; default: that of the run.",
            metavar="ARM",
        ),
    ] = "",
    max_loss: Annotated[
        float,
        Option(
            help=(
                "The acceptable loss of accuracy, as a share of all problems; the verdicts are"
                " about it."
            )
        ),
    ] = MAX_LOSS,
) -> None:
    """
    Write report.html and report.json about runs: accuracy, time, tokens, and their causes.

    The verdict on each method comes first, and is printed too. Each run has a section of its own.
    """
    if not 0 < max_loss < 1:
        raise ConfigurationError(
            f"--max-loss {max_loss}: a share above 0 and below 1; 0.02 is 2 points of accuracy"
        )
    if find_spec("jinja2") is None:
        raise ConfigurationError(f"`stepspec report` needs jinja2: {install_command('evals')}")
    sections = [build_section(read_folder(run), max_loss, baseline) for run in runs]
    folder = output or (runs[0] if len(runs) == 1 else Path("report"))
    writable("--output", folder / "report.html")
    write(folder, sections)
    for section in sections:
        _show(section)
    for name in ("report.json", "report.html"):
        stderr.print(f"wrote {folder / name}", soft_wrap=True)


def write(folder: Path, sections: Sequence[Section]) -> None:
    """Write both formats of the report, and the pages of the traces that it links to."""
    from stepspec.evals.report.formats import to_html, to_json  # which import jinja2

    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    origin = f"Made by stepspec {__version__} on {datetime.date.today()}: {command}"
    linked = [
        (section, _write_traces(folder, section, number))
        for number, section in enumerate(sections, start=1)
    ]
    (folder / "report.html").write_text(to_html(linked, origin), encoding="utf-8")
    (folder / "report.json").write_bytes(to_json(sections, origin))


def _show(section: Section) -> None:
    """Print the verdicts, without markup: intervals stand in brackets."""
    stdout.print(section.stamp, soft_wrap=True)
    for name, verdict in section.verdicts.items():
        stdout.print(f"{name}: {verdict}.", soft_wrap=True)


def _write_traces(folder: Path, section: Section, number: int) -> Links:
    """
    Write a page for the trace of each case of section *number* that has one.

    Return the paths of the pages, relative to *folder*.
    """
    links: dict[tuple[int, str], str] = {}
    for case in chain.from_iterable(section.cases.values()):
        arm = case.sample.arm
        trace = section.run.trace(case.number, arm)
        if trace is not None:
            target = f"{TRACES}/{number}-{trace.stem}.html"
            (folder / TRACES).mkdir(exist_ok=True)
            (folder / target).write_text(html(trace.read_bytes()), encoding="utf-8")
            links[case.number, arm] = target
    return links
