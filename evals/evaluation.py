"""One evaluation from its settings to its run folder: what is measured, where it is kept, what came of it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError, StepspecError
from stepspec.orchestrator.nesting import described

from . import provenance
from .benchmarks import Benchmark
from .grading.graders import Graders
from .plan import Plan, check_arm, identity, trials
from .results import SMALL_PRINT, ArmSummary, compare_arms
from .runner import Post, Team, here, run
from .sample import Sample, Task
from .store import Place, SampleStore
from .testbed.servers import counting, weights_digest

SAMPLES, RUN, PROBLEMS, SUMMARY, TRACES = "samples.jsonl", "run.json", "problems.jsonl", "summary.json", "traces"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """
    A *plan* for the problems of a *benchmark*, and the *folder* that everything goes to.

    *whole* is the benchmark's hash before any limit, so that a run can be made longer; *profile* is the pace of the
    miniature pair, if that is what runs. *graders* processes grade, each answer for at most *patience* seconds. What
    the folder has of the same evaluation is kept, unless *fresh*. *remarks* are to be read beside the figures.
    """

    benchmark: Benchmark
    plan: Plan
    folder: Path
    whole: str
    half: str | None = None
    profile: str | None = None
    traces: bool = False
    fresh: bool = False
    graders: int = 2
    patience: float = 10.0
    remarks: tuple[str, ...] = ()

    def about(self, solver: Solver) -> dict[str, Any]:
        """What has to be the same for samples to belong together."""
        template = self.benchmark.template
        return {
            "benchmark": self.benchmark.name,
            "problems": self.whole,
            "half": self.half,
            "profile": self.profile,
            "prompt": template.sha256 if template else None,
            "models": {"small": described(solver.small), "large": solver.large.name},
            "weights": weights_digest("large", "small") if self.profile else None,
            **identity(self.plan),
        }


async def evaluate(
    solver: Solver, evaluation: Evaluation, console: Console, team: Team | None = None
) -> list[ArmSummary]:
    """
    Measure what is not measured yet and return the standings, which are also in the folder.

    A *team* takes the samples, on other machines; without one, this process does.

    Raise `ConfigurationError` if the folder holds something else.
    """
    for arm in evaluation.plan.arms:
        check_arm(arm, solver.settings)
    folder, about = evaluation.folder, orjson.loads(orjson.dumps(evaluation.about(solver)))
    with SampleStore(folder / SAMPLES, about, fresh=evaluation.fresh) as samples:
        record = await _begin(solver, evaluation, about, team, resumed=len(samples.done))
        try:
            await _measure(solver, evaluation, samples, console, team)
        except StepspecError as exc:
            if not isinstance(exc, ConfigurationError):  # which says itself what to do
                console.print(f"what was measured is in {folder}; the same command goes on from there")
            raise
        await _end(solver, evaluation, record, team)
    return _conclude(evaluation, {place: samples.done[place] for place in _places(evaluation.plan)})


def _places(plan: Plan) -> list[Place]:
    return [trial.place for trial in trials(plan)]


async def _measure(
    solver: Solver, evaluation: Evaluation, samples: SampleStore, console: Console, team: Team | None
) -> None:
    """Take the samples that there are none of, with a bar that says how long it is going to take."""
    plan, places = evaluation.plan, _places(evaluation.plan)
    done = sum(place in samples.done for place in places)
    if done == len(places):
        return
    traces = evaluation.folder / TRACES if evaluation.traces else None
    if traces is not None:
        traces.mkdir(exist_ok=True)
    posts = _posts(solver, evaluation, team)
    async with Graders(evaluation.graders, evaluation.patience) as graders:
        with counting(console) as progress:
            bar = progress.add_task(evaluation.benchmark.name, total=len(places), completed=done)
            await run(
                posts,
                plan,
                graders,
                samples,
                traces=traces,
                on_sample=lambda sample: progress.advance(bar),
            )


def _posts(solver: Solver, evaluation: Evaluation, team: Team | None) -> Sequence[Post]:
    if team is None:
        return [partial(here, solver, evaluation.plan)]
    return team.posts(solver.settings, evaluation.plan, near=evaluation.profile is not None)


async def _begin(
    solver: Solver, evaluation: Evaluation, about: Mapping[str, Any], team: Team | None, resumed: int
) -> dict[str, Any]:
    """Write down what is about to happen; what earlier sessions wrote down is kept."""
    path, benchmark = evaluation.folder / RUN, evaluation.benchmark
    earlier: list[Any] = orjson.loads(path.read_bytes())["sessions"] if path.is_file() and resumed else []
    session = {
        **provenance.here(),
        "resumed": resumed,
        "problems": len(evaluation.plan.tasks),
        "servers": await provenance.servers(solver),
        "prompts": provenance.prompt_hashes(),
        "remarks": evaluation.remarks,
        **_record(team),
    }
    record: dict[str, Any] = {
        "about": about,
        "benchmark": {
            name: getattr(benchmark, name)
            for name in ("name", "source", "subset", "split", "licence", "metric", "prompt")
        },
        "sessions": [*earlier, session],
    }
    _replace(path, orjson.dumps(record, option=orjson.OPT_INDENT_2))
    _replace(evaluation.folder / PROBLEMS, b"".join(_line(at, task) for at, task in enumerate(evaluation.plan.tasks)))
    return record


async def _end(solver: Solver, evaluation: Evaluation, record: Mapping[str, Any], team: Team | None) -> None:
    """Add to the last session when it ended and what the servers had counted by then."""
    record["sessions"][-1] |= {
        "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "counters": [server["counters"] for server in await provenance.servers(solver)],
        **_record(team),
    }
    _replace(evaluation.folder / RUN, orjson.dumps(record, option=orjson.OPT_INDENT_2))


def _record(team: Team | None) -> dict[str, Any]:
    return {"ray": team.record()} if team else {}


def _line(number: int, task: Task) -> bytes:
    shown = {"number": number, "name": task.name, "problem": task.problem, "answer": task.answer}
    return orjson.dumps(shown) + b"\n"


def _conclude(evaluation: Evaluation, kept: Mapping[Place, Sample]) -> list[ArmSummary]:
    standings = compare_arms(kept, evaluation.plan.arms, evaluation.plan.repeats)
    if not standings:
        raise ConfigurationError("no problem fits into the models' contexts beside the room to think in")
    report = {
        "benchmark": evaluation.benchmark.name,
        "half": evaluation.half,
        "date": str(datetime.date.today()),
        "arms": [asdict(standing) for standing in standings],
        "note": " ".join((*evaluation.remarks, SMALL_PRINT)),
    }
    _replace(evaluation.folder / SUMMARY, orjson.dumps(report, option=orjson.OPT_INDENT_2))
    return standings


def _replace(path: Path, content: bytes) -> None:
    """Write *path* whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
