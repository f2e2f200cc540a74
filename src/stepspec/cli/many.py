"""Solve many problems for ``solve``, and keep the solutions in a file that can be continued."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

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
    values = [asdict(solver.conditions(run)), solver.templates, run.sampling.model_dump(), run.auto]
    return text_digest(orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode())


class SolutionFile:
    """
    A file with a line of JSON for each problem: its id, its text, and its solution or its error.

    Entering keeps the solutions in the file, unless it is *fresh*, and drops errors and an
    incomplete line. Raise `ConfigurationError` if the solutions have another *digest* of settings.
    Without a *path* the file is standard output. The file has one writer at a time.
    """

    def __init__(self, path: Path | None, digest: str, *, fresh: bool = False) -> None:
        self.path = path
        self._digest = digest
        self._fresh = fresh
        self.solved: frozenset[tuple[str | int, str]] = frozenset()

    def __enter__(self) -> Self:
        if self.path is None:
            self._file: BinaryIO = sys.stdout.buffer
            return self
        try:
            self._file = self.path.open("a+b")
        except io.UnsupportedOperation as exc:
            raise ConfigurationError(
                f"{self.path} is no file to go on in: leave --output out, or name one"
            ) from exc
        lock(self._file, self.path)
        try:
            content = self._file_content()
            kept = [] if self._fresh else list(self._solutions(self.path, content))
            lines = b"".join(line for line, _ in kept)
            if lines != content:
                self._replace(self.path, lines)
        except BaseException:
            self._file.close()
            raise
        self.solved = frozenset(key for _, key in kept)
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            self._file.close()

    def _file_content(self) -> bytes:
        """Return the content of the file; b"" for a device, which may never end."""
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            return b""
        self._file.seek(0)
        return self._file.read()

    def write(self, problem: FileProblem, **fields: Any) -> None:
        """Add a line about *problem*. It is on disk when this returns."""
        line = {"id": problem.id, "problem": problem.text, **fields, "settings": self._digest}
        self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()

    def _solutions(
        self,
        path: Path,
        content: bytes,
    ) -> Iterator[tuple[bytes, tuple[str | int, str]]]:
        """Yield the complete lines that hold a solution, with the keys of their problems."""
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                return
            try:
                fields = cast("dict[str, Any]", orjson.loads(line))
                key = (fields["id"], fields["problem"])
                made_with = fields["settings"]
                failed = "error" in fields
            except (orjson.JSONDecodeError, KeyError, TypeError) as exc:
                raise ConfigurationError(
                    f"{path}, line {number}, is no solution: choose another --output"
                ) from exc
            if failed:
                continue
            if made_with != self._digest:
                raise ConfigurationError(
                    f"{path} holds solutions that were made with other models or settings: choose"
                    " another file with --output, or begin anew with --fresh"
                )
            yield line, key

    def _replace(self, path: Path, content: bytes) -> None:
        """Replace the content of the file at once, so that an interruption loses no solution."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(content)
        with self._file:
            self._file = draft.open("ab")
            lock(self._file, path)
            draft.replace(path)


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
            SolutionFile(output, settings_digest(solver), fresh=fresh) as file,
            progress_bars(stderr) as progress,
        ):
            missing = [problem for problem in problems if problem.key not in file.solved]
            waiting = iter(missing)
            done = len(problems) - len(missing)
            bar = progress.add_task("solving", total=len(problems), completed=done)

            async def work() -> None:
                nonlocal failed
                for problem in waiting:  # All workers share the iterator.
                    trace = traces / f"{problem.file_name}.jsonl" if traces else None
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
