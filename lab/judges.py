"""
What a judge is worth on errors that people marked: ``python -m lab.judges FILE --large URL``.

FILE has solutions of ProcessBench (Zheng et al. 2024, arXiv:2412.06559) as JSON lines: ``problem``,
``steps`` and ``label``, the number of the first wrong step from 0, or -1. Each reading makes a
number of a step; a higher one means that the step is right. Half of the solutions choose thresholds
and weights, the other half is reported, beside slips that this program makes in right steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.optimize import minimize

from lab.step_numbers import new_numbers, slip, wrong_equations
from lab.tables import Sheet
from stepspec import Solver
from stepspec.cli.program import script
from stepspec.evals.results import Interval
from stepspec.orchestrator.chain import Chain, Role, Step, Token
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import Model
from stepspec.policies import Cascade

EVIDENCE = Path("build/judges.jsonl")
AT_ONCE = 12  # solutions that are read at the same time
CONTINUED_TOKENS = 56  # of the large model's own step
RESAMPLES = 400
PENALTY = 3.0  # of the weights of a combination
DELIMITER = "\n\n"

EXAMPLES = """
Examples:

  python -m lab.judges processbench.jsonl --small http://gpu:8001/v1 --large http://gpu:8002/v1

  # what was read before, without servers
  python -m lab.judges processbench.jsonl --evidence build/judges.jsonl
"""


class Solution(BaseModel):
    """A solution of ProcessBench. Fields that are not named here are ignored."""

    model_config = ConfigDict(frozen=True)

    id: str
    """The name of the solution."""
    problem: str
    """The problem, without a prompt."""
    steps: tuple[str, ...]
    """The steps, without delimiters."""
    label: int
    """The number of the first wrong step, from 0. -1: all are right."""

    @property
    def labelled(self) -> int:
        """How many steps have a label: all up to the first wrong one."""
        return len(self.steps) if self.label < 0 else self.label + 1


class ReadToken(BaseModel):
    """A token as a model reads it."""

    model_config = ConfigDict(frozen=True)

    text: str
    """The text of the token."""
    logprob: float
    """Its log-probability, in nats."""
    best: float
    """The log-probability of the likeliest token of the place."""
    rank: int
    """1: it is the likeliest token."""

    @property
    def digit(self) -> bool:
        return any(char.isdigit() for char in self.text)


class StepEvidence(BaseModel):
    """What the models say of one step."""

    model_config = ConfigDict(frozen=True)

    large: tuple[ReadToken, ...]
    """The step's tokens as the large model reads them."""
    small: tuple[ReadToken, ...] = ()
    """The same of the small model; none without one."""
    continued: str | None = None
    """What the large model writes in the place of the step, greedy; None if that was not asked."""
    yes: float | None = None
    """The probability of "Yes", when the large model is asked whether the step is right."""


class Evidence(BaseModel):
    """What the models say of one solution: its steps up to the first wrong one, and slips."""

    model_config = ConfigDict(frozen=True)

    id: str
    """The name of the solution."""
    steps: tuple[StepEvidence, ...]
    """One for each step that has a label."""
    slips: tuple[StepEvidence | None, ...] = ()
    """For each right step what is said of the step with a slip. None: it has no number."""


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """A step with its label and all that is known of it."""

    solution: str
    """The name of the solution."""
    right: bool
    """Whether people found it right, or False for a slip."""
    text: str
    """The step."""
    before: str
    """The problem and the steps before."""
    evidence: StepEvidence
    """What the models say of it."""


Reading = Callable[[LabelledStep], float]


def of_digits(read: Callable[[list[float]], float], role: Role = "large") -> Reading:
    """
    Return the reading of the tokens with digits by the model of *role*.

    *read* sums up their log-probabilities. Without digits the reading is 0.
    """

    def reading(step: LabelledStep) -> float:
        tokens: Iterable[ReadToken] = getattr(step.evidence, role)
        logprobs = [token.logprob for token in tokens if token.digit]
        return read(logprobs) if logprobs else 0.0

    return reading


def gaps(tokens: Iterable[ReadToken]) -> list[float]:
    """By how many nats the likeliest token is likelier than each of *tokens*."""
    return [token.best - token.logprob for token in tokens]


def disagreement(step: LabelledStep) -> float:
    """Return the share of the step's new numbers that the large model's own step lacks, negated."""
    numbers = new_numbers(step.text, step.before)
    if not numbers or step.evidence.continued is None:
        return 0.0
    own = new_numbers(step.evidence.continued, "")
    return -fmean(number not in own for number in numbers)


READINGS: Mapping[str, Reading] = {
    "length of the step": lambda step: -len(step.evidence.large),
    "mean log-probability, digits": of_digits(fmean),
    "least log-probability, digits": of_digits(min),
    "sum of log-probabilities, digits": of_digits(sum),
    "mean log-probability, all": lambda step: fmean(t.logprob for t in step.evidence.large),
    "least log-probability, all": lambda step: min(t.logprob for t in step.evidence.large),
    "largest gap, all": lambda step: -max(gaps(step.evidence.large)),
    "number of gaps above 1 nat": lambda step: -sum(gap > 1 for gap in gaps(step.evidence.large)),
    "mean log-probability, digits, small model": of_digits(fmean, "small"),
    "equations that do not hold": lambda step: -wrong_equations(step.text),
    "cut and continue: numbers that differ": disagreement,
    "asked: yes or no": lambda step: step.evidence.yes or 0.0,
}
COMBINED = (
    "length of the step",
    "mean log-probability, digits",
    "sum of log-probabilities, digits",
    "number of gaps above 1 nat",
    "mean log-probability, digits, small model",
    "equations that do not hold",
    "cut and continue: numbers that differ",
)
"""The readings of the combination, whose weights the first half sets."""


def read_solutions(path: Path) -> list[Solution]:
    """Read the solutions in *path*. Raise `ConfigurationError` with the number of a bad line."""
    found: list[Solution] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(Solution.model_validate_json(line))
        except ValidationError as exc:
            reason = exc.errors()[0]["msg"]
            raise ConfigurationError(f"{path}, line {number}: no solution: {reason}") from exc
    if not found:
        raise ConfigurationError(f"{path} has no solutions")
    return found


def read_evidence(path: Path) -> dict[str, Evidence]:
    """Read what an earlier run kept in *path*, by the name of the solution."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [Evidence.model_validate_json(line) for line in lines]
    return {each.id: each for each in kept}


class Reader:
    """Reads solutions with the models of a pair."""

    def __init__(
        self,
        large: Model,
        small: Model | None,
        *,
        continues: bool,
    ) -> None:
        self._large = large
        self._small = small
        self._continues = continues

    async def read(self, solution: Solution) -> Evidence:
        """Return what the models say of *solution* and of slips in its right steps."""
        chain = Chain.of(solution.problem)
        steps = [step + DELIMITER for step in solution.steps[: solution.labelled]]
        large = await self._large.score(chain, *steps, top=1)
        small = (
            await self._small.score(
                chain,
                *steps,
                top=1,
            )
            if self._small
            else []
        )
        rng = random.Random(solution.id)
        found: list[StepEvidence] = []
        slips: list[StepEvidence | None] = []
        for index, text in enumerate(steps):
            read_by_small = small[index] if small else ()
            found.append(
                await self._step(
                    chain,
                    text,
                    large[index],
                    read_by_small,
                )
            )
            if index != solution.label:
                slips.append(await self._slip(chain, text, rng))
            chain = chain.extend(Step(text, "small"))
        return Evidence(
            id=solution.id,
            steps=tuple(found),
            slips=tuple(slips),
        )

    async def _step(
        self,
        chain: Chain,
        text: str,
        large: Sequence[Token],
        small: Sequence[Token],
    ) -> StepEvidence:
        yes, _ = await Cascade(self._large, self._large).check(
            self._large,
            chain.extend(Step(text, "small")),
        )
        continued: str | None = None
        if self._continues:
            own = await self._large.write(
                chain,
                stop=(DELIMITER,),
                limit=CONTINUED_TOKENS,
            )
            continued = own.text
        return StepEvidence(
            large=read_tokens(large),
            small=read_tokens(small),
            continued=continued,
            yes=yes,
        )

    async def _slip(
        self,
        chain: Chain,
        text: str,
        rng: random.Random,
    ) -> StepEvidence | None:
        changed = slip(text, rng)
        if changed is None:
            return None
        (tokens,) = await self._large.score(chain, changed, top=1)
        return StepEvidence(large=read_tokens(tokens))


def read_tokens(tokens: Sequence[Token]) -> tuple[ReadToken, ...]:
    return tuple(
        ReadToken(
            text=token.text,
            logprob=token.logprob,
            best=max(token.logprob, *(each.logprob for each in token.top)),
            rank=token.rank,
        )
        for token in tokens
    )


async def collect(
    solutions: Sequence[Solution],
    urls: tuple[str, str],
    path: Path,
    *,
    continues: bool,
) -> None:
    """Read the *solutions* that *path* lacks, and append what the models say of each."""
    known = read_evidence(path)
    missing = [solution for solution in solutions if solution.id not in known]
    gate = asyncio.Semaphore(AT_ONCE)
    path.parent.mkdir(parents=True, exist_ok=True)
    small_url, large_url = urls
    async with Solver(small_url, large_url) as solver:
        reader = Reader(
            solver.large.model(),
            solver.small.model(),
            continues=continues,
        )

        async def read(solution: Solution) -> None:
            async with gate:
                evidence = await reader.read(solution)
            with path.open("a", encoding="utf-8") as file:
                file.write(evidence.model_dump_json() + "\n")

        async with asyncio.TaskGroup() as group:
            for solution in missing:
                group.create_task(read(solution))


def labelled_steps(solution: Solution, evidence: Evidence) -> list[LabelledStep]:
    """Return the steps of *solution* up to the first wrong one."""
    return [
        LabelledStep(
            solution=solution.id,
            right=index != solution.label,
            text=solution.steps[index],
            before=" ".join((solution.problem, *solution.steps[:index])),
            evidence=each,
        )
        for index, each in enumerate(evidence.steps)
    ]


def slipped_steps(solution: Solution, evidence: Evidence) -> list[LabelledStep]:
    """Return the steps with slips in place of right ones."""
    return [
        LabelledStep(
            solution.id,
            right=False,
            text="",
            before="",
            evidence=slipped,
        )
        for slipped in evidence.slips
        if slipped is not None
    ]


def in_first_half(name: str) -> bool:
    """Whether the solution called *name* chooses. The others are reported."""
    return blake2b(name.encode(), digest_size=1).digest()[0] % 2 == 0


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """The chance that a right step has a higher value than a wrong one. Equal values count half."""
    if not right or not wrong:
        return float("nan")
    above: Any = np.array(right)[:, None] - np.array(wrong)[None, :]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def auroc_interval(steps: Sequence[LabelledStep], reading: Reading) -> Interval:
    """The AUROC of *reading*, with the 95% percentiles of solutions drawn again."""
    by_solution: dict[str, tuple[list[float], list[float]]] = {}
    for step in steps:
        right, wrong = by_solution.setdefault(step.solution, ([], []))
        (right if step.right else wrong).append(reading(step))
    groups = list(by_solution.values())

    def area(drawn: Sequence[tuple[list[float], list[float]]]) -> float:
        right = [value for group, _ in drawn for value in group]
        wrong = [value for _, group in drawn for value in group]
        return auroc(right, wrong)

    rng = random.Random(0)
    areas = sorted(area(rng.choices(groups, k=len(groups))) for _ in range(RESAMPLES))
    low = areas[RESAMPLES // 40]
    high = areas[-1 - RESAMPLES // 40]
    return Interval(area(groups), low, high)


def combination(steps: Sequence[LabelledStep]) -> Reading:
    """Fit a logistic combination of the `COMBINED` readings to *steps*."""
    values = np.array([features(step) for step in steps])
    right = np.array([step.right for step in steps], dtype=float)
    mean = values.mean(axis=0)
    deviation = values.std(axis=0) + 1e-9
    scaled = (values - mean) / deviation
    scaled = np.column_stack([scaled, np.ones(len(scaled))])

    def loss(weights: Any) -> float:
        scores = scaled @ weights
        errors = np.logaddexp(0, -scores * (2 * right - 1)).sum()
        return float(errors + PENALTY / 2 * (weights[:-1] ** 2).sum())

    weights: Any = minimize(loss, np.zeros(scaled.shape[1])).x

    def combined(step: LabelledStep) -> float:
        own = (np.array(features(step)) - mean) / deviation
        return float(own @ weights[:-1])

    return combined


def features(step: LabelledStep) -> list[float]:
    return [float(READINGS[name](step)) for name in COMBINED]


def first_wrong_f1(
    solutions: Sequence[Sequence[LabelledStep]],
    reading: Reading,
    threshold: float,
) -> float:
    """
    ProcessBench's F1: the harmonic mean of the accuracy on wrong and on right solutions.

    The first step below *threshold* is said to be wrong. Steps after the first wrong one have no
    label, and are not read.
    """
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for steps in solutions:
        all_right = all(step.right for step in steps)
        rejected = [step for step in steps if reading(step) < threshold]
        hit = not rejected
        if not all_right:
            hit = bool(rejected) and not rejected[0].right
        hits[all_right].append(hit)
    if not hits[True] or not hits[False]:
        return 0.0
    return harmonic_mean([fmean(hits[True]), fmean(hits[False])])


def best_threshold(solutions: Sequence[Sequence[LabelledStep]], reading: Reading) -> float:
    """The threshold with the highest F1 on *solutions*."""
    values = sorted({reading(step) for steps in solutions for step in steps})
    return max(
        values,
        key=lambda value: first_wrong_f1(solutions, reading, value),
    )


@dataclass(frozen=True, slots=True)
class JudgeFigures:
    """What one reading is worth on the second half of the solutions."""

    name: str
    """The reading."""
    auroc: Interval
    """Right steps against first wrong ones, by people's labels."""
    f1: float
    """ProcessBench's F1, at the threshold that the first half chose."""
    slips: float | None
    """AUROC of right steps against steps with a slip. None: the reading has none."""


def figures(
    solutions: Sequence[Solution],
    evidence: Mapping[str, Evidence],
) -> tuple[list[JudgeFigures], int, int]:
    """Return the figures of every reading, and how many right and wrong steps they rest on."""
    known = [solution for solution in solutions if solution.id in evidence]
    halves: dict[bool, list[list[LabelledStep]]] = {True: [], False: []}
    slipped: list[LabelledStep] = []
    for solution in known:
        first = in_first_half(solution.id)
        halves[first].append(labelled_steps(solution, evidence[solution.id]))
        if not first:
            slipped.extend(slipped_steps(solution, evidence[solution.id]))
    choosing = [step for steps in halves[True] for step in steps]
    reported = [step for steps in halves[False] for step in steps]
    readings = {**READINGS, "combination of seven readings": combination(choosing)}
    rows: list[JudgeFigures] = []
    for name, reading in readings.items():
        threshold = best_threshold(halves[True], reading)
        right = [reading(step) for step in reported if step.right]
        of_slips = auroc(right, [reading(step) for step in slipped])
        rows.append(
            JudgeFigures(
                name=name,
                auroc=auroc_interval(reported, reading),
                f1=first_wrong_f1(halves[False], reading, threshold),
                slips=of_slips if reads_tokens_alone(name) and slipped else None,
            ),
        )
    wrong_steps = sum(not step.right for step in reported)
    return rows, len(reported) - wrong_steps, wrong_steps


def reads_tokens_alone(name: str) -> bool:
    """Whether a reading needs nothing but the large model's reading of the step."""
    return name.startswith(("length", "mean", "least", "sum", "largest", "number")) and (
        "small" not in name
    )


def show(rows: Sequence[JudgeFigures], right: int, wrong: int) -> str:
    """Return the figures as a table in Markdown."""
    ordered = sorted(rows, key=lambda row: -row.auroc.value)
    cells: list[tuple[str, ...]] = []
    for row in ordered:
        slips = "" if row.slips is None else f"{row.slips:.2f}"
        cells.append((row.name, f"{row.auroc:.2f}", f"{row.f1:.2f}", slips))
    columns = ("reading", "AUROC, people's labels", "F1", "AUROC, slips")
    return Sheet(
        columns,
        cells,
        f"{right} right steps, {wrong} first wrong ones",
    ).markdown()


def command(
    file: Annotated[Path, typer.Argument(help="Solutions of ProcessBench, as JSON lines.")],
    small: Annotated[str | None, typer.Option(help="URL of the small model's server.")] = None,
    large: Annotated[str | None, typer.Option(help="URL of the large model's server.")] = None,
    evidence: Annotated[
        Path,
        typer.Option(help="What the models said; a new run goes on there."),
    ] = EVIDENCE,
    continues: Annotated[
        bool,
        typer.Option("--continue/--no-continue", help="Whether the large model continues, too."),
    ] = True,
) -> None:
    """Say what every reading of a judge is worth on steps that people labelled."""
    if bool(small) != bool(large):
        raise ConfigurationError("--small and --large belong together: name both servers")
    solutions = read_solutions(file)
    if small and large:
        asyncio.run(
            collect(
                solutions,
                (small, large),
                evidence,
                continues=continues,
            )
        )
    known = read_evidence(evidence)
    if not known:
        raise ConfigurationError(f"{evidence} has nothing yet: name --small and --large")
    rows, right, wrong = figures(solutions, known)
    print(show(rows, right, wrong))


if __name__ == "__main__":
    script(command, EXAMPLES)
