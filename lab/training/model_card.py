"""
Measure the miniature models for their model card: their accuracy, and how well their grades
separate right from wrong.

Everything is computed by the bare networks, without servers, from the weights in ``models/``.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from stepspec.evals.benchmarks.miniature import Problem as ShortProblem
from stepspec.evals.benchmarks.miniature import generate, worked_steps
from stepspec.evals.results import Interval, wilson
from stepspec.evals.testbed.servers import MODELS

from ..worlds import SHORT, find_world
from ..worlds.mistakes import corrupt
from ..worlds.short import Problem, advance, begin, is_right, paragraphs
from .data import Writer
from .inference import JudgedStep, ModelSolution, grades, solve

SOLVED = 500
JUDGED_PROBLEMS = 1500
SEED = 4321
SOLVES = {
    "large": (0.97, 1.0),
    "small": (0.55, 0.75),
    "small-other": (0.55, 0.75),
    "tiny": (0.2, 0.5),
}
REAL = "that the small model wrote"
SYNTHETIC = "synthetic"
JUDGES = 0.95
SIZE = 8_000_000  # bytes in git, all models of the short problems together


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and the range in which it must be."""

    name: str
    value: float
    low: float
    high: float
    detail: str

    @property
    def met(self) -> bool:
        return self.low <= self.value <= self.high


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A trained model and the writer with its vocabulary."""

    model: Qwen3ForCausalLM
    writer: Writer

    @classmethod
    def of(cls, name: str, folder: Path = MODELS) -> LoadedModel:
        model = folder / name if (folder / name).is_dir() else find_world(SHORT).model(name)
        tokenizer = AutoTokenizer.from_pretrained(model)
        assert isinstance(tokenizer, PreTrainedTokenizerFast)
        return cls(Qwen3ForCausalLM.from_pretrained(model, dtype="float32"), Writer(tokenizer))


def measure(log: Callable[[str], object], folder: Path = MODELS) -> list[Figure]:
    """Measure everything; *log* receives the progress."""
    fresh = list(islice(generate(SEED, "test"), SOLVED))
    figures: list[Figure] = []
    for name, (low, high) in SOLVES.items():
        log(f"{name} solves {SOLVED} problems")
        loaded = LoadedModel.of(name, folder)
        solved = solve(loaded.model, loaded.writer, fresh)
        figures.append(_accuracy(f"{name}: greedy accuracy", solved, low, high))
    large = LoadedModel.of("large", folder)
    small = LoadedModel.of("small", folder)
    log("the small model writes steps to be judged")
    problems = list(islice(generate(SEED + 1, "test"), JUDGED_PROBLEMS))
    real = real_steps(solve(small.model, small.writer, problems))
    synthetic = synthetic_steps(problems)
    for judge, model, bar in (("large", large, JUDGES), ("small", small, 0.0)):
        for kind, cases in ((REAL, real), (SYNTHETIC, synthetic)):
            log(f"{judge} judges {len(cases)} steps, {kind}")
            marks = grades(model.model, model.writer, cases)
            right = [case.right for case in cases]
            figures.append(
                judging(f"{judge} as judge: AUROC, wrong steps {kind}", right, marks, bar)
            )
    return [*figures, size(folder, SOLVES, SIZE)]


def size(folder: Path, names: Iterable[str], bar: int) -> Figure:
    """Measure how large the models *names* are in git."""
    total = sum(
        path.stat().st_size
        for name in names
        for path in (folder / name).rglob("*")
        if path.is_file()
    )
    return Figure("bytes in git", total, 0, bar, "all models with their tokenizers")


def real_steps(solved: Sequence[ModelSolution]) -> list[JudgedStep]:
    """
    Return the first wrong step of every solution, if it has one, and a random right step of every
    solution.
    """
    rng = random.Random(SEED)
    cases: list[JudgedStep] = []
    for solution in solved:
        state = begin(solution.problem)
        before = list[str]()
        fine = list[JudgedStep]()
        for step in paragraphs(solution.reasoning):
            case = JudgedStep(
                solution.problem, tuple(before), step, is_right(solution.problem, state, step)
            )
            if not case.right:
                cases.append(case)
                break
            fine.append(case)
            before.append(step)
            state = advance(solution.problem, state, step)
            if state.index > len(solution.problem.operations):
                break
        if fine:
            cases.append(rng.choice(fine))
    return cases


def synthetic_steps(problems: Sequence[ShortProblem]) -> list[JudgedStep]:
    """
    Return a right and a corrupted step at a random position of every problem's worked reasoning.
    """
    rng = random.Random(SEED)
    cases: list[JudgedStep] = []
    for problem in problems:
        steps = worked_steps(problem)
        index = rng.randrange(len(steps))
        before = tuple(steps[:index])
        state = _after(problem, steps[:index])
        cases.append(JudgedStep(problem, before, steps[index], True))
        cases.append(JudgedStep(problem, before, corrupt(rng, problem, state), False))
    return cases


def _after(problem: Problem, steps: Sequence[str]) -> Any:
    state = begin(problem)
    for step in steps:
        state = advance(problem, state, step)
    return state


def _accuracy(name: str, solved: Sequence[ModelSolution], low: float, high: float) -> Figure:
    share = wilson(sum(s.correct for s in solved), len(solved))
    return Figure(name, share.value, low, high, detail(share, f"n = {len(solved)}"))


def judging(name: str, right: Sequence[bool], marks: Sequence[float], bar: float) -> Figure:
    """Measure how well the grades *marks* tell the *right* steps from the others."""
    fine = np.array(right)
    values = np.array(marks)
    rng = np.random.default_rng(SEED)
    kinds = [np.flatnonzero(fine), np.flatnonzero(~fine)]
    draws = [np.concatenate([rng.choice(kind, len(kind)) for kind in kinds]) for _ in range(500)]
    resampled = sorted(auroc(values[d], fine[d]) for d in draws)
    area = Interval(auroc(values, fine), resampled[12], resampled[487])
    accepted = float((values[~fine] >= 7).mean()), float((values[fine] >= 7).mean())
    counts = f"{int((~fine).sum())} wrong and {int(fine.sum())} right"
    counts += f", of which graded 7 or more: {accepted[0]:.1%} and {accepted[1]:.1%}"
    return Figure(name, area.value, bar, 1.0, detail(area, counts))


def auroc(
    marks: np.ndarray[tuple[int], np.dtype[np.float64]],
    right: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> float:
    """Return the probability that a right step is graded above a wrong one, ties counting half."""
    order = marks[right][:, None] - marks[~right][None, :]
    return float((order > 0).mean() + 0.5 * (order == 0).mean())


def detail(interval: Interval, about: str) -> str:
    """Describe a figure's interval."""
    return f"95% interval {interval.low:.3f} to {interval.high:.3f}; {about}"


def card(figures: Sequence[Figure]) -> str:
    """Render the model card: a description of the models, and their figures."""
    return f"""# The miniature pair

Four models of the Qwen3 architecture, trained from scratch on arithmetic word problems only, so that the whole system
runs with real models on a CPU. `large`, `small` and `tiny` share a vocabulary; `small-other` has another one, with
numbers in groups of two digits. `large` was also trained to judge: to grade a step, to answer a yes/no check, to decide
whether two steps mean the same, and to write the right step after a wrong draft and the reflection prompt. The training
of `small` and `small-other` was stopped early, so that they make mistakes, and that of `tiny`, for nested pairs, even
earlier.

Measured on {datetime.date.today()} by `python -m lab.training report`, seed {SEED}, on fresh problems of
the default difficulty (3 to 6 operations), none of which was trained on. A grade is the mean over the probabilities
of the ten digits.

| figure | value | bar | |
|---|---|---|---|
{table(figures)}

`python -m lab.training train` made these weights, seed 0, by the recipes in `train.py`, in about 80 minutes
of two cores. It was stopped after four of the large model's six phases and went on later, which comes to the same.
Licence: Apache-2.0, like the code.
"""


def table(figures: Sequence[Figure]) -> str:
    """Render the rows of the table of *figures*."""
    return "\n".join(
        f"| {f.name} | {f.value:,.3f} | {'' if f.low <= 0 else f'{f.low:g} to {f.high:,g}'} |"
        f" {f.detail} |"
        for f in figures
    )
