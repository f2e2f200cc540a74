"""What an estimate says: a verdict in words, tables, notes, and the settings to use. No I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.table import Table

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.toml import document
from stepspec.settings import Settings

from ..arms import LARGE
from ..results import Interval
from .measurements import Measurements, ServerMeasurement
from .prediction import Estimate, Expected, MethodEstimate

FEW_DRAFTS = 50
WIDTH = 100  # columns of a comment
UNDERSTOOD = 0.5
NO_FASTER = 0.7  # of the large model's seconds a token, above which a small one hardly helps
FAR = 1.15  # a correction beyond which something else is going on

SMALL_PRINT = (
    "Expected times are those of a simulation: stepspec's own loop replays {runs} runs of up to {limit} tokens on "
    "servers with the measured costs, corrected by what runs with nothing beside them took. Assumptions: your "
    "problems are like these {problems}; a chain goes on as it begins; a token takes as long at its end as at its "
    "beginning; nobody else uses the servers; and the answers are good enough, for nothing is graded here: `stepspec "
    "eval` does that, and `stepspec calibrate` finds a threshold with a guarantee. Brackets: of accept rates Wilson's "
    "95% interval; of speed-ups a 95% bootstrap over the problems, or the accept rate's interval if that is wider, "
    "combined with the least and the greatest of the measured paces. Under load the interval is that of one problem at "
    "a time. Accepted, break-even: shares of the judged drafts. Of times: the least and the greatest."
)


def headline(estimate: Estimate) -> str:
    """Whether it pays, in a sentence or two."""
    best = estimate.best
    if best is None:
        return f"It does not pay. {_why_not(estimate.methods[0])}"
    alone = best.alone
    text = (
        f"It pays: with {best.arm.name}, a problem is expected to take {alone.seconds:.3g} s instead of "
        f"{alone.seconds_large:.3g} s with the large model alone, {_speed_up(alone.speed_up)} times as fast, one "
        "problem at a time."
    )
    if alone.speed_up.low < 1:
        text += " The interval includes 1: measure more problems (-n, --minutes) before you rely on it."
    if best.stop is not None:
        return f"{text} From about {best.stop} problems at once the large model alone is faster."
    if estimate.highest > 1:
        return f"{text} It still pays with {estimate.highest} problems at once, the highest load that was measured."
    return text


def _why_not(method: MethodEstimate) -> str:
    alone = method.alone
    text = (
        f"With {method.arm.name}, the fastest method, a problem is expected to take {alone.seconds:.3g} s instead of "
        f"{alone.seconds_large:.3g} s with the large model alone: {_speed_up(alone.speed_up)} times as fast."
    )
    if not method.drafts:
        return text
    accepted = f"{_percent(method.accepted)} of the {method.drafts} drafts were accepted"
    if alone.break_even is None:
        return f"{text} No accept rate would be enough; {accepted}. The small model or the verdicts are too slow."
    return f"{text} {accepted}; it breaks even at {alone.break_even:.0%}."


def _speed_up(interval: Interval) -> str:
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _percent(interval: Interval) -> str:
    return f"{interval.value:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


def methods_table(estimate: Estimate) -> Table:
    """A row for each method: accept rates and speed-ups by load."""
    loads = [each.concurrency for each in estimate.methods[0].expected]
    columns = ["", "accepted", "break-even", "ahead", "speed-up, one at a time"]
    table = _table([*columns, *(f"{load} at once (break-even)" for load in loads[1:]), "slower from"])
    for method in estimate.methods:
        first, *others = method.expected
        table.add_row(
            method.arm.name,
            _percent(method.accepted) if method.drafts else "",
            _even(method, first),
            str(first.ahead),
            _speed_up(first.speed_up),
            *(f"{each.speed_up.value:.2f} ({_even(method, each)})" for each in others),
            f"none up to {estimate.highest}" if method.stop is None else f"{method.stop} at once",
        )
    return table


def _even(method: MethodEstimate, expected: Expected) -> str:
    if not method.drafts:
        return ""
    return "none" if expected.break_even is None else f"{expected.break_even:.0%}"


def servers_table(measured: Measurements) -> Table:
    """A row for each measured time, a column for each server."""
    table = _table(["", "small", "large"])
    servers = measured.small, measured.large
    table.add_row("model", *(server.model for server in servers))
    for streams in sorted({streams for server in servers for streams in server.between}):
        label = "between two tokens" + (f", {streams} streams at once" if streams > 1 else "")
        table.add_row(label, *(_times(server.between.get(streams, ())) for server in servers))
    table.add_row("first token, prompt cached", *(_times(server.cached) for server in servers))
    label = f"first token, {measured.large.prompt} tokens to read"
    table.add_row(label, *(_times(server.uncached) for server in servers))
    table.add_row("each token to read", *(f"{1e6 * max(0.0, median(s.prompt_token)):.0f} us" for s in servers))
    verdict = measured.verdict
    read = f", {median(verdict.read):.0f} of {verdict.chain} tokens read"
    table.add_row("a verdict of one token", "", _times(verdict.seconds) + read)
    return table


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    low, middle, high = (1000 * value for value in (min(seconds), median(seconds), max(seconds)))
    return f"{middle:.1f} ms [{low:.1f}, {high:.1f}]"


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    return table


def notes(measured: Measurements, estimate: Estimate) -> Iterator[str]:
    """What the reader should know about these measurements: the cause, and the cure where there is one."""
    small, large = measured.small, measured.large
    for server in (small, large):
        if server.prefix_cache is False:
            yield (
                f"{server.role}: no prefix cache: every request reads the whole chain again, here at "
                f"{1e6 * max(0.0, median(server.prompt_token)):.0f} us a token: start vLLM with --enable-prefix-caching"
            )
        if server.sequences is not None:
            yield f"{server.role}: it serves {server.sequences} requests at once (--max-num-seqs), and others wait"
    if small.token > NO_FASTER * large.token:
        yield (
            f"the small model takes {1000 * small.token:.3g} ms for a token, the large one {1000 * large.token:.3g} "
            "ms: it is hardly faster; choose a smaller one"
        )
    if measured.verdict.understood < UNDERSTOOD:
        yield (
            f"large: asked for a grade, it puts {measured.verdict.understood:.0%} on digits: a judge that does not "
            "understand the question rejects too much"
        )
    for name, why in measured.skipped.items():
        yield f"{name} was not measured: {why}"
    for name, recorded in measured.runs.items():
        if name != LARGE.name and any(run.script.uncached for run in recorded) and not large.suffix_scoring:
            yield (
                f"{name}: each of its verdicts reads the whole chain again, which takes the longer the longer your "
                "chains are: start the large server with --enable-scale-out --enable-prompt-tokens-details and set "
                "suffix_scoring = true"
            )
    runs = [run for each in measured.runs.values() for run in each]
    if cut := sum(run.cut for run in runs):
        yield f"{cut} of {len(runs)} runs were cut after {measured.limit} tokens: more --minutes measure longer chains"
    for method in estimate.methods:
        if 0 < method.drafts < FEW_DRAFTS:
            yield f"{method.arm.name}: only {method.drafts} drafts were judged: more --minutes, or more problems (-n)"
        if not 1 / FAR < method.correction < FAR:
            yield (
                f"{method.arm.name}: compared with the large model alone, timed runs took {method.correction:.2f} "
                f"times what the simulation says, which corrects the estimate: was anything else running?"
            )


def settings_file(estimate: Estimate, measured: Measurements, settings: Settings, date: str) -> str:
    """
    The settings to use, as a TOML file that stepspec reads: those of the fastest method, or the large model alone.

    API keys are left out.
    """
    best = estimate.best
    lines = [headline(estimate), f"Estimated by `stepspec estimate` on {date}."]
    values: dict[str, Any] = {"policy": best.arm.policy if best else "large"}
    if best is not None:
        values["ahead"] = best.alone.ahead
        if best.stop is not None:
            values["auto"] = True
            lines.append("With auto, a run lets the large model write alone while the method does not pay.")
    endpoints = {role: endpoint_table(getattr(settings, role)) for role in ("small", "large")}
    if measured.large.suffix_scoring:
        endpoints["large"]["suffix_scoring"] = True
    if any(isinstance(end, Endpoint) and end.api_key for end in (settings.small, settings.large)):
        lines.append("API keys are not in this file: set STEPSPEC_SMALL__API_KEY and STEPSPEC_LARGE__API_KEY.")
    tables: dict[str, Mapping[str, Any]] = {"options": best.arm.options} if best and best.arm.options else {}
    comments = "".join(f"{textwrap.fill(line, WIDTH, initial_indent='# ', subsequent_indent='# ')}\n" for line in lines)
    return f"{comments}{document({**values, **endpoints, **tables})}"


def endpoint_table(settings: Any) -> dict[str, Any]:
    """The fields of an endpoint that are set, as a table of a settings file, without its API key."""
    fields = settings.model_dump(mode="json", exclude_unset=True, exclude={"role", "api_key"})
    return {"url": fields.pop("url"), **{name: value for name, value in fields.items() if value not in (None, [], {})}}


def record(estimate: Estimate, measured: Measurements, toml: str) -> dict[str, Any]:
    """All figures, for ``--json``."""
    return {
        "pays": estimate.best is not None,
        "best": estimate.best.arm.name if estimate.best else None,
        "headline": headline(estimate),
        "problems": estimate.problems,
        "methods": [_method(method) for method in estimate.methods],
        "servers": {server.role: _server(server) for server in (measured.small, measured.large)},
        "verdict": asdict(measured.verdict),
        "run_tokens": measured.limit,
        "seconds": measured.seconds,
        "notes": list(notes(measured, estimate)),
        "settings": toml,
    }


def _method(method: MethodEstimate) -> dict[str, Any]:
    return {
        "name": method.arm.name,
        "policy": method.arm.policy,
        "options": dict(method.arm.options),
        "drafts": method.drafts,
        "accepted": asdict(method.accepted) if method.drafts else None,
        "pays": method.pays,
        "stop": method.stop,
        "correction": method.correction,
        "expected": [asdict(each) for each in method.expected],
    }


def _server(server: ServerMeasurement) -> dict[str, Any]:
    fields = asdict(server)
    fields["between"] = {str(streams): times for streams, times in server.between.items()}
    return {**fields, "costs": asdict(server.costs())}
