"""
Grade the answers of models.

The gold of a task decides whether an answer is right. Processes with a time limit do the algebra
for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias, get_args

import orjson

from stepspec.orchestrator.concurrency import to_the_end
from stepspec.orchestrator.errors import ConfigurationError, install_command

from . import worker as worker_script
from .answers import Metric, extract_answer, same_letter
from .compare import same
from .normal import with_mixed_numbers

Mark: TypeAlias = Literal["right", "wrong", "ungraded"]
"""The grade of an answer."""

WORKERS = 2  # processes
ANSWER_SECONDS = 10.0  # of computing; the slowest of MATH500's solutions takes 0.2
WALL_FACTOR = 20.0  # wall seconds for each of these, after which a process counts as stuck
START_SECONDS = 120.0  # to import the algebra library on a busy machine
NEEDS_ALGEBRA: frozenset[Metric] = frozenset({"math", "number"})
LIBRARY = "math_verify"
REPLIES = {b"true\n": True, b"false\n": False}
# The script is run by its path and in safe mode. So it imports nothing of stepspec, and is ready in
# half a second.
SCRIPT = (sys.executable, "-P", str(Path(worker_script.__file__).resolve()))


class Graders:
    """
    A few processes that compare answers. Each is started when it is first needed.

    An answer is "ungraded" if comparing it takes more than *seconds* of computing, or ends the
    process.
    """

    def __init__(self, workers: int = WORKERS, seconds: float = ANSWER_SECONDS) -> None:
        self._workers = [_Worker(seconds) for _ in range(workers)]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        for worker in self._workers:
            self._idle.put_nowait(worker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self._end())

    async def _end(self) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def grade(self, text: str, gold: str, metric: Metric) -> Mark:
        """Grade the answer in *text* against the true answer, *gold*."""
        answer = extract_answer(text, metric)
        if not answer:
            return "wrong"
        if answer.strip() == gold.strip():
            return "right"
        right: bool | None
        match metric:
            case "choice":
                right = same_letter(answer, gold)
            case "exact":
                right = False
            case "number":
                right = await same(with_mixed_numbers(answer), gold, self.algebra)
            case "math":
                right = await same(answer, gold, self.algebra)
        if right is None:
            return "ungraded"
        return "right" if right else "wrong"

    async def algebra(self, gold: str, answer: str) -> bool | None:
        """Compare two expressions by algebra; None if that takes too long."""
        worker = await self._idle.get()
        try:
            return await worker.ask(answer, gold)
        finally:
            self._idle.put_nowait(worker)


class _Worker:
    """A process that runs `worker`. It is started again after it was killed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: Process | None = None

    async def ask(self, answer: str, gold: str) -> bool | None:
        """Whether algebra finds both equal. None if the process gives no valid reply in time."""
        try:
            process = self._process or await self._start()
            line = orjson.dumps({"gold": gold, "answer": answer}) + b"\n"
            async with asyncio.timeout(WALL_FACTOR * self._seconds):
                return REPLIES[await _exchange(process, line)]
        except (TimeoutError, EOFError, KeyError):
            await self.kill()
            return None
        except asyncio.CancelledError:
            await to_the_end(self.kill())
            raise

    async def _start(self) -> Process:
        command = (*SCRIPT, str(self._seconds))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                env=environment,
            )
            async with asyncio.timeout(START_SECONDS):
                await _exchange(self._process, b"")
        except (OSError, TimeoutError, EOFError) as exc:
            await self.kill()
            raise ConfigurationError(
                f"the grader does not start: {' '.join(command)} says why"
            ) from exc
        return self._process

    async def kill(self) -> None:
        process = self._process
        self._process = None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()  # closes its pipes as well


async def _exchange(process: Process, line: bytes) -> bytes:
    """Send *line* to *process* and return its next line. Raise `EOFError` if there is none."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        await process.stdin.drain()
        reply = await process.stdout.readline()
    except (ConnectionError, ValueError) as exc:  # ValueError: the line is too long for a reply.
        raise EOFError from exc
    if not reply.endswith(b"\n"):
        raise EOFError
    return reply


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
        raise ConfigurationError(f"grading needs math-verify: {install_command('evals')}")
