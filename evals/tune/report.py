"""What `stepspec tune` says: a headline, a table, details, and settings. No I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.prior import Prior
from stepspec.orchestrator.toml import document
from stepspec.settings import Settings

from ..calibration.policy_file import changed_settings
from ..results import Interval
from .accuracy import Accuracy
from .measuring import Measured
from .prediction import MAX_ERRORS_PASSED, MIN_GAIN, Conclusion, Figures, conclude, predict

COMMENT_COLUMNS = 96
METHOD_COLUMNS = 18
MIN_ENDED = 3  # chains that ended, of which some should be solved


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, and what follows from it."""

    measured: Measured
    """The measurements."""
    conclusion: Conclusion
    """Whether a method pays, and which one."""
    minutes: float
    """The limit of the measurement."""
    problems: str
    """The problems, in words."""
    accuracy: Accuracy | None = None
    """Answers of the method and of the large model alone; None if there are none to compare with."""
    solved: int | None = None
    """Chains of the large model with the right answer, of those that ended; None: not known."""
    ended: int = 0
    """Chains of the large model that ended."""

    @classmethod
    def of(cls, measured: Measured, minutes: float, problems: str, **more: Any) -> Report:
        """Predict what every method gains, and choose one."""
        paces = measured.paces
        methods: list[Figures] = []
        if paces is not None and not paces.hopeless:
            weights = measured.weights()
            tried = [each for each in measured.methods.values() if each.trials]
            methods = [predict(each, paces, weights) for each in tried]
        conclusion = conclude(methods)
        unknown = not methods and not (paces and paces.hopeless)
        if unknown:
            conclusion = Conclusion("not known", (), None, None)
        return cls(measured, conclusion, minutes, problems, **more)

    @property
    def headline(self) -> str:
        """Whether it pays, in one or two sentences."""
        paces = self.measured.paces
        best = self.conclusion.best
        fastest = self.conclusion.fastest
        if paces is not None and paces.hopeless:
            return (
                f"It does not pay: the small model takes {1000 * paces.small.token:.3g} ms for a"
                f" token, the large one {1000 * paces.large.token:.3g} ms; choose a smaller model."
            )
        if fastest is None:
            return f"Not known yet: no draft was tried in {self.minutes:g} minutes; give more."
        if best is None:
            return (
                f"It does not pay: every method lets more than {MAX_ERRORS_PASSED:.0%} of the small"
                f" model's errors through, also {fastest.arm.name}, the fastest"
                f" ({fastest.alone.value:.1f}x)."
            )
        if self.conclusion.verdict == "pays":
            return f"Use {best.arm.name}: {times(best.alone.value)} {self._against(best)}."
        if self.conclusion.verdict == "does not pay":
            return (
                f"It does not pay: {best.arm.name}, the best method, is {times(best.alone.value)}"
                f" {self._against(best)}; it accepts {best.accepted.value:.0%} of the drafts."
            )
        return (
            f"Not known yet: {best.arm.name} may be {times(best.alone.value)}"
            f" {self._against(best)}; {self._enough(best)}."
        )

    def _against(self, best: Figures) -> str:
        text = f"as fast as the large model alone {within(best.alone, '.1f')}"
        if best.loaded is None or self.measured.paces is None:
            return text
        return f"{text}, {times(best.loaded)} with {self.measured.paces.users} users"

    def _enough(self, best: Figures) -> str:
        more = best.minutes_needed(self.minutes)
        if more is None:
            return "it is about as fast, so that more minutes would not tell"
        return f"{more:.0f} more minute{'' if more == 1 else 's'} would be enough"

    def lines(self, written: str = "") -> Iterator[str]:
        """The headline, and what is known of verdicts, answers and problems."""
        yield self.headline
        best = self.conclusion.best or self.conclusion.fastest
        if best is not None:
            yield f"Verdicts: {verdicts(best)} Answers: {self._answers()}"
        done = f" Wrote {written}." if written else ""
        yield f"Problems: {self.problems}.{done}"
        if self.solved == 0 and self.ended >= MIN_ENDED:
            yield (
                f"The large model solved none of the {self.ended} problems that it finished: it is"
                " no reasoning model, or these are not its problems. Give problems that it can"
                " solve (--problems)."
            )
        if self.measured.interrupted:
            yield f"Interrupted after {self.measured.seconds:.0f} s: this is what was known."

    def _answers(self) -> str:
        if self.accuracy is not None:
            return self.accuracy.sentence
        return "not measured (give problems with answers)."

    def table(self) -> Table:
        """A line for each method, the best first, in 80 columns."""
        users = self.measured.paces.users if self.measured.paces else 1
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method", max_width=METHOD_COLUMNS, overflow="fold")
        columns = ["accepted", "errors", "slips", "alone"]
        if users > 1:
            columns.append(f"{users} users")
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for method in self.conclusion.methods:
            cells = [
                f"{method.accepted.value:.0%}",
                "" if method.errors is None else points(method.errors),
                "" if method.slips is None else f"{method.slips.value:.0%}",
                f"{times(method.alone.value)} {within(method.alone, '.1f')}",
                "" if method.loaded is None else times(method.loaded),
            ]
            table.add_row(method.arm.name, *cells[: len(columns)])
        return table

    def details(self) -> Iterator[str]:
        """What else was measured, a line each."""
        paces = self.measured.paces
        if paces is not None:
            for name, server in (("small", paces.small), ("large", paces.large)):
                low, high = (1000 * edge(server.tokens) for edge in (min, max))
                yield (
                    f"{name} model: {1000 * server.token:.1f} ms a token [{low:.1f}, {high:.1f}],"
                    f" first token after {1000 * server.first:.0f} ms"
                )
            if paces.large.loaded is not None:
                yield (
                    f"large model, {paces.users} streams at once:"
                    f" {1000 * paces.large.loaded:.1f} ms a token"
                )
        chains = self.measured.chains.values()
        tokens = sum(chain.written.tokens for chain in chains)
        yield f"{len(chains)} chains of the large model, {self.ended} ended, {tokens} tokens"
        for method in self.conclusion.methods:
            runs = self.measured.methods[method.arm.name].runs
            counts = ", ".join(
                f"{sum(len(run.rounds) for run in some)} rounds with {size} at once"
                for size, some in sorted(runs.items())
            )
            yield (
                f"{method.arm.name}: accepts {points(method.accepted)} in {method.drafts} places,"
                f" {method.seen_errors} with an error; a verdict takes"
                f" {1000 * method.verdict_seconds:.0f} ms; runs: {counts or 'none'}"
            )
        yield (
            "errors: the share of the small model's own wrong drafts that are let through; slips:"
            " of errors made on purpose; brackets: 95% intervals, in which steps of one problem"
            f" depend on each other; a method pays from {MIN_GAIN:g}x on"
        )

    def notes(self) -> Iterator[str]:
        """What the reader should know about these figures, and the cure."""
        best = self.conclusion.best
        if best is not None and best.errors is not None and best.length is not None:
            passed = best.errors.value
            if best.length <= passed:
                yield (
                    f"{best.arm.name}: to accept as many drafts by their length alone lets no more"
                    f" errors through ({best.length:.0%}, not {passed:.0%})"
                )
        if best is not None and best.errors is None:
            yield (
                f"{best.arm.name}: the small model made too few errors here to judge verdicts by;"
                " slips are easier to see than errors of reasoning"
            )
        for name, why in self.measured.skipped.items():
            yield f"{name}: left out, its requests failed: {why}"

    def settings(self, settings: Settings, date: str) -> str:
        """Both servers of *settings*, the method to use, and what `auto` begins with, as TOML."""
        best = self.conclusion.best
        lines = (self.headline, f"Measured by `stepspec tune` on {date}.")
        if best is None or self.conclusion.verdict == "does not pay":
            return settings_file(settings, lines, {"policy": "large"})
        paces = self.measured.paces
        assert paces is not None
        slow = best.loaded is not None and best.loaded < 1
        prior = Prior(
            accept_rate=best.accepted.value,
            verdict_seconds=best.verdict_seconds or None,
            pace=paces.ratio,
            runs=1 if slow else None,
        )
        tables: dict[str, Any] = {"policy": best.arm.policy, "options": dict(best.arm.options)}
        known = prior.model_dump(exclude_none=True)
        tables["prior"] = {name: round(value, 4) for name, value in known.items()}
        return settings_file(settings, lines, tables)

    def record(self, toml: str) -> dict[str, Any]:
        """All figures, for ``--json``."""
        paces = self.measured.paces
        best = self.conclusion.best
        return {
            "verdict": self.conclusion.verdict,
            "headline": self.headline,
            "best": best.arm.name if best else None,
            "methods": [self._method(method) for method in self.conclusion.methods],
            "paces": asdict(paces) if paces else None,
            "chains": {"written": len(self.measured.chains), "ended": self.ended},
            "solved": self.solved,
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
            "problems": self.problems,
            "skipped": dict(self.measured.skipped),
            "notes": list(self.notes()),
            "seconds": self.measured.seconds,
            "interrupted": self.measured.interrupted,
            "settings": toml,
        }

    def _method(self, method: Figures) -> dict[str, Any]:
        fields = {name: value for name, value in asdict(method).items() if name != "arm"}
        more = method.minutes_needed(self.minutes)
        return {
            "name": method.arm.name,
            "policy": method.arm.policy,
            "options": dict(method.arm.options),
            "careless": method.careless,
            "minutes_needed": more,
            **fields,
            "spread": min(method.spread, 1e9),
        }


def times(value: float) -> str:
    """Write how many times as fast: ``1.9x``."""
    return f"{value:.1f}x" if abs(value - 1) > 0.1 else f"{value:.2f}x"


def within(interval: Interval, spec: str) -> str:
    """Write the ends of *interval*: ``[1.6, 2.3]``."""
    high = "..." if interval.high > 99 else f"{interval.high:{spec}}"
    return f"[{interval.low:{spec}}, {high}]"


def points(interval: Interval) -> str:
    """Write a share in per cent, with its interval: ``11% [4, 25]``."""
    return f"{interval.value:.0%} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def verdicts(method: Figures) -> str:
    """Say what the verdicts of *method* let through."""
    slips = (
        "an unknown share of slips" if method.slips is None else f"{points(method.slips)} of slips"
    )
    errors = "an unknown share" if method.errors is None else points(method.errors)
    return f"{slips} and {errors} of the small model's own errors let through."


def settings_file(settings: Settings, lines: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """
    Both servers of *settings* with other *values*, as a TOML file under the comment *lines*.

    API keys are left out.
    """
    named = {role: getattr(settings, role) for role in ("small", "large", "critic")}
    endpoints = {role: endpoint_table(end) for role, end in named.items() if end}
    comments = [*lines]
    if any(isinstance(end, Endpoint) and end.api_key for end in named.values()):
        comments.append(
            "API keys are not in this file: set STEPSPEC_SMALL__API_KEY and"
            " STEPSPEC_LARGE__API_KEY."
        )
    filled = (
        textwrap.fill(line, COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# ")
        for line in comments
    )
    plain = {name: value for name, value in values.items() if value != {}}
    text = document({**changed_settings(settings), **plain, **endpoints})
    return "\n".join((*filled, text))


def endpoint_table(settings: Any) -> dict[str, Any]:
    """
    Return the fields of an endpoint that are set, as a table of a settings file, without its key.
    """
    fields = settings.model_dump(mode="json", exclude_unset=True, exclude={"role", "api_key"})
    address = {"url": fields.pop("url")} if "url" in fields else {}  # a function has none
    others = {name: value for name, value in fields.items() if value not in (None, [], {})}
    return {**address, **others}
