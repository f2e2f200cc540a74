"""What an estimate says: a verdict in words, tables, notes, and the settings to use. No I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.table import Table

from stepspec.orchestrator.auto import Prior
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.toml import document
from stepspec.settings import Settings

from ..calibration.policy_file import changed_settings
from .measurements import SHARED, Measurements, ServerMeasurement
from .prediction import Estimate, MethodEstimate

WIDTH = 100  # columns of a comment
NO_FASTER = 0.7  # of the large model's seconds a token, above which a small one hardly helps
NARROW = 0.2  # width of an interval, as a logarithm, that needs no advice
NARROWER = {
    "accept": (
        "the accept rate, from {drafts} drafts: more --minutes, or more problems (-n), try more"
    ),
    "length": (
        "whether an accepted draft stands for its own tokens or for the large model's own step,"
        " which are not equally long: `stepspec eval` measures whole problems"
    ),
    "pace": (
        "the paces, which vary: let nobody else use the servers, and measure for more --minutes"
    ),
}
SMALL_PRINT = (
    "Gain: seconds of the large model as one ordinary request over those of the method, computed"
    " from the measured times, the drafts that were tried after beginnings of the large model's own"
    " chains, and the verdicts on them. Assumptions: your problems are like these {problems}; a"
    " chain goes on as it begins; a token takes as long at its end as at its beginning; nobody else"
    " uses the servers; and the answers are good enough, for nothing is graded here: `stepspec"
    " eval` does that. Brackets: Wilson's 95% interval of the accept rate; for gains it is combined"
    " with the least and the greatest of the measured times, and with both ways to count the"
    " progress of an accepted draft. Under load, runs of the two best methods were measured for"
    " some seconds, and the interval is that of one problem at a time. Of times: the least and the"
    " greatest."
)


def headline(estimate: Estimate) -> str:
    """Whether it pays, in a sentence or two."""
    best = estimate.best
    if best is None:
        return f"It does not pay. {_why_not(estimate.methods[0])}"
    text = (
        f"{best.arm.name} is expected to be {best.alone.gain:.2f} times as fast as the large model"
        " as one ordinary request, one problem at a time."
    )
    if best.tried and best.alone.gain.low >= 1:
        return f"It pays: {text}"
    few = f"That is from {best.drafts} draft{'s' * (best.drafts != 1)}: measure for more --minutes."
    why = "The interval includes 1: see what would narrow it." if best.tried else few
    return f"It is not known whether it pays: {text} {why}"


def _why_not(method: MethodEstimate) -> str:
    text = (
        f"{method.arm.name}, the fastest method, is expected to be {method.alone.gain:.2f} times as"
        " fast as the large model as one ordinary request."
    )
    if not method.drafts:
        return f"{text} No draft could be tried in this time."
    accepted = f"{method.accepted:.0%} of {method.drafts} drafts were accepted"
    if method.break_even is None:
        return (
            f"{text} {accepted}, and no accept rate would be enough: the small model or the"
            " verdicts are too slow."
        )
    return f"{text} {accepted}; it breaks even at {method.break_even:.0%}."


def methods_table(estimate: Estimate) -> Table:
    """A row for each method: accept rates and gains by load."""
    loads = sorted({gain.concurrency for method in estimate.methods for gain in method.gains[1:]})
    columns = ["", "drafts", "accepted", "break-even", "ahead", "gain, one at a time"]
    table = _table([*columns, *(f"{load} at once" for load in loads)])
    for method in estimate.methods:
        loaded = {gain.concurrency: f"{gain.gain.value:.2f}" for gain in method.gains}
        table.add_row(
            method.arm.name,
            str(method.drafts),
            f"{method.accepted:.0%}",
            "none" if method.break_even is None else f"{method.break_even:.0%}",
            f"{method.alone.ahead}{', hedged' if method.alone.hedge else ''}",
            f"{method.alone.gain:.2f}",
            *(loaded.get(load, "-") for load in loads),
        )
    return table


def servers_table(measured: Measurements) -> Table:
    """A row for each measured time, a column for each server."""
    table = _table(["", "small", "large"])
    servers = measured.small, measured.large
    table.add_row("model", *(server.model for server in servers))
    for streams in sorted({streams for server in servers for streams in server.between}):
        label = "between two tokens" + (f", {streams} streams at once" if streams > 1 else "")
        table.add_row(label, *(_times(server.between.get(streams, ())) for server in servers))
    table.add_row("the same, while the other server reads", _times(measured.small.contended), "")
    table.add_row("the same, as an ordinary request", "", _times(measured.plain))
    table.add_row("first token", *(_times(server.first) for server in servers))
    for arm in measured.arms:
        verdicts = [
            trial.seconds[1] for trial in measured.trials[arm.name] if trial.seconds is not None
        ]
        table.add_row(f"a verdict of {arm.name}", "", _times(verdicts))
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
    """
    What would narrow the intervals, and what the reader should know about these measurements, with
    the cure.
    """
    small, large = measured.small, measured.large
    for method in estimate.methods:
        if method.widths and max(method.widths.values()) > NARROW:
            cause = max(method.widths, key=lambda cause: method.widths[cause])
            yield f"{method.arm.name}: widest is {NARROWER[cause].format(drafts=method.drafts)}"
    if measured.chains:
        length, ended = measured.length[0], len(measured.chains) - measured.cut
        bound = "at least " if measured.cut else ""
        yield (
            f"{ended} of {len(measured.chains)} chains ended; they have {bound}{length:.0f} tokens"
            f" on average, so that an ordinary request takes {bound}{estimate.seconds:.3g} s"
        )
    for server in (small, large):
        if server.prefix_cache is False:
            yield (
                f"{server.role}: no prefix cache: every request reads the whole chain again, which"
                " takes the longer the longer your chains are: start vLLM with"
                " --enable-prefix-caching"
            )
        if server.sequences is not None:
            yield (
                f"{server.role}: it serves {server.sequences} requests at once (--max-num-seqs),"
                " and others wait"
            )
    if small.stalled > SHARED:
        yield (
            f"the small model stands still for {small.stalled:.0%} of the time while the large one"
            " reads, as on a card that both share: with a card each, drafts go on during verdicts"
        )
    if estimate.best is not None and estimate.best.runs is not None:
        yield (
            f"{estimate.best.arm.name} saved no time with more than {estimate.best.runs} problems"
            " at once: with the settings below, `auto` lets the large model write alone then"
            " (prior.runs)"
        )
    if small.token > NO_FASTER * large.token:
        yield (
            f"the small model takes {1000 * small.token:.3g} ms for a token, the large one"
            f" {1000 * large.token:.3g} ms: it is hardly faster; choose a smaller one"
        )
    for name, why in measured.skipped.items():
        yield f"{name}: requests failed, and it was not measured any more: {why}"
    scoring = [arm.name for arm in measured.arms if arm.policy in ("bild", "reading", "reflective")]
    if scoring and not large.suffix_scoring:
        yield (
            f"{', '.join(scoring)}: each verdict reads the whole chain again, which takes the"
            " longer the longer your chains are: start the large server with --enable-scale-out"
            " --enable-prompt-tokens-details and set suffix_scoring = true"
        )


def estimated_settings(
    estimate: Estimate, measured: Measurements, settings: Settings, date: str
) -> str:
    """
    The settings to use, as a TOML file: those of the fastest method, or the large model alone.
    """
    best = estimate.best
    lines = [headline(estimate), f"Estimated by `stepspec estimate` on {date}."]
    if best is None:
        return settings_file(settings, lines, {"policy": "large"})
    values: dict[str, Any] = {"policy": best.arm.policy, "ahead": best.alone.ahead}
    values |= {"hedge": best.alone.hedge} if best.alone.hedge else {}
    prior = None
    if best.tried:
        rate, pace = best.accepted.value, measured.small.token / measured.large.token
        prior = Prior(
            accept_rate=rate, verdict_seconds=best.verdict_seconds, pace=pace, runs=best.runs
        )
    return settings_file(
        settings,
        lines,
        values,
        best.arm.options,
        prior,
        suffix_scoring=measured.large.suffix_scoring,
    )


def settings_file(
    settings: Settings, lines: Sequence[str], values: Mapping[str, Any], options: Mapping[str, Any] | None = None,
    prior: Prior | None = None, *, suffix_scoring: bool = False,
) -> str:  # fmt: skip
    """
    Both servers of *settings* with *values* and the *options* of a method, as a TOML file under the
    comment *lines*.

    *prior* is what `auto` begins with. API keys are left out.
    """
    named = {role: getattr(settings, role) for role in ("small", "large", "critic")}
    endpoints = {role: endpoint_table(endpoint) for role, endpoint in named.items() if endpoint}
    if suffix_scoring:
        endpoints["large"]["suffix_scoring"] = True
    tables: dict[str, Any] = {"options": dict(options)} if options else {}
    if prior is not None:
        tables["prior"] = {
            name: round(value, 4) for name, value in prior.model_dump(exclude_none=True).items()
        }
    keys = any(
        isinstance(end, Endpoint) and end.api_key for end in (settings.small, settings.large)
    )
    about = (
        "API keys are not in this file: set STEPSPEC_SMALL__API_KEY and STEPSPEC_LARGE__API_KEY."
    )
    comments = (
        f"{textwrap.fill(line, WIDTH, initial_indent='# ', subsequent_indent='# ')}\n"
        for line in (*lines, *([about] if keys else []))
    )
    return f"{''.join(comments)}{document({**changed_settings(settings), **values, **endpoints, **tables})}"


def endpoint_table(settings: Any) -> dict[str, Any]:
    """
    The fields of an endpoint that are set, as a table of a settings file, without its API key.
    """
    fields = settings.model_dump(mode="json", exclude_unset=True, exclude={"role", "api_key"})
    address = {"url": fields.pop("url")} if "url" in fields else {}  # a function has none
    return {
        **address,
        **{name: value for name, value in fields.items() if value not in (None, [], {})},
    }


def record(estimate: Estimate, measured: Measurements, toml: str) -> dict[str, Any]:
    """All figures, for ``--json``."""
    return {
        "pays": estimate.best is not None,
        "best": estimate.best.arm.name if estimate.best else None,
        "headline": headline(estimate),
        "methods": [_method(method) for method in estimate.methods],
        "servers": {server.role: _server(server) for server in (measured.small, measured.large)},
        "plain": measured.plain,
        "plain_seconds": estimate.seconds,
        "chains": [asdict(chain) for chain in measured.chains],
        "runs": [
            {"name": name, "at_once": load, "token": token}
            for (name, load), token in measured.runs.items()
        ],
        "trials": {
            name: [asdict(trial) for trial in trials] for name, trials in measured.trials.items()
        },
        "seconds": measured.seconds,
        "notes": list(notes(measured, estimate)),
        "settings": toml,
    }


def _method(method: MethodEstimate) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(method).items() if name != "arm"}
    arm = method.arm
    return {
        "name": arm.name,
        "policy": arm.policy,
        "options": dict(arm.options),
        "pays": method.pays,
        **fields,
    }


def _server(server: ServerMeasurement) -> dict[str, Any]:
    return {
        **asdict(server),
        "between": {str(streams): times for streams, times in server.between.items()},
    }
