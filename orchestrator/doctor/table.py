"""The doctor's report for a terminal: a table for each pair, the findings, and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..endpoints.probe import LONG
from .advice import LACKS, milliseconds, tokens_read
from .report import ORDER, CriticReport, Diagnosis, EndpointReport, Finding, Ordering, Outcome, Report

COLOURS: Mapping[Outcome, str] = {"works": "green", "costs": "yellow", "cannot work": "red", "unknown": "magenta"}
ORDERINGS: Mapping[Ordering, Outcome] = {
    "kept": "works",
    "not seen": "costs",
    "could not tell": "unknown",
    "refused": "costs",
}
ROWS = (
    *("server", "model", "vLLM", "context", "thinks", "speculative decoding", "drafted tokens accepted"),
    *(name.replace("_", " ") for name in LACKS),
    *("probability of digits", "first token", "each further token"),
    *("a verdict reads", "a verdict takes", "order by priority"),
    *("suffix scoring", f"scoring a step after {LONG} tokens"),
)


def render(report: Report) -> Iterator[RenderableType]:
    """Yield the parts of *report* for a terminal, tables and lines; the last line is its summary."""
    for pair in report.pairs:
        if len(report.pairs) > 1:
            yield Text(pair.name, "bold")
        yield _table(pair)
        yield from _lines(pair.findings)
    if report.critic:
        yield _critic_table(report.critic)
        yield from _lines(report.critic.findings)
    yield Text(report.summary, "bold green" if report.ok else "bold red")


def _lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Yield a line for each finding, what cannot work first, between empty lines."""
    yield Text()
    for finding in sorted(findings, key=lambda finding: ORDER.index(finding.outcome)):
        yield _line(finding)
    if findings:
        yield Text()


def _line(finding: Finding) -> Text:
    return Text.assemble((f"{finding.outcome}  ", COLOURS[finding.outcome]), str(finding))


def _table(pair: Diagnosis) -> Table:
    reports = (pair.small, pair.large, *pair.others)
    table = _columns(*(report.role for report in reports))
    rows = [*zip(ROWS, *map(_cells, reports), strict=True)]
    unusable = all(report.problem for report in reports)
    for name, *cells in rows[:2] if unusable else rows:
        table.add_row(name, *cells)
    if not unusable:
        table.add_row("one vocabulary", _mark(pair.same_vocabulary, missing="costs"), "")
    return table


def _columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", *names):
        table.add_column(name, overflow="fold")
    return table


def _critic_table(critic: CriticReport) -> Table:
    table = _columns("critic")
    if critic.url:
        table.add_row("server", critic.url)
    table.add_row("model", Text("cannot be used", "red") if critic.problem else critic.model or _mark(None))
    table.add_row("rates a right one", _mark(None) if critic.right is None else f"{critic.right:.2f}")
    table.add_row("rates a wrong one", _mark(None) if critic.wrong is None else f"{critic.wrong:.2f}")
    return table


def _cells(report: EndpointReport) -> list[RenderableType]:
    can, unknown = report.can, _mark(None)
    if can is None:
        return [report.url, Text("cannot be used", COLOURS["cannot work"]), *[unknown] * (len(ROWS) - 2)]
    return [
        report.url,
        report.model or unknown,
        can.version or unknown,
        unknown if report.context is None else f"{report.context} tokens",
        _mark(report.thinks, missing="works").append(f" ({report.thinks_by})"),
        _mark(can.speculation, missing="works"),
        str(report.acceptance or ("none" if can.speculation is False else unknown)),
        *(_mark(getattr(can, name), missing=lack.outcome) for name, lack in LACKS.items()),
        unknown if report.digits is None else f"{report.digits:.1%}",
        milliseconds(report.pace.first if report.pace else None),
        milliseconds(report.pace.between if report.pace else None, digits=1),
        tokens_read(report.reading),
        milliseconds(report.reading.seconds if report.reading else None),
        Text(report.ordering, COLOURS[ORDERINGS[report.ordering]]) if report.ordering else unknown,
        {True: Text("on", "green"), False: Text("refused", "red"), None: Text("off", "yellow")}[can.suffix_scoring],
        milliseconds(report.scoring),
    ]


def _mark(value: bool | None, *, missing: Outcome = "unknown") -> Text:
    """Return yes, no or unknown, in the colour of its outcome; *missing* is the outcome of a no."""
    if value is None:
        return Text("unknown", COLOURS["unknown"])
    return Text("yes", COLOURS["works"]) if value else Text("no", COLOURS[missing])
