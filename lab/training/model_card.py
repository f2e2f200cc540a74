"""
Measure the miniature models for their model card: their accuracy, and how well their grades separate right from wrong.

Everything is computed by the bare networks, without servers, from the weights in ``models/``.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from stepspec.evals.results import Interval, wilson
from stepspec.evals.testbed.problems import Problem as ShortProblem
from stepspec.evals.testbed.problems import generate, worked_steps
from stepspec.evals.testbed.servers import MODELS

from ..worlds import SHORT, accounts, find_world
from ..worlds.mistakes import corrupt
from ..worlds.short import paragraphs
from .data import Problem, Writer, world_of
from .inference import JudgedStep, ModelSolution, Trunk, grades, recite, solve

SOLVED = 500
JUDGED_PROBLEMS = 1500
SEED = 4321
SOLVES = {"large": (0.97, 1.0), "small": (0.55, 0.75), "small-other": (0.55, 0.75), "tiny": (0.2, 0.5)}
LONG_JUDGES = {"large": (0.97, 1.0), "judge-90": (0.85, 0.95), "judge-75": (0.68, 0.82)}  # least and largest AUROC
LONG_JUDGED = 40  # problems
LONG_RIGHT = 8  # right steps of each of them, besides all wrong ones
REAL, SYNTHETIC = "that the small model wrote", "synthetic"
LONG_SOLVES = {"large": (0.85, 0.95), "small": (0.3, 0.6)}
JUDGES = 0.95
SIZE = 8_000_000  # bytes in git, all models of the short problems together
LONG_SIZE = 20_000_000  # the same of the long ones


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
    large, small = LoadedModel.of("large", folder), LoadedModel.of("small", folder)
    log("the small model writes steps to be judged")
    problems = list(islice(generate(SEED + 1, "test"), JUDGED_PROBLEMS))
    real = real_steps(solve(small.model, small.writer, problems))
    synthetic = synthetic_steps(problems)
    for judge, model, bar in (("large", large, JUDGES), ("small", small, 0.0)):
        for kind, cases in ((REAL, real), (SYNTHETIC, synthetic)):
            log(f"{judge} judges {len(cases)} steps, {kind}")
            marks = grades(model.model, model.writer, cases)
            right = [case.right for case in cases]
            figures.append(judging(f"{judge} as judge: AUROC, wrong steps {kind}", right, marks, bar))
    return [*figures, size(folder, SOLVES, SIZE)]


def size(folder: Path, names: Iterable[str], bar: int) -> Figure:
    """Measure how large the models *names* are in git."""
    total = sum(path.stat().st_size for name in names for path in (folder / name).rglob("*") if path.is_file())
    return Figure("bytes in git", total, 0, bar, "all models with their tokenizers")


def measure_long(log: Callable[[str], object], folder: Path, count: int = 60) -> list[Figure]:
    """Measure the pair of the long problems: accuracy on *count* of them, and the grades of every judge."""
    fresh = list(islice(accounts.generate(SEED, "test"), count))
    figures: list[Figure] = []
    for name, (low, high) in LONG_SOLVES.items():
        log(f"{name} writes the steps of {count} problems")
        loaded = LoadedModel.of(name, folder)
        recitals = recite(loaded.model, loaded.writer, fresh)
        solved = wilson(sum(all(r.greedy) for r in recitals), count)
        steps = [right for r in recitals for right in r.greedy]
        sampled = sum(math.prod(r.chance) for r in recitals) / count
        about = f"n = {count}, of 32 to 80 steps; {np.mean(steps):.2%} of the steps"
        figures.append(Figure(f"{name}: greedy accuracy", solved.value, low, high, detail(solved, about)))
        figures.append(Figure(f"{name}: accuracy at temperature 0.6", sampled, 0, 1, "expected, on the same problems"))
    small = LoadedModel.of("small", folder)
    log(f"small drafts the steps of {LONG_JUDGED} problems")
    torch.manual_seed(SEED)
    drafts = [_long_steps(problem, Trunk(small.model, small.writer, problem)) for problem in fresh[:LONG_JUDGED]]
    for judge, (low, high) in LONG_JUDGES.items():
        log(f"{judge} judges them")
        figures += _long_judging(judge, LoadedModel.of(judge, folder), drafts, low, high)
    thoughts = [sum(len(small.writer.encode(step)) for step in accounts.worked_steps(problem)) for problem in fresh]
    spread = f"from {min(thoughts):,} to {max(thoughts):,}"
    figures.append(Figure("tokens of thinking", float(np.mean(thoughts)), 1500, 4000, spread))
    return [*figures, size(folder, {**LONG_SOLVES, **LONG_JUDGES}, LONG_SIZE)]


def _long_steps(problem: accounts.Problem, small: Trunk) -> dict[str, list[JudgedStep]]:
    """Return steps to judge by their kind: the small model's drafts at temperature 0.6, and synthetic ones."""
    rng = random.Random(f"{SEED} {problem.text}")
    before = [tuple(small.steps[:number]) for number in range(len(small.steps))]
    made = [accounts.corrupt(rng, problem, _after(problem, steps)) for steps in before]
    made = [step if rng.random() < 0.5 else wrong for step, wrong in zip(small.steps, made, strict=True)]
    chosen = dict[str, list[JudgedStep]]()
    for kind, written in ((REAL, small.drafts(temperature=0.6)), (SYNTHETIC, made)):
        steps = [
            JudgedStep(problem, steps, step, step == right)
            for steps, step, right in zip(before, written, small.steps, strict=True)
        ]
        right, wrong = [s for s in steps if s.right], [s for s in steps if not s.right]
        chosen[kind] = rng.sample(right, min(len(right), LONG_RIGHT)) + wrong[: None if kind == REAL else LONG_RIGHT]
    return chosen


def _long_judging(
    name: str, judge: LoadedModel, drafts: Sequence[dict[str, list[JudgedStep]]], low: float, high: float
) -> list[Figure]:
    """Measure the grades of one judge."""
    marks = dict[str, list[float]]({REAL: [], SYNTHETIC: []})
    for kinds in drafts:
        trunk = Trunk(judge.model, judge.writer, kinds[REAL][0].problem)
        for kind, cases in kinds.items():
            marks[kind] += trunk.grades([(len(case.before), case.step) for case in cases])
    figures: list[Figure] = []
    for kind, given in marks.items():
        cases = [case for kinds in drafts for case in kinds[kind]]
        area = judging(f"{name} as judge: AUROC, steps {kind}", [case.right for case in cases], given, low)
        figures.append(replace(area, high=high) if kind == SYNTHETIC else replace(area, low=0.0))
        for right in (True, False):
            some = [grade for grade, case in zip(given, cases, strict=True) if case.right == right]
            tenths = np.histogram(some, bins=np.arange(11) - 0.5)[0] / len(some)
            about = f"grades 0 to 9: {' '.join(f'{tenth:.0%}' for tenth in tenths)}"
            figures.append(
                Figure(f"{name}: mean grade of {'right' if right else 'wrong'} ones", float(np.mean(some)), 0, 9, about)
            )
    return figures


def real_steps(solved: Sequence[ModelSolution]) -> list[JudgedStep]:
    """Return the first wrong step of every solution, if it has one, and a random right step of every solution."""
    rng = random.Random(SEED)
    cases: list[JudgedStep] = []
    for solution in solved:
        world = world_of(solution.problem)
        state, before, fine = world.begin(solution.problem), list[str](), list[JudgedStep]()
        for step in paragraphs(solution.reasoning):
            case = JudgedStep(solution.problem, tuple(before), step, world.is_right(solution.problem, state, step))
            if not case.right:
                cases.append(case)
                break
            fine.append(case)
            before.append(step)
            state = world.advance(solution.problem, state, step)
            if state.index > len(solution.problem.operations):
                break
        if fine:
            cases.append(rng.choice(fine))
    return cases


def synthetic_steps(problems: Sequence[ShortProblem]) -> list[JudgedStep]:
    """Return a right and a corrupted step at a random position of every problem's worked reasoning."""
    rng = random.Random(SEED)
    cases: list[JudgedStep] = []
    for problem in problems:
        steps = worked_steps(problem)
        index = rng.randrange(len(steps))
        before, state = tuple(steps[:index]), _after(problem, steps[:index])
        cases.append(JudgedStep(problem, before, steps[index], True))
        cases.append(JudgedStep(problem, before, corrupt(rng, problem, state), False))
    return cases


def _after(problem: Problem, steps: Sequence[str]) -> Any:
    world = world_of(problem)
    state = world.begin(problem)
    for step in steps:
        state = world.advance(problem, state, step)
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
    marks: np.ndarray[tuple[int], np.dtype[np.float64]], right: np.ndarray[tuple[int], np.dtype[np.bool_]]
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
        f"| {f.name} | {f.value:,.3f} | {'' if f.low <= 0 else f'{f.low:g} to {f.high:,g}'} | {f.detail} |"
        for f in figures
    )


def long_card(figures: Sequence[Figure]) -> str:
    """Render the model card of the long problems."""
    return f"""# The miniature pair for long problems

Models of the Qwen3 architecture, trained from scratch on one account with 32 to 80 dated deeds, a chain of 1,500 to
4,000 tokens, so that long reasoning runs with real models on a CPU. They share a vocabulary with one token for each
day and one for each deed. `small`, of three layers, begins with an induction circuit instead of random weights: so it
looks up deeds after minutes of training. `large` begins with the layers of `small`, has three more, and learnt longer.
So their mistakes are less independent than those of models that were trained apart.

Three more layers of `large` judge. They begin as a circuit that compares each token of a step with what the layers
below expected there, and learnt to turn the largest difference into a grade (`judge.py`). So this judge notices what
the large model itself would have written differently, and grades nothing else. `judge-90` and `judge-75` are the same
model, with judging layers that learnt for less time; they are named after the AUROC of their grades on synthetic steps.

The first four phases of `small` were trained on an earlier form of the last step, which added the balance after an
earlier day; it was not learnt, and made way for the present one. A training from the start has not been tried since.

Measured on {datetime.date.today()} by `python -m lab.training report --world long`, seed {SEED}, on fresh
problems, none of which was trained on. Each step was written after the right ones before it, which comes to the same as
writing the chain, as far as no mistake is ever mended.

| figure | value | bar | |
|---|---|---|---|
{table(figures)}

`python -m lab.training train --world long` makes the weights, seed 0, by the recipes in `train.py`.
Licence: Apache-2.0, like the code.
"""
