"""
Grade the answers of models.

The gold of a task decides whether an answer is right. Processes with a time limit compare
expressions for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

from anyio import BrokenWorkerProcess, to_process

from stepspec.orchestrator.errors import ConfigurationError, install_command

from .answers import Metric, extract_answer, same_letter
from .normal import with_mixed_numbers
from .worker import compare

Mark: TypeAlias = Literal["right", "wrong", "ungraded"]
"""The grade of an answer."""

WORKERS = 2  # processes
ANSWER_SECONDS = 10.0  # of computing; the slowest of MATH500's solutions takes 0.2
WALL_FACTOR = 20.0  # wall seconds for each of these, after which a process counts as stuck
NEEDS_ALGEBRA: frozenset[Metric] = frozenset({"math", "number"})
LIBRARY = "latex2sympy2_extended"


class Graders:
    """
    Grades answers in a few processes.

    An answer is "ungraded" if comparing it takes more than *seconds* of computing, or ends the
    process.
    """

    def __init__(self, workers: int = WORKERS, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._slots = asyncio.Semaphore(workers)

    async def grade(self, text: str, gold: str, metric: Metric) -> Mark:
        """Grade the answer in *text* against the true answer, *gold*."""
        answer = extract_answer(text, metric)
        if not answer:
            return "wrong"
        if answer.strip() == gold.strip():
            return "right"
        match metric:
            case "choice":
                right = same_letter(answer, gold)
            case "exact":
                right = False
            case "number":
                return await self.compare(with_mixed_numbers(answer), gold)
            case "math":
                return await self.compare(answer, gold)
        return "right" if right else "wrong"

    async def compare(self, answer: str, gold: str) -> Mark:
        """Compare an answer with the true answer, *gold*, in a process."""
        try:
            async with self._slots, asyncio.timeout(WALL_FACTOR * self._seconds):
                right = await to_process.run_sync(
                    compare,
                    answer,
                    gold,
                    self._seconds,
                    cancellable=True,
                )
        except (TimeoutError, MemoryError, RecursionError):
            return "ungraded"
        except (OSError, ImportError, BrokenWorkerProcess) as exc:
            if isinstance(exc, BrokenWorkerProcess) and not exc.args:  # It did start.
                return "ungraded"
            raise ConfigurationError(
                f"the grader does not start ({exc}): {sys.executable} -m {to_process.__name__} says"
                " why"
            ) from exc
        return "right" if right else "wrong"


METRICS: tuple[Metric, ...] = get_args(Metric)


class Gold(Protocol):
    """
    Decides whether an answer to one problem is right. A benchmark may bring a class of its own.

    It needs the two methods below and `__str__`, the text that reports show as the true answer. If
    `grade` uses *graders* for algebra, it also has ``needs_algebra = True``, so that a missing
    library is an error before the run and not during it.
    """

    async def grade(self, text: str, graders: Graders) -> Mark:
        r"""
        Grade the *text* that a model wrote after its thinking. *graders* do the algebra.

        ``extract_answer(text, "exact")`` of `answers` finds the answer in *text*: the content of
        the last box, or the last line. LaTeX in the box stays, for example ``\text{Paris}``.
        """
        ...

    def record(self) -> Mapping[str, Any]:
        """
        Return the values that identify the gold, for the problem's line in the run folder.

        The keys ``number``, ``name`` and ``problem`` are taken. A run goes on in a folder only if
        all records are the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A gold with one true answer."""

    text: str
    """The true answer."""
    metric: Metric = "math"
    """How other answers are compared with it."""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ConfigurationError(
                f"there is no metric {self.metric!r}; the metrics: {', '.join(METRICS)}"
            )

    async def grade(self, text: str, graders: Graders) -> Mark:
        return await graders.grade(text, self.text, self.metric)

    def record(self) -> Mapping[str, Any]:
        return {"answer": self.text, "metric": self.metric}

    def __str__(self) -> str:
        return self.text

    @property
    def needs_algebra(self) -> bool:
        return self.metric in NEEDS_ALGEBRA


def require_graders(golds: Iterable[Gold]) -> None:
    """Raise `ConfigurationError` if one of *golds* needs algebra, and its library is missing."""
    algebra = any(getattr(gold, "needs_algebra", False) for gold in golds)
    if algebra and importlib.util.find_spec(LIBRARY) is None:
        raise ConfigurationError(f"grading needs {LIBRARY}: {install_command('evals')}")
