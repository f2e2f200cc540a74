"""From a calibration on real servers to a policy file that `solve`, `serve` and `eval` accept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from rich.table import Table

from ..api import Solver
from ..orchestrator.drift import grades
from ..orchestrator.endpoints import Sampling
from ..orchestrator.errors import ConfigurationError
from ..orchestrator.events import Event
from ..policies.knobs import KNOBS, Knob
from .arms import LARGE, Arm, Task
from .benchmarks import Benchmark
from .calibrating import Attempt, Calibrated, Tried
from .calibration import needed
from .grading import Graders
from .trial import solve_once

Half: TypeAlias = Literal["calibration", "report"]

SEEDS_APART = 1_000_003  # between those that eval reports on and those that are calibrated on


def half(problem: str) -> Half:
    """Which half of a benchmark *problem* belongs to: what one is calibrated on is not what one reports on."""
    return "calibration" if blake2b(problem.encode(), digest_size=1).digest()[0] % 2 else "report"


def knob(policy: str, option: str | None = None, values: Sequence[float] | None = None) -> Knob:
    """
    The knob of *policy*, or another *option* with its *values*, the strictest first.

    Raise `ConfigurationError` where there is none.
    """
    known = KNOBS.get(policy)
    if option is None or (known is not None and option == known.option):
        if known is None:
            raise ConfigurationError(
                f"what makes {policy!r} looser is not known: name an option and its values, the strictest first, as in "
                f"--option threshold --values 9,8,7 (known: {', '.join(KNOBS)})"
            )
        return Knob(known.option, tuple(values), known.compared) if values else known
    if not values:
        raise ConfigurationError(f"--option {option} needs --values, the strictest first")
    return Knob(option, tuple(values))


def attempts(
    solver: Solver, tasks: Sequence[Task], benchmark: Benchmark, policy: str, knob: Knob, graders: Graders
) -> Attempt:
    """Try a value by solving on real servers; what ended without an answer that could be graded is not right."""
    fixed = {key: value for key, value in _options(solver, policy).items() if key != knob.option}

    async def attempt(problem: int, value: float | None) -> Tried:
        events: list[Event] = []
        arm = LARGE if value is None else Arm(policy, policy, {**fixed, knob.option: value})
        task = tasks[problem]
        sampling = solver.settings.sampling
        seeded = Sampling.model_validate({**sampling.model_dump(), "seed": sampling.seed + problem})
        solved = await solve_once(solver, arm, task.problem, sampling=seeded, observe=events.append)
        text = solved.solution.text if solved.solution else ""
        right = bool(text) and await graders.grade(text, task.answer, benchmark.metric) == "right"
        return Tried(problem, value, right, tuple(round(grade, 4) for grade in grades(events)))

    return attempt


def _options(solver: Solver, policy: str) -> Mapping[str, Any]:
    return solver.settings.options if policy == solver.settings.policy else {}


@dataclass(frozen=True, slots=True)
class Promise:
    """What was calibrated, and what came of it; made for the eye and for a settings file."""

    policy: str
    knob: Knob
    benchmark: str
    calibrated: Calibrated
    options: Mapping[str, Any]

    @property
    def confidence(self) -> float:
        return round(1 - self.calibrated.level, 6)

    def said(self) -> str:
        """One sentence that says what may be relied on, or what it would take."""
        c, found = self.calibrated, self.calibrated.found
        if found is not None:
            return (
                f"With {self.knob.option} = {found.threshold:g}, {self.policy} loses at most {c.limit:.1%} of such "
                f"problems to the large model alone, at {self.confidence:.0%} confidence."
            )
        strictest = c.tested[0]
        said = (
            f"No {self.knob.option} of {self.policy} can be promised: at {strictest.threshold:g}, the strictest, "
            f"{strictest.paired.n} problems with {strictest.paired.lost} lost and {strictest.paired.gained} gained do "
            f"not show that the loss is at most {c.limit:.1%} at {self.confidence:.0%} confidence."
        )
        if c.enough is None:
            return f"{said} Nor would more problems at these rates: the loss itself is no less than the limit."
        least = needed(c.limit, c.level)
        return f"{said} At these rates {c.enough:,} problems would do, and with nothing lost at all {least:,}."

    def table(self) -> Table:
        shown = Table(title=f"{self.policy} on {self.benchmark}, against the large model alone")
        for column in (self.knob.option, "problems", "lost", "gained", "loss", "p", "holds"):
            shown.add_column(column, justify="right")
        for each in self.calibrated.tested:
            paired = each.paired
            counts = (str(paired.n), str(paired.lost), str(paired.gained))
            shown.add_row(
                f"{each.threshold:g}", *counts, f"{paired.loss:.1%}", f"{each.p:.4f}", "yes" if each.holds else "no"
            )
        return shown

    def toml(self) -> str:
        """The settings file. Raise `ConfigurationError` if nothing can be promised."""
        found, c = self.calibrated.found, self.calibrated
        if found is None:
            raise ConfigurationError(self.said())
        calibration = {
            "policy": self.policy,
            "option": self.knob.option,
            "value": float(found.threshold),
            "max_loss": c.limit,
            "confidence": self.confidence,
            "benchmark": self.benchmark,
            "problems": found.paired.n,
            "lost": found.paired.lost,
            "gained": found.paired.gained,
            "date": str(date.today()),
            "edges": list(c.grades.edges),
            "counts": list(c.grades.counts),
        }
        options = {**self.options, self.knob.option: float(found.threshold)}
        tables = {"options": options, "calibration": calibration}
        body = "".join(f"\n[{name}]\n{_lines(table)}" for name, table in tables.items())
        return f"# {self.said()}\npolicy = {json.dumps(self.policy)}\n{body}"


def _lines(table: Mapping[str, Any]) -> str:
    """Lines of TOML; strings, numbers, truth values and lists are written there as in JSON."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
