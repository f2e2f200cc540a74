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
from ..results import Interval, aligned
from .accuracy import Accuracy
from .measuring import Measured
from .prediction import MAX_PASSED, Figures, Verdict, predict, ranked

COMMENT_COLUMNS = 96
MIN_ENDED = 3  # chains that ended, of which some should be solved


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, and what follows from it."""

    measured: Measured
    """The measurements."""
    methods: tuple[Figures, ...]
    """What is expected of the methods, as `ranked` orders them."""
    minutes: float
    """The limit of the measurement."""
    problems: str
    """The problems, in words."""
    accuracy: Accuracy | None = None
    """Answers of the method and of the large model alone; None if they were not compared."""
    solved: int | None = None
    """Chains of the large model with the right answer, of those that ended; None: not known."""
    ended: int = 0
    """Chains of the large model that ended."""

    @classmethod
    def of(
        cls,
        measured: Measured,
        minutes: float,
        problems: str,
        **more: Any,
    ) -> Report:
        """Predict what every method gains, and choose one."""
        paces = measured.paces
        methods: tuple[Figures, ...] = ()
        if paces is not None:
            lengths = measured.lengths
            methods = ranked([predict(each, paces, lengths) for each in measured.tried])
        return cls(measured, methods, minutes, problems, **more)

    @property
    def best(self) -> Figures | None:
        """The method to use, or that may pay; None if none may."""
        return next((method for method in self.methods if not method.careless), None)

    @property
    def verdict(self) -> Verdict:
        """Whether the pair pays."""
        if self.best is not None:
            return self.best.verdict
        paces = self.measured.paces
        is_hopeless = paces is not None and paces.hopeless
        return "does not pay" if is_hopeless or self.methods else "not known"

    @property
    def headline(self) -> str:
        """Whether it pays, in one or two sentences."""
        paces = self.measured.paces
        if paces is not None and paces.hopeless:
            return (
                f"It does not pay: the small model takes {1000 * paces.small.token:.3g} ms for a"
                f" token, the large one {1000 * paces.large.token:.3g} ms; choose a smaller model."
            )
        if not self.methods:
            return f"Not known yet: no draft was tried in {self.minutes:g} minutes; give more."
        best = self.best
        if best is None:
            fastest = self.methods[0]
            return (
                f"It does not pay: every method lets more than {MAX_PASSED:.0%} of the small"
                f" model's errors through, also {fastest.arm.name}, the fastest"
                f" ({fastest.alone.value:.1f}x)."
            )
        gain = f"{times(best.alone.value)} as fast as the large model alone {within(best.alone)}"
        if paces is not None and best.loaded is not None:
            gain += f", {times(best.loaded)} with {paces.users} users"
        if self.verdict == "pays":
            return f"Use {best.arm.name}: {gain}."
        if self.verdict == "does not pay":
            return (
                f"It does not pay: {best.arm.name}, the best method, is {gain}; it accepts"
                f" {best.accepted.value:.0%} of the drafts."
            )
        return f"Not known yet: {best.arm.name} may be {gain}; {self._enough(best)}."

    def _enough(self, best: Figures) -> str:
        more = best.minutes_needed(self.minutes)
        if more is None:
            return "it is about as fast, so that more minutes would not tell"
        return f"{more:.0f} more minute{'' if more == 1 else 's'} would be enough"

    def lines(self, written: str = "") -> Iterator[str]:
        """The headline, and what is known of verdicts, answers and problems."""
        yield self.headline
        if self.methods:
            answers = "not measured (give problems with answers)."
            if self.accuracy is not None:
                answers = self.accuracy.sentence
            yield f"Verdicts: {verdicts(self.methods[0])} Answers: {answers}"
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

    def table(self) -> Table:
        """A line for each method, the best first."""
        users = self.measured.paces.users if self.measured.paces else 1
        return aligned(
            [
                {
                    "method": method.arm.name,
                    "accepted": f"{method.accepted.value:.0%}",
                    "errors": points(method.errors) if method.errors else "",
                    "alone": f"{times(method.alone.value)} {within(method.alone)}",
                    f"{users} users": times(method.loaded) if method.loaded else "",
                }
                for method in self.methods
            ]
        )

    def notes(self) -> Iterator[str]:
        """What the reader should know about these figures."""
        best = self.best
        if best is not None and best.errors is None:
            yield f"{best.arm.name}: the small model made too few errors here to judge verdicts by"
        for name, why in self.measured.skipped.items():
            yield f"{name}: left out, its requests failed: {why}"

    def details(self) -> Iterator[str]:
        """The measurements behind the table, a line each."""
        paces = self.measured.paces
        if paces is not None:
            for name, server in (("small", paces.small), ("large", paces.large)):
                yield (
                    f"{name} model: {1000 * server.token:.1f} ms a token, first token after"
                    f" {1000 * server.first:.0f} ms"
                )
            loaded = f"{1000 * paces.loaded:.1f} ms a token"
            yield f"large model, {paces.users} streams at once: {loaded}"
        lengths = self.measured.lengths
        yield (
            f"{len(lengths)} chains of the large model, {self.ended} ended,"
            f" {sum(lengths.values())} tokens"
        )
        for method in self.methods:
            yield (
                f"{method.arm.name}: accepts {points(method.accepted)} in {method.drafts} places;"
                f" a verdict takes {1000 * method.verdict_seconds:.0f} ms"
            )

    def settings(self, settings: Settings, date: str) -> str:
        """
        Both servers of *settings*, the method to use, and what `auto` begins with, as TOML.

        API keys are left out.
        """
        comments = [self.headline, f"Measured by `stepspec tune` on {date}."]
        ends = {role: getattr(settings, role) for role in ("small", "large", "critic")}
        if any(isinstance(end, Endpoint) and end.api_key for end in ends.values()):
            comments.append(
                "API keys are not in this file: set STEPSPEC_SMALL__API_KEY and"
                " STEPSPEC_LARGE__API_KEY.",
            )
        head = [
            textwrap.fill(
                line,
                COMMENT_COLUMNS,
                initial_indent="# ",
                subsequent_indent="# ",
            )
            for line in comments
        ]
        text = document(
            {
                **changed_settings(settings),
                **self._choice(),
                **{role: endpoint_table(end) for role, end in ends.items() if end},
            },
        )
        return "\n".join([*head, text])

    def _choice(self) -> dict[str, Any]:
        """The settings that say which method runs, and what `auto` begins with."""
        best = self.best
        paces = self.measured.paces
        if best is None or paces is None or self.verdict == "does not pay":
            return {"policy": "large"}
        slow = best.loaded is not None and best.loaded < 1
        prior = Prior(
            accept_rate=round(best.accepted.value, 4),
            verdict_seconds=round(best.verdict_seconds, 4) or None,
            pace=round(paces.ratio, 4),
            runs=1 if slow else None,
        )
        chosen = {"policy": best.arm.policy, "prior": prior.model_dump(exclude_none=True)}
        options = dict(best.arm.options)
        return {**chosen, "options": options} if options else chosen

    def record(self, toml: str) -> dict[str, Any]:
        """All figures, for ``--json``."""
        best = self.best
        measured = self.measured
        return {
            "verdict": self.verdict,
            "headline": self.headline,
            "best": best.arm.name if best else None,
            "methods": [
                {
                    **asdict(method),
                    **method.arm.record(),
                    "arm": method.arm.name,
                    "careless": method.careless,
                }
                for method in self.methods
            ],
            "paces": asdict(measured.paces) if measured.paces else None,
            "chains": {"written": len(measured.chains), "ended": self.ended},
            "solved": self.solved,
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
            "problems": self.problems,
            "skipped": measured.skipped,
            "notes": list(self.notes()),
            "seconds": measured.seconds,
            "interrupted": measured.interrupted,
            "settings": toml,
        }


def endpoint_table(settings: Any) -> Mapping[str, Any]:
    """Return the fields of an endpoint that are set, as a table of a settings file."""
    fields = settings.model_dump(
        mode="json",
        exclude_unset=True,
        exclude={"role", "api_key"},
    )
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def times(value: float) -> str:
    """Write how many times as fast: ``1.9x``."""
    return f"{value:.1f}x" if abs(value - 1) > 0.1 else f"{value:.2f}x"


def within(interval: Interval) -> str:
    """Write the ends of *interval*: ``[1.6, 2.3]``."""
    high = "..." if interval.high > 99 else f"{interval.high:.1f}"
    return f"[{interval.low:.1f}, {high}]"


def points(interval: Interval) -> str:
    """Write a share in per cent, with its interval: ``11% [4, 25]``."""
    return f"{interval.value:.0%} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def verdicts(method: Figures) -> str:
    """Say what the verdicts of *method* let through."""
    errors = points(method.errors) if method.errors else "an unknown share"
    return f"{errors} of the small model's errors let through."
