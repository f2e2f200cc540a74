"""The command ``stepspec report``."""

from __future__ import annotations

import datetime
import importlib.metadata
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.service.page import html

from ..evaluation import TRACES
from .cases import Case
from .html import page
from .layout import Links
from .markdown import markdown
from .prices import load
from .run_folder import merge, read
from .section import Section, origin, section

EXAMPLES = """
Examples:

  stepspec report runs/math500

  stepspec report runs/math500 runs/gsm8k --prices prices.toml --output reports
"""

stderr = Console(stderr=True)


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, as `stepspec eval` writes them.", metavar="RUN...")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write to; RUN if it is one, else report.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="What the GPUs cost, as TOML; docs/reports.md shows one.", metavar="FILE")
    ] = None,
) -> None:
    """
    Write report.md, report.json and report.html about runs: how right, how fast, at what cost, and why.

    Runs of the same problems, models, sampling and budget are put together; each other one has a section of its own.
    """
    priced = load(prices)
    sections = [section(run, priced) for run in merge([read(run) for run in runs])]
    folder = output or (runs[0] if len(runs) == 1 else Path("report"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, sections)
    except OSError as exc:
        raise ConfigurationError(f"{exc.filename}: {exc.strerror}") from exc
    for name in ("report.md", "report.json", "report.html"):
        stderr.print(f"wrote {folder / name}", highlight=False, soft_wrap=True)


def write(folder: Path, sections: Sequence[Section]) -> None:
    """Write the report in all its formats, and a page for each trace that it leads to."""
    made = _made()
    names = [""] if len(sections) == 1 else [f"{at}-" for at in range(1, len(sections) + 1)]
    told = [(each, _pages(folder, each, name)) for each, name in zip(sections, names, strict=True)]
    (folder / "report.md").write_text(markdown(told, made), encoding="utf-8")
    (folder / "report.html").write_text(page(told, made), encoding="utf-8")
    shown = {"made": made, "sections": [_plain(each) for each in sections]}
    (folder / "report.json").write_bytes(orjson.dumps(shown, option=orjson.OPT_INDENT_2))


def _made() -> str:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    version = importlib.metadata.version("stepspec")
    return f"Made by stepspec {version} on {datetime.date.today()}: {command}"


def _pages(folder: Path, section: Section, prefix: str) -> Links:
    """Write a page for the trace of each case that has one; where they are, relative to *folder*."""
    found: dict[tuple[int, str], str] = {}
    for case in _cases(section):
        trace = section.run.trace(case.number, section.run.done[case.number, case.arm])
        if trace is not None:
            target = Path(TRACES) / f"{prefix}{trace.stem}.html"
            (folder / TRACES).mkdir(exist_ok=True)
            (folder / target).write_text(html(trace.read_bytes()), encoding="utf-8")
            found[case.number, case.arm] = target.as_posix()
    return found


def _cases(section: Section) -> set[Case]:
    chosen = section.cases
    return {*chosen.slowest, *chosen.disputed, *chosen.lost, *chosen.gained}


def _plain(section: Section) -> dict[str, Any]:
    """Every figure of *section*, with what it was measured on."""
    return {
        "benchmark": section.title,
        "about": section.stamp,
        "remarks": section.remarks,
        "problems": section.problems,
        "origin": [{"name": name, "value": value} for name, value in origin(section)],
        "arms": [asdict(figures) for figures in section.figures],
        "judges": [{"arm": one.arm, "scores": len(one.graded), "separation": one.separation} for one in section.judges],
        "servers": section.counted,
        "prices": section.prices.model_dump(),
        "costs": section.costs,
        "cases": section.cases,
        "measured": section.run.about,
    }
