"""Solve many problems for ``solve``, and keep the solutions in a file that can be continued."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from stepspec.evals.progress import progress_bars
from stepspec.evals.store import lock
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.errors import ConfigurationError, StepspecError

from ..api import Solver
from .problems import FileProblem, text_digest
from .program import stderr


def settings_digest(solver: Solver) -> str:
    """Return a hash of the models and run options of an entered *solver*."""
    run = solver.settings.run
    values = [solver.conditions(run), solver.templates, run.sampling.model_dump(), run.auto]
    return text_digest(orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode())


@dataclass(frozen=True, slots=True)
class SolutionFile:
    """A file with a line of JSON for each problem: its id, text, and solution or error."""

    file: BinaryIO
    """The file."""
    digest: str
    """A hash of the settings, which stands in each line."""
    solved: frozenset[FileProblem] = frozenset()
    """The problems that the file had a solution of at the start."""

    def write(self, problem: FileProblem, **fields: Any) -> None:
        """Add a line about *problem*. It is on disk when this returns."""
        line = {"id": problem.id, "problem": problem.text, **fields, "settings": self.digest}
        self.file.write(orjson.dumps(line) + b"\n")
        self.file.flush()


@contextmanager
def solution_file(
    path: Path | None, digest: str, *, fresh: bool = False
) -> Generator[SolutionFile]:
    """
    Open the file at *path*; None: standard output. The file has one writer at a time.

    Its solutions stay, unless it is *fresh*. Errors and an incomplete line are dropped. Raise
    `ConfigurationError` if the solutions have another *digest* of settings.
    """
    if path is None:
        yield SolutionFile(sys.stdout.buffer, digest)
        return
    with ExitStack() as stack:
        try:
            file: BinaryIO = stack.enter_context(path.open("a+b"))
        except io.UnsupportedOperation as exc:
            raise ConfigurationError(
                f"{path} is no file to go on in: leave --output out, or name one"
            ) from exc
        lock(file, path)
        content = b""
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # A device may never end.
            file.seek(0)
            content = file.read()
        solutions = {} if fresh else dict(_solutions(path, content, digest))
        kept = b"".join(solutions.values())
        if kept != content:
            # The file is replaced at once, so that an interruption loses no solution.
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_bytes(kept)
            file = stack.enter_context(draft.open("ab"))
            lock(file, path)
            draft.replace(path)
        yield SolutionFile(file, digest, frozenset(solutions))


def _solutions(path: Path, content: bytes, digest: str) -> Iterator[tuple[FileProblem, bytes]]:
    """Yield the problem and the line of each solution in the *content* of the file at *path*."""
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        try:
            fields = orjson.loads(line)
            problem = FileProblem(fields["id"], fields["problem"])
            made_with = fields["settings"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as exc:
            raise ConfigurationError(
                f"{path}, line {number}, is no solution: choose another --output"
            ) from exc
        if "error" in fields:
            continue
        if made_with != digest:
            raise ConfigurationError(
                f"{path} holds solutions that were made with other models or settings: choose"
                " another file with --output, or begin anew with --fresh"
            )
        yield problem, line


async def solve_all(
    solver: Solver,
    problems: Sequence[FileProblem],
    concurrency: int,
    output: Path | None,
    traces: Path | None,
    *,
    fresh: bool,
) -> int:
    """
    Solve the *problems* that *output* has no solution of, up to *concurrency* at the same time.

    Return how many failed. Traces go into the folder *traces*, if there is one.
    """
    failed = 0
    async with solver:
        with (
            solution_file(output, settings_digest(solver), fresh=fresh) as file,
            progress_bars(stderr) as progress,
        ):
            missing = [
                (number, problem)
                for number, problem in enumerate(problems, 1)
                if problem not in file.solved
            ]
            waiting = iter(missing)
            done = len(problems) - len(missing)
            bar = progress.add_task("solving", total=len(problems), completed=done)

            async def work() -> None:
                nonlocal failed
                for number, problem in waiting:  # All workers share the iterator.
                    trace = traces / f"{number:05}.jsonl" if traces else None
                    try:
                        solution = await solver.solve(problem.text, trace_to=trace)
                    except StepspecError as exc:
                        failed += 1
                        file.write(problem, error={"type": type(exc).__name__, "message": str(exc)})
                    else:
                        file.write(problem, **asdict(solution))
                    progress.advance(bar)

            await at_once(work() for _ in range(min(concurrency, len(missing))))
    return failed
