"""One evaluation from its plan to its run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError, StepspecError

from . import provenance
from .benchmarks import Benchmark
from .grading.graders import Graders
from .plan import Plan, check_arm, identity, trials
from .progress import progress_bars
from .results import Result, compare_arms
from .runner import WorkerGroup, WorkerSlot, local_worker, run
from .sample import Sample, Task
from .store import SampleStore
from .testbed.servers import weights_digest

SAMPLES = "samples.jsonl"
RUN = "run.json"
PROBLEMS = "problems.jsonl"
TRACES = "traces"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A plan for the problems of a benchmark, and the folder for its files."""

    benchmark: Benchmark
    """The benchmark."""
    plan: Plan
    """The arms, the tasks and the seeds."""
    folder: Path
    """The run folder."""
    digest: str
    """The hash of the benchmark before any limit, so that a run can be extended."""
    half: str | None = None
    """The half of the benchmark; None: all of it."""
    profile: str | None = None
    """The pace of the miniature pair; None: other servers."""
    traces: bool = False
    """Whether the trace of each run is kept."""
    fresh: bool = False
    """Whether samples in the folder are discarded."""
    remarks: tuple[str, ...] = ()
    """Remarks that are shown with the figures."""

    def about(self, solver: Solver) -> dict[str, Any]:
        """Return the values that have to agree for samples to belong to one run."""
        template = self.benchmark.template
        return {
            "benchmark": self.benchmark.name,
            "problems": self.digest,
            "half": self.half,
            "profile": self.profile,
            "prompt": template.sha256 if template else None,
            "system": solver.settings.system,
            "models": dict(solver.models),
            "weights": weights_digest() if self.profile else None,
            "prompts": {name: prompt.sha256 for name, prompt in solver.prompts.items()},
            "templates": solver.templates,
            **identity(self.plan),
        }


async def evaluate(
    solver: Solver,
    evaluation: Evaluation,
    console: Console,
    workers: WorkerGroup | None = None,
) -> list[Result]:
    """
    Measure the samples that are missing. Return the results and write them to the folder.

    The runs go to *workers* on other machines, or to this process if *workers* is None. Raise
    `ConfigurationError` if the folder holds another run.
    """
    for arm in evaluation.plan.arms:
        check_arm(arm, solver.settings)
    folder = evaluation.folder
    about = orjson.loads(orjson.dumps(evaluation.about(solver)))
    with SampleStore(folder / SAMPLES, about, fresh=evaluation.fresh) as samples:
        resumed = len(samples.done)
        record = await _begin(solver, evaluation, about, workers, resumed)
        try:
            await _measure(solver, evaluation, samples, console, workers)
        except ConfigurationError:
            raise  # Its message says what to do.
        except StepspecError:
            console.print(f"what was measured is in {folder}; the same command goes on from there")
            raise
        record["sessions"][-1] |= {"ended": provenance.now(), **_record(workers)}
        _write_json(folder / RUN, record)
    return _compared(evaluation, samples)


async def _measure(
    solver: Solver,
    evaluation: Evaluation,
    samples: SampleStore,
    console: Console,
    workers: WorkerGroup | None,
) -> None:
    """Measure the missing samples, with a progress bar."""
    plan = evaluation.plan
    places = [trial.place for trial in trials(plan)]
    done = sum(place in samples.done for place in places)
    if done == len(places):
        return
    traces = evaluation.folder / TRACES if evaluation.traces else None
    if traces is not None:
        traces.mkdir(exist_ok=True)
    slots: Sequence[WorkerSlot] = [partial(local_worker, solver, plan)]
    if workers:
        slots = workers.slots(solver.settings, plan)
    with progress_bars(console) as progress:
        bar = progress.add_task(
            evaluation.benchmark.name,
            total=len(places),
            completed=done,
        )

        def advance(_: Sample) -> None:
            progress.advance(bar)

        await run(slots, plan, Graders(), samples, traces=traces, on_sample=advance)


async def _begin(
    solver: Solver,
    evaluation: Evaluation,
    about: Mapping[str, Any],
    workers: WorkerGroup | None,
    resumed: int,
) -> dict[str, Any]:
    """Write the record of this session to the run file, after those of earlier sessions."""
    path = evaluation.folder / RUN
    benchmark = evaluation.benchmark
    earlier: list[Any] = []
    if resumed and path.is_file():
        earlier = orjson.loads(path.read_bytes())["sessions"]
    session = {
        **provenance.program(),
        "resumed": resumed,
        "problems": len(evaluation.plan.tasks),
        "servers": await provenance.servers(solver),
        "prompts": provenance.prompt_hashes(),
        "remarks": evaluation.remarks,
        **_record(workers),
    }
    record: dict[str, Any] = {
        "about": about,
        "benchmark": {
            name: getattr(benchmark, name)
            for name in ("name", "source", "subset", "split", "licence", "prompt")
        },
        "sessions": [*earlier, session],
    }
    _write_json(path, record)
    if evaluation.fresh:
        for trace in (evaluation.folder / TRACES).glob("*.jsonl"):
            trace.unlink()
    listed = evaluation.folder / PROBLEMS
    problems = b"".join(map(_line, count(), evaluation.plan.tasks))
    # A run with a larger --limit has listed more problems.
    if not (resumed and listed.is_file() and listed.read_bytes().startswith(problems)):
        _replace(listed, problems)
    return record


def _record(workers: WorkerGroup | None) -> dict[str, Any]:
    return {"ray": workers.record()} if workers else {}


def _line(number: int, task: Task) -> bytes:
    fields = {"number": number, "name": task.name, "problem": task.problem, **task.gold.record()}
    return orjson.dumps(fields) + b"\n"


def _compared(evaluation: Evaluation, samples: SampleStore) -> list[Result]:
    plan = evaluation.plan
    kept = {trial.place: samples.done[trial.place] for trial in trials(plan)}
    results = compare_arms(kept, [arm.name for arm in plan.arms], plan.repeats)
    if not results:
        raise ConfigurationError(
            "no problem fits into the models' contexts together with the tokens to think"
        )
    return results


def _write_json(path: Path, value: object) -> None:
    _replace(path, orjson.dumps(value, option=orjson.OPT_INDENT_2))


def _replace(path: Path, content: bytes) -> None:
    """Write *path* atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
