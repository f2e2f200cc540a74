"""
One section of a report: the figures of one run, remarks on their limits, provenance, and cases to
look at.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.policies import METHODS

from ..arms import LARGE
from ..sample import Sample
from ..testbed.servers import miniature
from .figures import ArmFigures, by_time, compute_figures, samples_by_number
from .run_folder import Run
from .verdict import MAX_LOSS, Verdict, judge_methods

SHOWN = 5  # of the slowest cases
SHOWN_APART = 12  # cases that only one of the method and the baseline got right
HASH = 12  # characters of a prompt's hash in the list


@dataclass(frozen=True, slots=True)
class Case:
    """
    A sample of a method, and the seconds of the baseline; *rejected* of *drafts* were repaired.
    """

    number: int
    problem: int
    arm: str
    outcome: str
    seconds: float
    baseline_seconds: float
    drafts: int
    rejected: int


Cases: TypeAlias = Mapping[Literal["slowest", "lost", "gained"], tuple[Case, ...]]
"""Samples of the methods: those with the most seconds, and those lost or gained on the baseline."""


@dataclass(frozen=True, slots=True)
class Section:
    """
    The figures of one *run*, and verdicts on a loss of *max_loss*, the fastest first.

    All of it compares with the arm *baseline*.
    """

    run: Run
    figures: tuple[ArmFigures, ...]
    cases: Cases
    verdicts: tuple[Verdict, ...]
    max_loss: float
    baseline: str

    @property
    def title(self) -> str:
        return str(self.run.about["benchmark"])

    @property
    def problems(self) -> int:
        """
        The number of problems for which every arm has all its samples; all figures are about these.
        """
        return self.figures[0].result.n // self.run.repeats

    @property
    def dates(self) -> str:
        days = sorted({session["date"][:10] for session in self.run.sessions})
        return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"

    @property
    def models(self) -> dict[str, str]:
        return dict(self.run.about["models"])

    @property
    def commands(self) -> list[str]:
        """The commands that measured the run, without repetitions."""
        return list(dict.fromkeys(shlex.join(session["command"]) for session in self.run.sessions))

    @property
    def miniature(self) -> bool:
        return miniature(self.models.values())

    @property
    def stamp(self) -> str:
        """The line below every plot and table: benchmark, number of problems, models, dates."""
        repeats = "" if self.run.repeats == 1 else f" x {self.run.repeats} samples"
        pair = " (the miniature pair)" if self.miniature else ""
        models = f"{self.models['large']} with {self.models['small']}{pair}"
        return f"{self.title}, n = {self.problems}{repeats}; {models}; {self.dates}"

    @property
    def remarks(self) -> list[str]:
        """Sentences about the limits of the figures of this run."""
        remarks = [_miniature(self.run.about.get("profile"))] if self.miniature else []
        wanted, concurrency = len(self.run.problems), int(self.run.about["concurrency"])
        if self.problems < wanted:
            remarks.append(
                f"Unfinished: {self.problems} of {wanted} problems were solved by all arms, and"
                " only these count. The same `stepspec eval` continues the run."
            )
        remarks += self._sharing(concurrency)
        if concurrency > 1:
            remarks.append(
                f"{concurrency} runs were executed at the same time: seconds are measured under"
                " that load, and busy seconds are an upper bound, because requests of different"
                " runs shared the servers."
            )
        if half := self.run.about.get("half"):
            remarks.append(
                f"Only the half of the benchmark that is reserved for the {half} was used."
            )
        recorded = [
            remark for session in self.run.sessions for remark in session.get("remarks", ())
        ]
        return [*remarks, *dict.fromkeys(recorded)]

    def _sharing(self, concurrency: int) -> list[str]:
        """Sentences about hardware that arms, or the two models, share."""
        remarks: list[str] = []
        if concurrency > 1:
            remarks.append(
                "Runs of different arms were in flight at the same time and shared the servers: an"
                " arm is slower beside a demanding one. To avoid that, measure each arm in a run of"
                " its own, or with --concurrency 1."
            )
        places = [
            (server["role"], urlsplit(str(server["url"])).hostname)
            for server in self.run.sessions[0]["servers"]
        ]
        small, large = (
            {host for role, host in places if role == one} for one in ("small", "large")
        )
        if shared := small & large:
            remarks.append(
                f"Both models are served at {min(map(str, shared))}. If they share a card or CPU"
                " cores, work of the small model slows the large one in every arm with both, as it"
                " would not on separate hardware."
            )
        return remarks


def _miniature(name: str | None) -> str:
    profile = f" (profile `{name}`)" if name else ""
    return (
        "The miniature pair: two models of 0.1 and 1.3 million parameters, trained on arithmetic,"
        f" served by real vLLM on a CPU; only the cost of a forward pass is set{profile}, to have"
        " the shape of a GPU's. The figures show the overhead of stepspec and how methods compare"
        " where the judge is good. They predict nothing about real models."
    )


def build_section(run: Run, max_loss: float = MAX_LOSS, baseline: str = "") -> Section:
    """
    Compute everything about *run*. The verdicts are about a loss of accuracy above *max_loss*, a
    share.

    The *baseline* is by default the one that the run was measured with. Raise `ConfigurationError`
    if the run has no such arm, or if no problem was solved by all of its arms.
    """
    baseline = baseline or run.baseline
    if baseline not in (known := [arm.name for arm in run.arms]):
        raise ConfigurationError(
            f"--baseline {baseline}: the run has no such arm; its arms: {', '.join(known)}"
        )
    figures = compute_figures(run.done, run.arms, run.repeats, baseline)
    if not figures:
        raise ConfigurationError(
            f"{run.path}: no problem was solved by all arms yet; go on with the same `stepspec eval`"
        )
    samples = samples_by_number(run.done, run.arms, run.repeats)
    return Section(
        run,
        tuple(figures),
        choose_cases(figures, samples, run.repeats, baseline),
        tuple(judge_methods(by_time(figures), samples, run.repeats, max_loss, baseline)),
        max_loss,
        baseline,
    )


def choose_cases(
    arms: Sequence[ArmFigures],
    samples: Mapping[str, Mapping[int, Sample]],
    repeats: int,
    baseline: str = LARGE.name,
) -> Cases:
    """
    Choose cases from the samples of the methods; *samples* has those of every arm, by their number.
    """
    theirs = samples[baseline]
    compared = [
        (_case(number, repeats, sample, theirs[number]), sample.correct - theirs[number].correct)
        for figures in arms
        if figures.method
        for number, sample in samples[figures.arm.name].items()
    ]
    return {
        "slowest": tuple(
            sorted((case for case, _ in compared), key=lambda case: -case.seconds)[:SHOWN]
        ),
        "lost": tuple(case for case, difference in compared if difference < 0)[:SHOWN_APART],
        "gained": tuple(case for case, difference in compared if difference > 0)[:SHOWN_APART],
    }


def _case(number: int, repeats: int, sample: Sample, theirs: Sample) -> Case:
    ledger = sample.ledger
    return Case(
        number,
        number // repeats,
        sample.arm,
        sample.outcome,
        sample.seconds,
        theirs.seconds,
        ledger.drafts,
        ledger.drafts - ledger.accepted,
    )


def provenance(section: Section) -> Iterator[tuple[str, str]]:
    """Yield the rows, name and value, of the list "How it was measured"."""
    about, (first, *_) = section.run.about, section.run.sessions
    benchmark = section.run.record["benchmark"]
    yield "run folder", str(section.run.path)
    for command in section.commands:
        yield "command", command
    yield "measured", _times(section)
    yield (
        "problems",
        (
            f"{section.problems}, {_source(benchmark)}; licence: {benchmark['licence']}; hash"
            f" {about['problems']}"
        ),
    )
    yield "graded as", ", ".join(section.run.metrics)
    yield "sampling", _join(about["sampling"])
    yield "budget", _join(about["budget"])
    yield (
        "samples",
        f"{about['repeats']} a problem, seed {about['seed']}, {about['concurrency']} at a time",
    )
    for server in first["servers"]:
        yield f"{server['role']} server", _server(server)
    yield "prompts", _prompts(section)
    yield "code", f"commit {first['commit'] or 'unknown'}; {_join(first['versions'])}"
    yield "machine", f"{first['platform']}, {first['cpus']} CPUs, Python {first['python']}"


def _prompts(section: Section) -> str:
    """The hashes of the texts that decide how problems are put and steps are judged."""
    about, first = section.run.about, section.run.sessions[0]
    replaced: Mapping[str, str] = about.get("prompts", {})
    methods = [METHODS[arm.policy] for arm in section.run.arms if arm.policy in METHODS]
    template: str | None = section.run.record["benchmark"].get("prompt")
    names = {*replaced, *(name for method in methods for name in method.prompts)}
    of_template = {template: about["prompt"]} if template and about.get("prompt") else {}
    hashes: Mapping[str, str] = {**of_template, **first.get("prompts", {}), **replaced}
    known = [name for name in sorted(hashes) if name in names or name == template]
    shown = [
        f"{name} {hashes[name][:HASH]}{' (replaced)' if name in replaced else ''}" for name in known
    ]
    return ", ".join(shown) or "none"


def _times(section: Section) -> str:
    return "; ".join(
        f"{s['date']} to {s.get('ended', 'interrupted')}" for s in section.run.sessions
    )


def _source(benchmark: Mapping[str, Any]) -> str:
    parts = [benchmark["source"], benchmark["subset"], benchmark["split"]]
    return (
        " ".join(str(part) for part in parts if part)
        if benchmark["source"]
        else str(benchmark["name"])
    )


def _server(server: Mapping[str, Any]) -> str:
    models = [
        f"{model['id']}, context {model.get('max_model_len', 'unknown')}"
        for model in server["models"] or ()
    ]
    return (
        f"vLLM {server['version'] or 'unknown'} at {server['url']}:"
        f" {'; '.join(models) or 'unknown'}"
    )


def _join(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
